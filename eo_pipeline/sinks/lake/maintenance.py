"""A lake table kept in order: small files put together, what left it removed. The steps; a format
fills in what is its own.

The old files give way to a new one in a commit that is refused if anybody committed since the
table was looked at, as the ledger's are. Then it is looked at again, and the same is tried, if the
old files are still the table's; so it goes on beside runs, and a rewind or a replay comes first.
The ledger's head stays where it is, and a run that meets such a commit tries again on top of it.

Each maintenance that changes something takes a **turn**, a number that the table keeps: from then
on no older one commits, a process that was asleep for days for example, whose files may go.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import ClassVar, Generic, TypeVar

import tenacity

from eo_pipeline._lazy import pa, pq
from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import DamagedError, EoPipelineError, SinkUnavailableError, UnexpectedError
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from eo_pipeline.sinks.session import CommitConflictError
from eo_pipeline.storage.paths import Place, new_file, remove_all

#: What has this part of the wanted size is not small (Iceberg's ``min-file-size-bytes``).
LARGE_ENOUGH = 0.75

#: So few small files are left for the next time, unless together they are large enough (Iceberg's
#: ``min-input-files``): else each maintenance would write the newest file once more.
FILES_MIN = 5


@dataclass(frozen=True)
class DataFile:
    """One file of the table: the partition it belongs to, in words, and its first checkpoint, if it
    has any; ``rows`` None if the table does not tell. Not ``movable``: it stays as it is. What
    takes its place lies below ``folder``.
    """

    path: str
    size: int
    rows: int | None
    partition: tuple[tuple[str, str | None], ...] = ()
    first: int | None = None
    movable: bool = True
    folder: str = ""


def bins(files: Iterable[DataFile], target: int) -> list[list[DataFile]]:
    """Groups of at least two files, of one partition each, that become one file of about ``target``
    bytes; the oldest checkpoints first.
    """
    small = [file for file in files if file.movable and file.size < target * LARGE_ENOUGH]
    ordered = sorted(small, key=lambda f: (_text(f.partition), _first(f), f.path))
    of_partitions = groupby(ordered, key=lambda f: _text(f.partition))
    return [group for _, of_one in of_partitions for group in _cut(of_one, target)]


def _cut(files: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and size + file.size > target:
            yield from _worth_it(group, target)
            group, size = [], 0
        group.append(file)
        size += file.size
    yield from _worth_it(group, target)


def _worth_it(files: list[DataFile], target: int) -> Iterator[list[DataFile]]:
    large = sum(file.size for file in files) >= target * LARGE_ENOUGH
    if len(files) >= (2 if large else FILES_MIN):
        yield files


def _text(partition: tuple[tuple[str, str | None], ...]) -> str:
    return repr(partition)


def _first(file: DataFile) -> int:
    return -1 if file.first is None else file.first


#: A format's handle on one version of its table, and a new file with the rows of several old ones.
Handle = TypeVar("Handle")
Made = TypeVar("Made")

#: Below a pipeline's folder of rows: files that others were put together into, by turn.
COMPACTED_FOLDER = "compacted"

#: Files put together between two commits: a killed maintenance has done what it committed.
_FILES_PER_COMMIT = 16

#: How often a commit is tried when others commit meanwhile, and the longest wait between, seconds.
_TRIES, _WAIT_MAX = 30, 1.0


#: What is said of a value, or of the code; Arrow's errors of these kinds among them.
_LASTING = (ValueError, TypeError, LookupError, AttributeError, NotImplementedError, AssertionError)


class LakeMaintenance(ABC, Generic[Handle, Made]):
    """One maintenance of the table in ``root`` by the session of ``pipeline``. ``open_table`` looks
    anew at every call.
    """

    #: Below :attr:`root`: where rows lie, in a folder for each pipeline.
    rows_folder: ClassVar[str]

    #: What the format's library raises for a commit that somebody else's came before.
    overtaken: ClassVar[type[Exception] | tuple[type[Exception], ...]]

    def __init__(
        self,
        root: Place,
        pipeline: str,
        rules: Maintenance,
        open_table: Callable[[], Handle | None],
    ) -> None:
        self.root, self.pipeline, self.rules = root, pipeline, rules
        self.open_table = open_table
        #: 0 before this maintenance has one
        self.turn = 0

    def work(self, *, dry_run: bool) -> Iterator[Upkeep]:
        """See ``Maintained.maintain``."""
        table = self.open_table()
        if table is None:
            yield Upkeep("none", "there is no table yet")
            return
        files = self.files(table)
        wanted, reason = self._wanted(table, files)
        unused = self.unused(table, self.turn_of(table) + 1)
        if dry_run or not (wanted or unused or self.is_long(table)):
            yield _compacted(files, wanted, reason)
            yield _removed(unused, "would be removed")
            return
        self.turn = self._tried(self._take_turn)
        reach(CrashPoint.PLANNED)
        yield from self.before()
        yield self._remove()
        yield self._compact()
        yield from self.after()

    def _wanted(
        self, table: Handle, files: Sequence[DataFile]
    ) -> tuple[list[list[DataFile]], str | None]:
        """Return the table's ``files`` to compact; or the reason why none are."""
        reason = self.reason_not_to(table)
        return ([] if reason else self.groups(files)), reason

    def _take_turn(self, table: Handle) -> int:
        turn = self.turn_of(table) + 1
        self.take_turn(table, turn)
        return turn

    def _tried(self, commit: Callable[[Handle], int]) -> int:
        """``commit`` on a handle of the newest version, again and again while others are faster."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(CommitConflictError),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random_exponential(0.01, _WAIT_MAX),
            reraise=True,
        )
        try:
            return again(self._try, commit)
        except CommitConflictError as error:
            raise SinkUnavailableError(
                f"{self.root}: gave up after {_TRIES} conflicting commits: {error}. Completed "
                "steps of the maintenance stay; the next one resumes."
            ) from error

    def _try(self, commit: Callable[[Handle], int]) -> int:
        try:
            return commit(self.table())
        except self.overtaken as error:
            raise CommitConflictError(str(error)) from error

    def table(self) -> Handle:
        """The table as it is now, if this maintenance is still the newest.

        Raises:
            SinkUnavailableError: it is not, or the table is gone.
        """
        table = self.open_table()
        if table is None:
            raise SinkUnavailableError(f"{self.root}: the table is gone")
        if self.turn and self.turn_of(table) != self.turn:
            raise SinkUnavailableError(
                f"{self.root}: another maintenance of the table has begun, and this one stops. "
                "What it did stays."
            )
        return table

    def _compact(self) -> Upkeep:
        begun, table = time.monotonic(), self.table()
        # by this handle: its files are there, also those that a run takes out meanwhile
        files = self.files(table)
        wanted, reason = self._wanted(table, files)
        before, done = _figures(files), 0
        folder = self.root / self.rows_folder / self.pipeline / COMPACTED_FOLDER
        for start in range(0, len(wanted), _FILES_PER_COMMIT):
            groups = wanted[start : start + _FILES_PER_COMMIT]
            results = self.write_together(table, groups, folder / f"{self.turn:06d}")
            reach(CrashPoint.ROWS_SENT)
            done += self._tried(partial(self.put_in_place, results=results))
            reach(CrashPoint.COMMITTED)
        after = _figures(self.files(self.table()))
        left = len(wanted) - done
        message = f"put files together into {done}" if done else _nothing(reason)
        message += f"; {left} left to the next time, since runs changed them" if left else ""
        return Upkeep("compact", message, *changed(before, after), time.monotonic() - begun)

    def _remove(self) -> Upkeep:
        begun, table = time.monotonic(), self.table()
        unused = self.unused(table, self.turn)
        reach(CrashPoint.STAGED)
        remove_all(self.root / path for path, _ in unused)
        return replace(_removed(unused, "removed"), seconds=time.monotonic() - begun)

    # What a format fills in.

    def is_long(self, table: Handle) -> bool:  # noqa: ARG002
        """Return whether there is more to do than compaction and removal."""
        return False

    def before(self) -> Iterator[Upkeep]:
        """Do the first step, once the turn is taken."""
        return iter(())

    def after(self) -> Iterator[Upkeep]:
        """Do the last step."""
        return iter(())

    def groups(self, files: Sequence[DataFile]) -> list[list[DataFile]]:
        """Of ``files`` those that become one each."""
        return bins(files, self.rules.target_bytes)

    @abstractmethod
    def reason_not_to(self, table: Handle) -> str | None:
        """Reason why no files of this table are compacted; None if they are."""

    @abstractmethod
    def files(self, table: Handle) -> list[DataFile]:
        """Those of this version."""

    @abstractmethod
    def turn_of(self, table: Handle) -> int:
        """The newest one; 0 if there was none."""

    @abstractmethod
    def take_turn(self, table: Handle, turn: int) -> None:
        """In a commit on this handle. Raises ``overtaken``, too."""

    @abstractmethod
    def unused(self, table: Handle, turn: int) -> list[tuple[str, int]]:
        """Names below :attr:`root`, and bytes, of files that nothing refers to and nobody may still
        commit, now that no maintenance before ``turn`` does.
        """

    @abstractmethod
    def write_together(
        self, table: Handle, groups: Sequence[Sequence[DataFile]], folder: Place
    ) -> list[Made]:
        """For each of ``groups`` a new file in ``folder``, flushed; nothing refers to it yet."""

    @abstractmethod
    def put_in_place(self, table: Handle, results: Sequence[Made]) -> int:
        """In one commit on this handle, as far as the old files are all still the table's, or that
        was done by an earlier try. How many. Raises ``overtaken``, too.
        """


def stopped(root: Place, error: Exception, *, lasts: bool = False) -> EoPipelineError:
    """Translate an error that maintenance of the table in ``root`` met. It ``lasts`` if the next
    one would meet it too, as it would an error of Python or Arrow about a value or its type.
    """
    message = (
        f"{root}: maintenance stopped: {type(error).__name__}: {error}. What it did before stays, "
        "no row was changed"
    )
    if lasts or isinstance(error, _LASTING):
        return UnexpectedError(
            f"{message}, and the next one will stop there too. Runs go on without it. Please "
            "report it, with this text."
        )
    return SinkUnavailableError(f"{message}, and the next one goes on.")


def changed(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int, int, int]:
    """Files and bytes, before and after, in the order of an :class:`Upkeep`."""
    return before[0], after[0], before[1], after[1]


def _figures(files: Sequence[DataFile]) -> tuple[int, int]:
    return len(files), sum(file.size for file in files)


def _nothing(reason: str | None) -> str:
    return f"nothing is put together: {reason}" if reason else "no small files to put together"


def _compacted(
    files: Sequence[DataFile], wanted: Sequence[list[DataFile]], reason: str | None
) -> Upkeep:
    """Describe the compaction that would be done; the size of the new files is not known."""
    count, size = _figures(files)
    less = sum(len(group) - 1 for group in wanted)
    message = f"would put {less + len(wanted)} files together" if wanted else _nothing(reason)
    return Upkeep("compact", message, count, count - less, size, size)


def _removed(unused: Sequence[tuple[str, int]], message: str) -> Upkeep:
    size = sum(size for _, size in unused)
    return Upkeep("remove", message if unused else "no file is to go", len(unused), 0, size, 0)


#: Bytes of rows in one row group: what is held in memory, and what a reader reads at least.
_ROW_GROUP_BYTES = 64 * 1024 * 1024


def write_batches(place: Place, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """The new file ``place``, flushed; in bounded memory."""
    with new_file(place) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in _row_groups(batches, schema):
            writer.write_table(part, row_group_size=max(part.num_rows, 1))


def refuse_other_count(place: Place, files: Sequence[DataFile], rows: int) -> None:
    """Return if ``place``, with ``rows`` rows, can hold all of ``files``.

    Raises:
        DamagedError: the table says that these have more, or fewer.
    """
    counts = [file.rows for file in files]
    if None in counts or sum(count for count in counts if count) == rows:
        return
    raise DamagedError(
        f"{place} was to hold the rows of {len(files)} files, as many as the table says, and holds "
        f"{rows:,}. Nothing was changed. `eo audit` tells which checkpoints differ."
    )


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        # those of two files may have two forms of one type
        held.append(pa.Table.from_batches([batch]).cast(schema))
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
