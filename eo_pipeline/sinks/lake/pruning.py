"""What is below the floor of a lake's ledger: how its files go, and where dead letters are found
whose entries are gone.

The ledger's chain says which attempt holds a version, and whether its dead letters stand. So what
the chain does not name goes first, of the ledger's files and of the dead letters: of what is then
left below the floor every file counts, until an entry above it says otherwise. The next to go is
the ledger file right below the floor. As long as it is there the chain is followed down past it;
without it nobody follows the chain there any more, and the files further down may go in any order,
by whoever goes on after a kill.

Only entries that go are read, and O(log n) to find the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.places import Place, folders_in, names_in, remove_all, remove_empty_folders, sync
from eo_pipeline.sinks.lake.dead_letters import DeadLetterFiles
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFile, LedgerFiles, Pointer
from eo_pipeline.sinks.removal import goes_back, target_of


def below_floor(ledger: LedgerFiles, head: LedgerFile) -> int:
    """How many files of versions below the floor there are, but for the first one, which stays:
    that a pipeline has begun is told by it.
    """
    return sum(1 for _ in _below(ledger.folder, head.entry.floor))


def prune(ledger: LedgerFiles, letters: DeadLetterFiles, head: LedgerFile) -> None:
    """Remove the files of versions below the floor. Done again, after a kill or by two at once, it
    goes on with what is left.
    """
    floor = head.entry.floor
    if files := _kept_below(ledger, head):
        lowest, right_below = files[0].at.version, files[-1].at
        held, standing = {file.at for file in files}, {*_standing(letters, files).values()}
        reach(CrashPoint.PLANNED)
        kept = ((at, place) for at, place in _below(ledger.folder, floor) if at.version >= lowest)
        remove_all([place for at, place in kept if at not in held])
        remove_all([place for at, place in _below(letters.folder, floor) if at not in standing])
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
    """Whose dead letters stand, of the checkpoints from version ``since``, in their order."""
    above = [*ledger.chain(head, since)]
    if since >= head.entry.floor:
        found = _applied({}, above)
    else:
        found = _standing(letters, [*_kept_below(ledger, head), *above])
    return [at for number, at in found.items() if number >= since]


def _kept_below(ledger: LedgerFiles, head: LedgerFile) -> list[LedgerFile]:
    """The chain below the floor, oldest first, as far down as it is there; nothing once the file
    right below the floor is gone.
    """
    floor = ledger.at(head, head.entry.floor)
    found, at = list[LedgerFile](), floor.previous if floor else None
    while at is not None:
        try:
            file = ledger.get(at)
        except LedgerDamagedError:
            if ledger.path(at).is_file():
                raise
            break
        found.append(file)
        at = file.previous
    return found[::-1]


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
    """What stood ``before``, once these entries have come, oldest first."""
    found = dict(before)
    for file in files:
        entry = file.entry
        if entry.operation is Operation.REWIND:
            found = {n: at for n, at in found.items() if n <= target_of(entry)}
        number = target_of(entry) if entry.operation is Operation.REPLAY else entry.version
        if file.dead_letters:
            found[number] = file.at
        else:
            found.pop(number, None)
    return found


def _below(folder: Place, floor: int) -> Iterator[tuple[Pointer, Place]]:
    """The files in the ``folder``'s folders of thousands whose versions are below ``floor``."""
    buckets = (folder / name for name in folders_in(folder) if name.isdigit())
    for bucket in buckets:
        for name in names_in(bucket):
            at = Pointer.of_file(name)
            if at is not None and at.version < floor and at != FIRST:
                yield at, bucket / name
