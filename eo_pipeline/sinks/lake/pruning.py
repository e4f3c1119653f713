"""What is below the floor of a lake's ledger: how its files go, and where dead letters are found
whose entries are gone.

The ledger's chain says which attempt holds a version, and whether its dead letters stand. So what
the chain does not name goes first, of the ledger's files and of the dead letters: of what is then
left below the floor every file counts. The next to go is the ledger file right below the floor. As
long as it is there the chain is followed down past it; without it nobody follows the chain there
any more, and the files further down may go in any order, by whoever goes on after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.entry import Operation
from eo_pipeline.places import Place, folders_in, names_in, remove_all, remove_empty_folders, sync
from eo_pipeline.sinks.lake.dead_letters import DeadLetterFiles
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFile, LedgerFiles, Pointer
from eo_pipeline.sinks.removal import target_of


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
    files = _as_far_as_kept(ledger, head)
    if files[0].at.version < floor:
        held, standing = {file.at for file in files}, {at for at, _ in _standing(files)}
        since = files[0].at.version
        reach(CrashPoint.PLANNED)
        remove_all(_but(held, ledger.folder, since, floor))
        remove_all(_but(standing, letters.folder, since, floor))
        right_below = ledger.path(next(at for at in held if at.version == floor - 1))
        reach(CrashPoint.STAGED)
        remove_all([right_below])
        sync(right_below.parent)
        reach(CrashPoint.COMMITTED)
    remove_all([folder / name for _, folder, name in _below(ledger.folder, floor)])
    remove_empty_folders(ledger.folder)


def _but(kept: Set[Pointer], folder: Place, since: int, floor: int) -> list[Place]:
    """The files of versions from ``since`` to below ``floor`` that no pointer of ``kept`` names."""
    return [
        bucket / name
        for at, bucket, name in _below(folder, floor)
        if at.version >= since and at not in kept
    ]


def with_dead_letters(
    ledger: LedgerFiles, letters: DeadLetterFiles, head: LedgerFile, since: int
) -> list[Pointer]:
    """Whose dead letters stand, of the checkpoints from version ``since``, in their order."""
    if since >= head.entry.floor:
        files, older = list(ledger.chain(head, since)), list[Pointer]()
    else:
        files = _as_far_as_kept(ledger, head)
        older = [
            at for at, _, _ in _below(letters.folder, files[0].at.version) if at.version >= since
        ]
    return [*sorted(older), *(at for at, number in _standing(files) if number >= since)]


def _as_far_as_kept(ledger: LedgerFiles, head: LedgerFile) -> list[LedgerFile]:
    """The chain that ends in ``head``, oldest first, also below the floor."""
    found = [head]
    while previous := found[-1].previous:
        try:
            found.append(ledger.get(previous))
        except LedgerDamagedError:
            if previous.version >= head.entry.floor or ledger.path(previous).is_file():
                raise
            break
    return found[::-1]


def _standing(files: Iterable[LedgerFile]) -> Iterator[tuple[Pointer, int]]:
    """The files with dead letters that were not taken back, and the checkpoint's number of each."""
    found: dict[int, LedgerFile] = {}
    for file in files:
        entry = file.entry
        if entry.operation is Operation.REWIND:
            found = {n: each for n, each in found.items() if n <= target_of(entry)}
        number = target_of(entry) if entry.operation is Operation.REPLAY else entry.version
        found[number] = file
    return ((file.at, number) for number, file in found.items() if file.dead_letters)


def _below(folder: Place, floor: int) -> Iterator[tuple[Pointer, Place, str]]:
    """The files in the ``folder``'s folders of thousands whose versions are below ``floor``."""
    buckets = (folder / name for name in folders_in(folder) if name.isdigit())
    for bucket in buckets:
        for name in names_in(bucket):
            at = Pointer.of_file(name)
            if at is not None and at.version < floor and at != FIRST:
                yield at, bucket, name
