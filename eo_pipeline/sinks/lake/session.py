"""One pipeline's ledger and rows in a lake table, and the steps of publishing to one.

A format fills in how its table is opened, and what its one commit is.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar

from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    DamagedError,
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry, Operation
from eo_pipeline.sinks.files import link_or_copy, refuse_file, refuse_misread, remove_folder
from eo_pipeline.sinks.lake.ledger import (
    FIRST,
    LEDGER_FOLDER,
    DeadLetterFiles,
    LedgerFile,
    LedgerFiles,
    Pointer,
    below_floor,
    prune,
    with_dead_letters,
)
from eo_pipeline.sinks.lake.types import AS_STORED
from eo_pipeline.sinks.session import (
    CommitConflictError,
    Publication,
    SinkSession,
    has_landed,
    target_of,
)
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.paths import (
    Place,
    folders_in,
    hard_link,
    new_file,
    remove_all,
    sync,
)

#: Names that are folders of their own, and need no escaping in a table's log.
_PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

#: The format's handle on one version of its table; None where the table does not exist yet.
Handle = TypeVar("Handle")

log = logging.getLogger(__name__)

#: Above every version: asked for the rows since then, a table gives those of no checkpoint.
NO_CHECKPOINT = 2**62


class LakeSession(SinkSession, Generic[Handle]):
    """One pipeline's ledger and rows in a lake table.

    The steps are those of :meth:`SinkSession.publish`. What is a lake's own: the table is opened
    once (1), and the commit is one on that handle, with the library's own retries off (6), so that
    it is refused if anybody committed since. Rows that are in memory, and dead letters, become
    files that nothing refers to yet (4); the ledger entry is a file too, under a token never used
    before (5). The commit makes files and pointer real together, or the format says that somebody
    was faster. Then the table is opened again and everything is looked at anew: our own entry
    there, another one of ours (fenced), or foreign work, after which the same transaction is tried
    with a new token. Whoever is killed between 4 and 6 leaves files that :meth:`recover` removes
    once another token holds their version.
    """

    publish_tries: ClassVar[int] = 12
    keeps_ledger = None

    def __init__(self, pipeline: str, root: Place) -> None:
        if not _PIPELINE.fullmatch(pipeline):
            raise ConfigError(f"name: {pipeline!r} cannot be a folder's name below the table's")
        if root.is_file():
            raise ConfigError(f"sink: {root} is not a folder")
        super().__init__(pipeline)
        refuse_file(root, self.folder_field)
        refuse_misread(root, self.misread, self.folder_field)
        self.root = root
        self.ledger = LedgerFiles(root, pipeline)
        self.dead_letters = DeadLetterFiles(self.ledger)

    def recover(self) -> LedgerEntry | None:
        """Removes what attempts left that lost their version; never what may still land."""
        head = self.newest_head()
        if not head:
            return None
        over = [at for at in self.ledger.tried() if at.version <= head.at.version]
        folders = self.dead_letters.folder, *self._side_folders()
        try:
            remove_all([file for at in over for file in self.ledger.left_by(head, at, *folders)])
            self.ledger.end(*over)
        except OSError as error:
            log.warning(
                "%s: leftovers of earlier attempts not removed; a later run retries: %s",
                self.pipeline,
                error,
            )
        return head.entry

    def remove_lost(self) -> None:
        """Remove what :meth:`recover` removes, found by a look at the thousand or two versions
        around the head; for maintenance.
        """
        if head := self.newest_head():
            remove_all(self.ledger.lost(head, self.dead_letters.folder, *self._side_folders()))

    def head(self) -> LedgerEntry | None:
        head = self.newest_head()
        return head.entry if head else None

    def entry(self, version: int) -> LedgerEntry | None:
        return self._entry_below(self.newest_head(), version)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        if head := self.newest_head():
            yield from (file.entry for file in self.ledger.chain(head, since))

    def read_dead_letters(self, since: int = 0) -> pa.Table:
        """Every record that could not be read, of the checkpoints from version ``since``; without
        those that a rewind or a replay took back.
        """
        return self.dead_letters.read(self._with_dead_letters(since))

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Dead letters that are left, file by file."""
        return AS_STORED.shown(self.dead_letters.batches(self._with_dead_letters(since)))

    def _with_dead_letters(self, since: int) -> list[Pointer]:
        head = self.head_of(self.open_table())
        return with_dead_letters(self.ledger, self.dead_letters, head, since) if head else []

    def prune(self, *, dry_run: bool) -> int:
        head = self.head_of(self.open_table())
        files = below_floor(self.ledger, head) if head else 0
        if head and files and not dry_run:
            prune(self.ledger, self._letters(), head)
        return files

    def _letters(self) -> Sequence[DeadLetterFiles]:
        return (self.dead_letters,)

    def check_going_back(self, entry: LedgerEntry) -> None:
        target_of(entry)
        ledgers = self._ledgers()
        if len(ledgers) > 1:
            raise self.cannot_go_back(
                entry, f"the pipelines {', '.join(ledgers)} share it, and number their rows alike"
            )
        self._refuse_going_back(entry, self.open_table())

    def cannot_go_back(self, entry: LedgerEntry, reason: str) -> RefusedError:
        return RefusedError(
            f"{self.root}: {entry.operation} is not possible: {reason}. Nothing was changed; start "
            "a new pipeline and table from that checkpoint (fork)."
        )

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """The table's whole folder, if no other pipeline and nobody else has rows in it. Without
        its log a table holds nothing, so that goes first; the ledger goes last.
        """
        self.refuse_shared()
        head = self.head()
        return self.drop(head.counts.rows_total if head else 0, dry_run=dry_run)

    def refuse_shared(self) -> None:
        """Return if no other pipeline and nobody else has rows in the table.

        Raises:
            RefusedError: they have.
        """
        sharing = [name for name in self._ledgers() if name != self.pipeline]
        foreign = sharing or next(self.lineage(since=NO_CHECKPOINT), None) is not None
        if foreign:
            whose = f"the pipelines {', '.join(sharing)}" if sharing else "somebody else"
            raise RefusedError(
                f"{self.root} also holds rows of {whose}. Nothing was dropped. By hand: delete the "
                f"rows, and what is named {self.pipeline} below {self.root / LEDGER_FOLDER}."
            )

    def drop(self, rows: int, *, dry_run: bool) -> tuple[str, ...]:
        """Drop the table with its ``rows``, and its folder; ``dry_run`` changes nothing.

        Raises:
            SinkUnavailableError: it cannot be done just now.
        """
        if not self.root.exists():
            return ()
        try:
            if not dry_run:
                self._drop_table()
                remove_folder(self.root, first=self.log_folder, last=LEDGER_FOLDER)
        except OSError as error:
            raise self.explain(error) from error
        return (f"the folder {self.root}: {rows:,} rows, and the ledger",)

    def _ledgers(self) -> list[str]:
        """The pipelines that have a ledger in this table."""
        return sorted(folders_in(self.root / LEDGER_FOLDER))

    def refuse_shared_numbers(self) -> None:
        if len(names := self._ledgers()) > 1:
            named = ", ".join(names)
            raise RefusedError(f"the pipelines {named} share the table and number rows alike")

    def table_identity(self) -> Mapping[str, str]:
        return {"table": self._id_of(table)} if (table := self.open_table()) else {}

    def was_written(self) -> bool:
        """Also by the ledger's files: nobody tries for version 2 before version 1 is there."""
        return self.ledger.has_file_since(START_VERSION + 2) or super().was_written()

    def holds_rows(self, since: int) -> bool:
        """Not told where pipelines share the table: their rows are numbered alike."""
        return {*self._ledgers()} <= {self.pipeline} and super().holds_rows(since)

    @abstractmethod
    def _id_of(self, table: Handle) -> str:
        """Id that the format itself gives the table, for as long as it lives."""

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        table = self.open_table()
        if head := self.head_of(table):
            return self._publication(entry, staged, table, head)
        return FirstEntry(self, entry, staged)

    def has_landed(self, entry: LedgerEntry) -> bool:
        return self.has_landed_below(self.head_of(self.open_table()), entry)

    def has_landed_below(self, head: LedgerFile | None, entry: LedgerEntry) -> bool:
        """:meth:`has_landed`, of the ledger that ends in ``head``."""
        return has_landed(entry, lambda version: self._entry_below(head, version))

    def _entry_below(self, head: LedgerFile | None, version: int) -> LedgerEntry | None:
        file = self.ledger.at(head, version) if head else None
        return file.entry if file else None

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, OSError):
            return SinkUnavailableError(
                f"{self.root} cannot be written: {error}. Nothing was published."
            )
        return super().explain(error)

    def newest_head(self) -> LedgerFile | None:
        """The ledger's head just now. Nothing is committed, or pruned, by what this says."""
        return self.head_of(self.open_table())

    def head_of(self, table: Handle | None) -> LedgerFile | None:
        """The ledger's head by this version of the table; without one, the first entry if any."""
        pointer = self._pointer(table) if table is not None else None
        return self.ledger.get(pointer) if pointer else self.ledger.first()

    def close(self) -> None:
        """Nothing is held open."""

    # What a format fills in.

    #: The folder without which no reader takes the rest for a table.
    log_folder: ClassVar[str]

    #: What the format's library does not take as it is in the name of a folder.
    misread: ClassVar[re.Pattern[str]]

    @property
    @abstractmethod
    def folder_field(self) -> str:
        """The sink's field that says where the table's folder is."""

    def _drop_table(self) -> None:
        """Make whoever else keeps the table's name forget it; there may be nobody.

        Raises:
            SinkUnavailableError: it does not answer.
        """

    @abstractmethod
    def open_table(self) -> Handle | None:
        """The table as it is now, None where there is none.

        Raises:
            SinkUnavailableError: it cannot be read just now.
        """

    @abstractmethod
    def _pointer(self, table: Handle) -> Pointer | None:
        """Pointer to the ledger's head that this version of the table holds, None if there is
        none.
        """

    @abstractmethod
    def _publication(
        self, entry: LedgerEntry, staged: StagedOutput, table: Handle | None, head: LedgerFile
    ) -> Publication:
        """A publication on ``table``, whose ledger ends in ``head``."""

    @abstractmethod
    def _refuse_going_back(self, entry: LedgerEntry, table: Handle | None) -> None:
        """Raise RefusedError where the format cannot take rows back; changes nothing."""

    def _side_folders(self) -> tuple[Place, ...]:
        """Folders of files named by pointer, bucketed as the ledger's are; see ``lost``."""
        return ()


class FirstEntry(Publication):
    """A ledger's first entry has no rows and comes before the table: it is written under another
    name (5) and linked to its own (6), which can be taken once.
    """

    session: LakeSession[Any]
    _aside: Place | None = None

    def __init__(self, session: LakeSession[Any], entry: LedgerEntry, staged: StagedOutput) -> None:
        super().__init__(session, entry, staged)
        self.at = Pointer.new(entry.version)

    def has_landed(self) -> bool:
        return self.session.has_landed_below(None, self.entry)

    def write(self) -> None:
        """There are no rows."""

    def enter(self) -> None:
        stamped = replace(self.entry, committed_at=datetime.now(UTC))
        self.session.ledger.begin(self.at)
        self._aside = self.session.ledger.write_first_aside(stamped, self.at)

    def commit(self) -> None:
        assert self._aside is not None, "entered before it is committed"
        path = self.session.ledger.path(FIRST)
        try:
            hard_link(self._aside, path)
        except (FileExistsError, FileNotFoundError) as error:
            # taken, perhaps by somebody who has tidied our file away too
            raise CommitConflictError("another run wrote the first entry") from error
        except OSError as error:
            raise SinkUnavailableError(
                f"the ledger cannot be kept in {self.session.ledger.folder}: {error.strerror}"
            ) from error

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        if self._aside is not None:
            with suppress(OSError):
                remove_all([self._aside])
                self.session.ledger.end(self.at)


#: Makes the prepared commit. Raises CommitConflictError: it did not land and never will;
#: RefusedError, DamagedError: the table never takes it, and it did not land; CommitUnknownError: it
#: may have.
Commit = Callable[[], None]


class LakePublication(Publication, Generic[Handle]):
    """One try, on one handle: the one on which the head was compared is the one whose commit is
    refused if the table moved on.
    """

    session: LakeSession[Handle]
    _commit: Commit

    def __init__(
        self,
        session: LakeSession[Handle],
        entry: LedgerEntry,
        staged: StagedOutput,
        table: Handle | None,
        head: LedgerFile,
    ) -> None:
        super().__init__(session, entry, staged)
        self.table = table
        self.head = head
        #: under which the ledger keeps the entry if this try lands
        self.at = Pointer.new(entry.version)
        #: files made by this try, to which nothing refers yet
        self.written: list[Place] = []
        #: whether it has begun, and what became of it is known
        self._is_known = False

    def has_landed(self) -> bool:
        return self.session.has_landed_below(self.head, self.entry)

    def write(self) -> None:
        self.session.ledger.begin(self.at)
        self._is_known = True
        self._commit = self._prepare()
        self._keep_letters()

    def _keep_letters(self) -> None:
        letters = self.staged.dead_letters
        if self._has_dead_letters and letters is not None:
            self.written.append(self.session.dead_letters.path(self.at))
            self.session.dead_letters.write(self.at, letters)

    def enter(self) -> None:
        ledger = self.session.ledger
        stamped = replace(self.entry, committed_at=datetime.now(UTC))
        self.written.append(ledger.path(self.at))
        ledger.write(ledger.child(stamped, self.at, self.head, dead_letters=self._has_dead_letters))

    def commit(self) -> None:
        # from here on they may be the table's, whatever happens
        written, self.written, self._is_known = self.written, [], False
        try:
            self._commit()
        except (CommitConflictError, RefusedError, DamagedError):
            # by its own, perhaps: a transport that repeats a request is refused by what it made
            has_landed, self._is_known = self.landed() is not None, True
            if has_landed:
                return
            # this token can never land now, and nobody else knows it
            self.written = written
            raise
        self._is_known = True

    def close(self, error: BaseException | None) -> None:
        """Removes what nothing will ever refer to. Interrupted, it leaves that to ``recover``, as
        a killed one does.
        """
        if error is None or isinstance(error, Exception):
            with suppress(OSError):
                remove_all(self.written)
                if self._is_known:
                    self.session.ledger.end(self.at)

    def refuse_rolled_back(self, gone: TableRolledBackError | None) -> None:
        """Return if the table was not set back, or the entry goes back as far: this commit would
        hide that it was.
        """
        goes = self.entry.operation is Operation.REWIND
        if gone and not (goes and target_of(self.entry) <= gone.stands):
            raise gone

    def landed(self) -> Handle | None:
        """The table, if this very try is in its ledger, as it may be although it was refused.

        Raises:
            CommitUnknownError: the ledger cannot be read just now.
        """
        try:
            table = self.session.open_table()
            head = self.session.head_of(table)
        except SinkUnavailableError as error:
            raise CommitUnknownError(
                f"{self.session.root}: a commit was refused, perhaps after it had succeeded: "
                f"{error}"
            ) from error
        file = self.session.ledger.at(head, self.at.version) if head else None
        return table if file is not None and file.at == self.at else None

    @property
    def _has_dead_letters(self) -> bool:
        return self.staged.dead_letters is not None and self.staged.dead_letters.rows > 0

    @abstractmethod
    def _prepare(self) -> Commit:
        """Publish step 4: the one commit on :attr:`table`, ready to be made; it carries :attr:`at`.
        Adds to :attr:`written` each file it creates, before it does.

        Raises:
            RefusedError: the table will never take these rows.
        """


@dataclass(frozen=True)
class PublishedFiles:
    """Data files that a publication writes or links, in addition to those staged in the table:
    ``<folder>/<thousand>/<version>-<token>-<number>.parquet`` of one try to publish. Nothing
    refers to them until the commit that carries their pointer ``at``. Between folder and file there
    may be folders that say how a table is laid out.
    """

    folder: Place
    at: Pointer
    #: gets each file's path before it is made
    written: list[Place]

    def write(
        self, parts: Iterable[pa.Table], below: Callable[[pa.Table], str] = lambda _: ""
    ) -> list[Place]:
        """One new file for each of ``parts``, flushed, in the folder ``below``."""
        paths = []
        for part in parts:
            path = self.new(below(part))
            with new_file(path) as file:
                pq.write_table(part, file, compression="snappy")
            paths.append(path)
        self._flush(paths)
        return paths

    def link(self, paths: Sequence[Place], below: Sequence[str]) -> list[Place]:
        """A second name here for each of the staged files; see :func:`link_or_copy`."""
        linked = [self.new(folder) for folder in below]
        for source, path in zip(paths, linked, strict=True):
            link_or_copy(source, path)
        self._flush(linked)
        return linked

    def new(self, below: str = "") -> Place:
        """Return the path of one more file of this try."""
        folder = self.folder / self.at.bucket / below if below else self.folder / self.at.bucket
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.at.stem}-{len(self.written)}.parquet"
        self.written.append(path)
        return path

    def _flush(self, paths: Iterable[Place]) -> None:
        """Their names, and those of the folders that were made for them."""
        top, folders = self.folder / self.at.bucket, set[Place]()
        for path in paths:
            folder = path.parent
            while folder not in folders:
                folders.add(folder)
                folder = folder if folder == top else folder.parent
        for folder in folders:
            sync(folder)


def one_file_each(table: pa.Table, keys: list[pa.ChunkedArray]) -> Iterator[pa.Table]:
    """``table`` cut into the rows that share all ``keys``. Nothing for no rows."""
    if not table.num_rows:
        return
    if not keys:
        yield table
        return
    rows: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(column.to_pylist() for column in keys), strict=True)):
        rows.setdefault(key, []).append(index)
    for indices in rows.values():
        yield table.take(indices)
