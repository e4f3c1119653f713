"""A pipeline's ledger inside a lake table: a chain of small files in a folder no reader looks at.

``<table>/_eo_ledger/<pipeline>/<thousand>/<version>-<token>.json`` holds one whole entry, and the
names of two earlier files. Writing such a file publishes nothing: it becomes the ledger's head by
the table's own commit, which carries its version and token together with the rows. The chain is
followed from there, so that files of attempts that lost are never taken for history, however many
there are.

A commit's own metadata would be simpler and does not last: it is gone as soon as the table's log
is checkpointed and cleaned. Version and token are two integers that every later commit keeps.

The first entry has no rows and comes before the table: it is the file of version 0 with token 0,
a name that can be taken once, whole or not at all (POSIX ``link``).

Whoever tries to publish says so beforehand, in ``attempts/<version>-<token>``, and takes that away
when it is known what became of it. So what attempts left that died is found without a look at all
that stands beside it.

Besides its predecessor a file names one entry further back, chosen so that any version is found in
O(log n) steps (Myers, "An applicative random-access stack", 1983).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from eo_pipeline._lazy import pa, pq
from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import LedgerDamagedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry, Operation
from eo_pipeline.sinks.session import goes_back, target_of
from eo_pipeline.staging.rows import StagedTable, batches_of
from eo_pipeline.storage.backend import StoreUnreachableError
from eo_pipeline.storage.paths import (
    Place,
    files_below,
    folders_in,
    names_in,
    new_file,
    parquet_source,
    relative_name,
    remove_all,
    remove_empty_folders,
    sync,
    write_atomically,
    write_new,
)

LEDGER_FOLDER = "_eo_ledger"

#: Versions in one folder, so that looking for what killed runs left does not list all history.
BUCKET = 1000

_ATTEMPTS = "attempts"

_FORMAT = 1
_VERSION_DIGITS = 12
_FILES_CACHED = 256

#: Fits a signed 64-bit integer, which is what tables keep.
_TOKEN_BITS = 62


class Pointer(NamedTuple):
    """Name of the file that holds an entry. The table's commit carries it."""

    version: int
    token: int

    @classmethod
    def new(cls, version: int) -> Pointer:
        """For one attempt to publish ``version``; the token was never used before."""
        return cls(version, 1 + secrets.randbits(_TOKEN_BITS))

    @property
    def bucket(self) -> str:
        return f"{self.version // BUCKET:06d}"

    @property
    def stem(self) -> str:
        return f"{self.version:0{_VERSION_DIGITS}d}-{self.token}"

    @classmethod
    def of_file(cls, name: str) -> Pointer | None:
        """The pointer in a file's name, None for any other name."""
        version, _, rest = name.partition("-")
        token = rest.partition(".")[0].partition("-")[0]
        return cls(int(version), int(token)) if version.isdigit() and token.isdigit() else None


#: The first entry's file.
FIRST = Pointer(START_VERSION, 0)


@dataclass(frozen=True)
class LedgerFile:
    """One file: the entry, where it is kept, the file before it, and one further back."""

    entry: LedgerEntry
    at: Pointer
    previous: Pointer | None
    jump: Pointer
    dead_letters: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "at": self.at,
            "previous": self.previous,
            "jump": self.jump,
            "dead_letters": self.dead_letters,
            "entry": self.entry.to_json(),
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LedgerFile:
        return cls(
            entry=LedgerEntry.from_json(raw["entry"]),
            at=Pointer(*raw["at"]),
            previous=Pointer(*raw["previous"]) if raw["previous"] else None,
            jump=Pointer(*raw["jump"]),
            dead_letters=raw["dead_letters"],
        )


class LedgerFiles:
    """The files of one pipeline. What is written is never changed."""

    def __init__(self, table: Place, pipeline: str) -> None:
        self.folder = table / LEDGER_FOLDER / pipeline
        self._cached = lru_cache(_FILES_CACHED)(self._read)

    def path(self, pointer: Pointer) -> Place:
        return self.folder / pointer.bucket / f"{pointer.stem}.json"

    def aside(self, pointer: Pointer) -> Place:
        """Folder where an attempt may keep files that are to be renamed; it goes with the
        attempt.
        """
        return self.path(pointer).with_name(f"{pointer.stem}.aside")

    def first(self) -> LedgerFile | None:
        """The first entry, None for a pipeline that never started."""
        with _reached():
            is_there = self.path(FIRST).is_file()
        return self.get(FIRST) if is_there else None

    def get(self, pointer: Pointer) -> LedgerFile:
        """The entry that the table, or a later entry, points to.

        Raises:
            LedgerDamagedError: the file is not there or not whole: somebody changed the folder.
            SinkUnavailableError: it cannot be read just now.
        """
        return self._cached(pointer)

    def _read(self, pointer: Pointer) -> LedgerFile:
        path = self.path(pointer)
        try:
            with _reached():
                text = path.read_text()
            return LedgerFile.from_json(json.loads(text))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            fault = f"has no ledger file: {path} is gone"
            raise LedgerDamagedError(self.folder.name, pointer.version, fault) from error
        except OSError as error:
            raise SinkUnavailableError(
                f"the ledger file {path} cannot be read: {error.strerror or error}. Nothing was "
                "read or written; the next run looks again."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            fault = f"cannot be read, in the ledger file {path}: {error}"
            raise LedgerDamagedError(self.folder.name, pointer.version, fault) from error

    def at(self, head: LedgerFile, version: int) -> LedgerFile | None:
        """The entry at ``version`` in the chain that ends in ``head``; None below its floor. Reads
        O(log n) files.
        """
        if not head.entry.floor <= version <= head.at.version:
            return None
        file = head
        while file.at.version > version:
            near = file.previous
            assert near is not None, "only the first entry has no predecessor"
            file = self.get(file.jump if file.jump.version >= version else near)
        return file

    def chain(self, head: LedgerFile, since: int) -> Iterator[LedgerFile]:
        """The entries from version ``since``, or the floor, to ``head``, oldest first."""
        since = max(since, head.entry.floor)
        pointers = [head.at]
        while (file := self.get(pointers[-1])).at.version > since and file.previous:
            pointers.append(file.previous)
        for pointer in reversed(pointers):
            if pointer.version >= since:
                yield self.get(pointer)

    def child(
        self, entry: LedgerEntry, at: Pointer, parent: LedgerFile, *, dead_letters: bool
    ) -> LedgerFile:
        """The file of ``entry`` on top of ``parent``, not written yet."""
        jump = parent.at
        # below the floor there may be no file any more: the parent is like a first entry
        if parent.jump.version >= entry.floor:
            back = self.get(parent.jump)
            if parent.at.version - back.at.version == back.at.version - back.jump.version:
                jump = back.jump
        return LedgerFile(entry, at, parent.at, jump, dead_letters)

    def write(self, file: LedgerFile) -> None:
        """Keep ``file`` where its pointer says. It means nothing until the table points to it."""
        path = self.path(file.at)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, json.dumps(file.to_json()))
        sync(path.parent)

    def write_first_aside(self, entry: LedgerEntry, at: Pointer) -> Place:
        """Keep the first entry, of the attempt ``at``, under another name than its own,
        :data:`FIRST`, to be linked to it whole or not at all.
        """
        aside = self.aside(at)
        aside.parent.mkdir(parents=True, exist_ok=True)
        write_new(aside, json.dumps(LedgerFile(entry, FIRST, None, FIRST).to_json()))
        return aside

    def begin(self, at: Pointer) -> None:
        """Say that ``at`` is tried, before there is any other file of it. Not flushed: what a power
        cut takes is found by :meth:`lost`.
        """
        mark = self._mark(at)
        try:
            write_atomically(mark, at.stem, flushed=False)
        except FileNotFoundError:
            mark.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(mark, at.stem, flushed=False)

    def end(self, *attempts: Pointer) -> None:
        """It is known what became of them, and what they left is gone."""
        remove_all([self._mark(at) for at in attempts])

    def tried(self) -> list[Pointer]:
        """Attempts that are under way, or died."""
        with _reached():
            names = names_in(self.folder / _ATTEMPTS)
        return [pointer for name in names if (pointer := Pointer.of_file(name))]

    def _mark(self, at: Pointer) -> Place:
        return self.folder / _ATTEMPTS / at.stem

    def left_by(self, head: LedgerFile, at: Pointer, *folders: Place) -> list[Place]:
        """Files of the attempt ``at``, not above the head, that nobody needs: all, if its version
        is held by another one. ``folders`` have files named and bucketed as the ledger's are. Of
        a version below the floor nobody can tell any more which token held it.
        """
        aside = [self.aside(at)]
        if at.version < head.entry.floor or self._held(head, at.version) == at:
            return aside
        with _reached():
            names = {folder / at.bucket: _names_below(folder / at.bucket) for folder in folders}
        return [self.path(at), *aside, *(file for version, file in _files(names) if version == at)]

    def has_file_since(self, version: int) -> bool:
        """True if anybody ever tried to publish ``version``, or a later one. Looks at all files."""
        with _reached():
            buckets = [self.folder / name for name in folders_in(self.folder)]
            names = {bucket: names_in(bucket) for bucket in buckets}
        return any(pointer.version >= version for pointer, _ in _files(names))

    def lost(self, head: LedgerFile, *folders: Place) -> Iterator[Place]:
        """Files of attempts that can never land: at a version that another token holds. Also of
        those that did not say they began, which older releases never do.

        Looks at the thousand versions around the head, in the ledger's folder and in ``folders``,
        whose files are named and bucketed alike. A file above the head may belong to a live run;
        of one below the floor nobody can tell any more which token held its version.
        """
        buckets = {head.at.bucket, Pointer(max(0, head.at.version - BUCKET), 0).bucket}
        ledgers = [self.folder / bucket for bucket in buckets]
        with _reached():
            names = {
                folder / bucket: list_names(folder / bucket)
                for list_names, listed in ((names_in, (self.folder,)), (_names_below, folders))
                for folder in listed
                for bucket in buckets
            }
        alone = _alone(name for folder in ledgers for name in names[folder])
        if all(_is_of(alone, name) for tokens in names.values() for name in tokens):
            return
        tokens: dict[int, list[Pointer]] = {}
        for pointer, _ in _files({folder: names[folder] for folder in ledgers}):
            tokens.setdefault(pointer.version, []).append(pointer)
        for pointer, place in _files(names):
            tokens_at = tokens.get(pointer.version, [])
            if head.entry.floor <= pointer.version <= head.at.version and tokens_at:
                held = tokens_at[0] if len(tokens_at) == 1 else self._held(head, pointer.version)
                if pointer != held:
                    yield place

    def _held(self, head: LedgerFile, version: int) -> Pointer | None:
        file = self.at(head, version)
        return file.at if file else None


@contextmanager
def _reached() -> Iterator[None]:
    """A store that does not answer says nothing of the files in it.

    Raises:
        SinkUnavailableError: a bucket cannot be reached.
    """
    try:
        yield
    except StoreUnreachableError as error:
        raise SinkUnavailableError(
            f"{error.filename}, of the ledger, cannot be reached: {error.strerror}"
        ) from error


def _names_below(folder: Place) -> list[str]:
    """Of files in ``folder`` and its folders, by which a table may be laid out."""
    return [relative_name(file.place, folder) for file in files_below(folder)]


def _alone(names: Iterable[str]) -> set[str]:
    """Prefixes of the names of files whose version has no other file in the ledger, which holds it
    then. It is so of nearly all, in every run: no pointer is built for each.
    """
    stems: dict[str, str | None] = {}
    for name in names:
        stem, _, _ = name.partition(".")
        stems[stem[:_VERSION_DIGITS]] = None if stem[:_VERSION_DIGITS] in stems else stem
    return {stem for stem in stems.values() if stem is not None}


def _is_of(stems: Set[str], name: str) -> bool:
    """Return whether ``name`` begins with one of them; a file of rows has its number behind
    that.
    """
    stem, _, _ = name.rpartition("/")[2].partition(".")
    return stem in stems or stem.rpartition("-")[0] in stems


def _files(names: Mapping[Place, Iterable[str]]) -> Iterator[tuple[Pointer, Place]]:
    """Names that are those of files of attempts, by their folders."""
    for folder, tokens in names.items():
        for name in tokens:
            if pointer := Pointer.of_file(name.rpartition("/")[2]):
                yield pointer, folder / name


_FOLDER, _TABLES = "dead_letters", "tables"


class DeadLetterFiles:
    """``<ledger folder>/dead_letters/<thousand>/<version>-<token>.parquet``; of one of several
    tables in ``tables/<table>/dead_letters``.
    """

    def __init__(self, ledger: LedgerFiles, table: str | None = None) -> None:
        below = ledger.folder if table is None else ledger.folder / _TABLES / quote(table, "")
        self.folder = below / _FOLDER

    def path(self, at: Pointer) -> Place:
        return self.folder / at.bucket / f"{at.stem}.parquet"

    def write(self, at: Pointer, staged: StagedTable) -> Place:
        """Keep the letters of the attempt ``at``. They mean nothing until it is the head."""
        path = self.path(at)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file, pq.ParquetWriter(file, staged.schema) as writer:
            for batch in staged.batches():
                writer.write_batch(batch)
        sync(path.parent)
        return path

    def checkpoint(self, at: Pointer) -> int:
        """The number of the checkpoint that the letters of ``at`` belong to; a replay's is not its
        own version.
        """
        with pq.ParquetFile(parquet_source(self.path(at))) as file:
            first = next(file.iter_batches(1, columns=[CHECKPOINT_COLUMN]), None)
        return at.version if first is None else int(first.column(0)[0].as_py())

    def batches(self, pointers: Iterable[Pointer]) -> Iterator[pa.RecordBatch]:
        """Read the dead letters in batches, as far as they are still there."""
        for at in pointers:
            if self.path(at).is_file():
                with pq.ParquetFile(parquet_source(self.path(at))) as file:
                    yield from batches_of(file)

    def read(self, pointers: Iterable[Pointer]) -> pa.Table:
        """The letters of entries that are in the ledger, in their order, as far as they are still
        there.
        """
        paths = [path for at in pointers if (path := self.path(at)).is_file()]
        tables = [pq.read_table(parquet_source(path)) for path in paths]
        return pa.concat_tables(tables) if tables else pa.table({})


def below_floor(ledger: LedgerFiles, head: LedgerFile) -> int:
    """Count the files of versions below the floor, but for the first one, which stays: it says
    that the pipeline has begun.
    """
    return sum(1 for _ in _below(ledger.folder, head.entry.floor))


def prune(ledger: LedgerFiles, folders: Sequence[DeadLetterFiles], head: LedgerFile) -> None:
    """Remove the files of versions below the floor, and their dead letters in each of ``folders``.
    Done again, after a kill or by two at once, it goes on with what is left.
    """
    floor = head.entry.floor
    if files := _kept_below(ledger, head):
        lowest, right_below = files[0].at.version, files[-1].at
        held = {file.at for file in files}
        standing = [{*_standing(letters, files).values()} for letters in folders]
        reach(CrashPoint.PLANNED)
        kept = ((at, place) for at, place in _below(ledger.folder, floor) if at.version >= lowest)
        remove_all([place for at, place in kept if at not in held])
        for letters, kept_letters in zip(folders, standing, strict=True):
            below = _below(letters.folder, floor)
            remove_all([place for at, place in below if at not in kept_letters])
        reach(CrashPoint.STAGED)
        if right_below != FIRST:
            remove_all([ledger.path(right_below)])
            sync(ledger.path(right_below).parent)
        reach(CrashPoint.COMMITTED)
    remove_all([place for _, place in _below(ledger.folder, floor)])
    remove_empty_folders(ledger.folder)


def with_dead_letters(
    ledger: LedgerFiles, letters: DeadLetterFiles, head: LedgerFile, since: int
) -> list[Pointer]:
    """Return the pointers whose dead letters are live, of the checkpoints from version
    ``since``, in their order.
    """
    above = [*ledger.chain(head, since)]
    if since >= head.entry.floor:
        standing = _applied({}, above)
    else:
        standing = _standing(letters, [*_kept_below(ledger, head), *above])
    return [at for number, at in standing.items() if number >= since]


def _kept_below(ledger: LedgerFiles, head: LedgerFile) -> list[LedgerFile]:
    """The chain below the floor, oldest first, as far down as it is there; nothing once the file
    right below the floor is gone.
    """
    floor = ledger.at(head, head.entry.floor)
    chain, at = list[LedgerFile](), floor.previous if floor else None
    while at is not None:
        try:
            file = ledger.get(at)
        except LedgerDamagedError:
            if ledger.path(at).is_file():
                raise
            break
        chain.append(file)
        at = file.previous
    return chain[::-1]


def _standing(letters: DeadLetterFiles, files: list[LedgerFile]) -> dict[int, Pointer]:
    """By the checkpoint's number: whose dead letters stand once all ``files`` came after what is
    left of versions before them.
    """
    older = sorted(at for at, _ in _below(letters.folder, files[0].at.version))
    if any(goes_back(file.entry) for file in files):
        return _applied({letters.checkpoint(at): at for at in older}, files)
    # whatever their numbers are, they stay
    return _applied({at.version: at for at in older}, files)


def _applied(before: dict[int, Pointer], files: Iterable[LedgerFile]) -> dict[int, Pointer]:
    """Return the live pointers ``before``, changed by these entries, oldest first."""
    standing = dict(before)
    for file in files:
        entry = file.entry
        if entry.operation is Operation.REWIND:
            standing = {n: at for n, at in standing.items() if n <= target_of(entry)}
        number = target_of(entry) if entry.operation is Operation.REPLAY else entry.version
        if file.dead_letters:
            standing[number] = file.at
        else:
            standing.pop(number, None)
    return standing


def _below(folder: Place, floor: int) -> Iterator[tuple[Pointer, Place]]:
    """The files in the ``folder``'s folders of thousands whose versions are below ``floor``."""
    buckets = (folder / name for name in folders_in(folder) if name.isdigit())
    for bucket in buckets:
        for name in names_in(bucket):
            at = Pointer.of_file(name)
            if at is not None and at.version < floor and at != FIRST:
                yield at, bucket / name
