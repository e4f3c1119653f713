"""An Iceberg table kept in order; see :mod:`eo_pipeline.sinks.lake.maintenance`.

PyIceberg 0.12 expires snapshots, and has neither compaction nor the removal of orphans. Files give
way by its ``overwrite``, which is refused where one of the old files is not in the table any more,
and on a branch that has moved on.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.types import LongType

from eo_pipeline import _process
from eo_pipeline.errors import DamagedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from eo_pipeline.sinks.iceberg.added import NewFiles, append
from eo_pipeline.sinks.iceberg.config import ROWS_FOLDER
from eo_pipeline.sinks.iceberg.table import forget_old_snapshots, pointer_of, verifying
from eo_pipeline.sinks.iceberg.types import reads_as_it_stands
from eo_pipeline.sinks.lake.maintenance import (
    COMPACTED_FOLDER,
    DataFile,
    LakeMaintenance,
    refuse_other_count,
    write_batches,
)
from eo_pipeline.storage.paths import (
    Found,
    Place,
    RemotePath,
    files_below,
    modified_at,
    relative_name,
    remove_all,
    size_of,
)

#: What nobody ever committed is as old as this, in seconds: Iceberg's ``remove_orphan_files``.
_ORPHANS_KEPT_S = 3 * 24 * 3600

#: Requests at a time.
_AT_ONCE = 16

_FOLDERS = ("data", "metadata")
#: Manifests and lists of them. The table's metadata itself goes by its own settings.
_OURS_IN_METADATA = re.compile(r"metadata/.*\.avro")
_OF_ATTEMPT = re.compile(rf"{ROWS_FOLDER}/([^/]+)/(?:inline/\d+/)?(\d+)-")
_OF_TURN = re.compile(rf"{ROWS_FOLDER}/[^/]+/{COMPACTED_FOLDER}/(\d+)/")


def unused_files(root: Place, table: Table, oldest: float, turn: int) -> list[tuple[str, int]]:
    """Names below ``root``, and bytes.

    Args:
        oldest: seconds since 1970; younger files stay.
        turn: maintenance before this one commits no more.
    """
    listed = [file for folder in _FOLDERS for file in files_below(root / folder)]
    named = {relative_name(file.place, root): file for file in listed}
    free = named.keys() - {*_used(root, table)}
    candidates = {name: named[name] for name in free if _may_go(table, name, turn)}
    ages = zip(candidates, _process.each(_modified, [*candidates.values()]), strict=True)
    return [
        (name, candidates[name].size)
        for name, modified in sorted(ages)
        if modified is not None and modified < _limit(name, oldest)
    ]


def _modified(file: Found) -> float | None:
    return modified_at(file.place)


def _limit(name: str, oldest: float) -> float:
    """Rows of runs are known by their version: they left the table. What else there is may have
    been written by somebody for a commit of his own.
    """
    match = _OF_ATTEMPT.match(name)
    return oldest if match else min(oldest, time.time() - _ORPHANS_KEPT_S)


def _used(root: Place, table: Table) -> Iterator[str]:
    """Whatever any snapshot refers to, as names below ``root``."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lists = pool.map(lambda s: (s, s.manifests(table.io)), table.metadata.snapshots)
        manifests: dict[str, ManifestFile] = {}
        for snapshot, manifest_list in lists:
            yield _below(root, snapshot.manifest_list)
            manifests |= {manifest.manifest_path: manifest for manifest in manifest_list}
        yield from (_below(root, path) for path in manifests)
        entries = pool.map(lambda m: m.fetch_manifest_entry(table.io), manifests.values())
        for found_entries in entries:
            yield from (_below(root, entry.data_file.file_path) for entry in found_entries)


def _below(root: Place, uri: str) -> str:
    """The name below ``root``; what lies elsewhere keeps its own."""
    url = urlsplit(uri)
    if isinstance(root, RemotePath):
        return f"{url.netloc}{url.path}".removeprefix(f"{root.bucket.name}/{root.key}/")
    path = uri.removeprefix("file://")
    return path.removeprefix(f"{root}/")


def _may_go(table: Table, name: str, turn: int) -> bool:
    """Not what a run, or another maintenance, may still make the table's."""
    if match := _OF_ATTEMPT.match(name):
        head = pointer_of(table, match[1])
        return head is not None and int(match[2]) <= head.version
    if match := _OF_TURN.match(name):
        return int(match[1]) < turn
    return not name.startswith("metadata/") or _OURS_IN_METADATA.fullmatch(name) is not None


#: The table's property with the newest turn; no pipeline's head is named so. And, in a snapshot's
#: summary, what tells a commit of maintenance, and which.
TURN = "eo.turn"
MAINTENANCE = "eo.maintenance"

#: A table of this format keeps an identity of each row, which a file written anew loses.
_ROW_IDENTITIES = 3


@dataclass(frozen=True)
class Compacted:
    """A new file, and the names of the old ones, as the table has them."""

    file: IcebergFile
    old: tuple[str, ...]


class IcebergUpkeep(LakeMaintenance[Table, Compacted]):
    """The turn is a property of the table."""

    rows_folder = ROWS_FOLDER
    overtaken = (CommitFailedException, ValidationException)

    def __init__(
        self,
        root: Place,
        pipeline: str,
        rules: Maintenance,
        open_table: Callable[[], Table | None],
        catalog: Catalog,
    ) -> None:
        super().__init__(root, pipeline, rules, open_table)
        self._catalog = catalog

    def reason_not_to(self, table: Table) -> str | None:
        if table.format_version >= _ROW_IDENTITIES:
            return "the table keeps an identity of each row, which PyIceberg would lose"
        odd = [f.name for f in table.schema().as_arrow() if not reads_as_it_stands(f.type)]
        if odd:
            return f"PyIceberg does not read {', '.join(odd)} back as written in the files"
        return None

    def files(self, table: Table) -> list[DataFile]:
        return [_data_file(table, task) for task in table.scan().plan_files()]

    def turn_of(self, table: Table) -> int:
        return int(table.properties.get(TURN, "0"))

    def take_turn(self, table: Table, turn: int) -> None:
        def change(transaction: Transaction, summary: dict[str, str]) -> None:
            # a commit of properties alone is never refused
            append(transaction, [], summary)
            transaction.set_properties({TURN: str(turn)})

        self._commit(table, change)

    def is_long(self, table: Table) -> bool:
        return bool(self._expired(table))

    def before(self) -> Iterator[Upkeep]:
        """Snapshots expire first, so that what only they had can be removed."""
        begun, table = time.monotonic(), self.table()
        count = len(table.metadata.snapshots)
        if self._expired(table):
            self._tried(self._expire)
        left = len(self.table().metadata.snapshots)
        message = f"{count - left} of {count} snapshots expired"
        yield Upkeep("expire", message, seconds=time.monotonic() - begun)

    def _expired(self, table: Table) -> list[int]:
        """Snapshots older than ``keep``; never those of a branch or a tag."""
        kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
        oldest = self._oldest().timestamp() * 1000
        old = [snapshot for snapshot in table.metadata.snapshots if snapshot.timestamp_ms < oldest]
        return [snapshot.snapshot_id for snapshot in old if snapshot.snapshot_id not in kept]

    def _oldest(self) -> datetime:
        return datetime.now(UTC) - self.rules.kept_for

    def _expire(self, table: Table) -> int:
        # by_ids() applies all updates anew for each of them
        table.maintenance.expire_snapshots().older_than(self._oldest()).commit()
        return 0

    def unused(self, table: Table, turn: int) -> list[tuple[str, int]]:
        return unused_files(self.root, table, self._oldest().timestamp(), turn)

    def write_together(
        self, table: Table, groups: Sequence[Sequence[DataFile]], folder: Place
    ) -> list[Compacted]:
        tasks = {task.file.file_path: task for task in table.scan().plan_files()}
        folder.mkdir(parents=True, exist_ok=True)
        places = [folder / f"{uuid.uuid4().hex}.parquet" for _ in groups]
        try:
            return [
                self._one(table, [tasks[file.path] for file in files], files, place)
                for files, place in zip(groups, places, strict=True)
            ]
        except Exception:
            remove_all(places)  # nothing refers to them
            raise

    def _one(
        self, table: Table, tasks: list[FileScanTask], files: Sequence[DataFile], place: Place
    ) -> Compacted:
        schema = table.schema()
        scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
        write_batches(place, scan.to_record_batches(tasks), schema.as_arrow())
        data_file = NewFiles(table.metadata).added(place).file
        refuse_other_count(place, files, data_file.record_count)
        if data_file.partition != tasks[0].file.partition or size_of(place) is None:
            raise DamagedError(
                f"{place} would be in another partition than the files it was made of. Nothing was "
                "changed."
            )
        return Compacted(data_file, tuple(file.path for file in files))

    def put_in_place(self, table: Table, results: Sequence[Compacted]) -> int:
        held = {task.file.file_path: task for task in table.scan().plan_files()}
        landed = [compacted for compacted in results if compacted.file.file_path in held]
        # rows that were deleted meanwhile by a file of deletions would be back in the new file
        plain = {path for path, task in held.items() if not task.delete_files}
        fit = [compacted for compacted in results if plain.issuperset(compacted.old)]

        def change(transaction: Transaction, summary: dict[str, str]) -> None:
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as update:
                for compacted in fit:
                    update.append_data_file(compacted.file)
                    for path in compacted.old:
                        update.delete_data_file(held[path].file)

        if fit:
            self._commit(table, change)
        return len(landed) + len(fit)

    def _commit(self, table: Table, change: Callable[[Transaction, dict[str, str]], None]) -> None:
        """On this handle; a refusal by the catalog is believed once it is not our own commit that
        came first: see ``verifying``.
        """
        mine = uuid.uuid4().hex
        forget_old_snapshots(table)
        table.catalog = verifying(self._catalog, lambda: self._landed(mine))
        transaction = table.transaction()
        change(transaction, {MAINTENANCE: mine})
        transaction.commit_transaction()

    def _landed(self, mine: str) -> Table | None:
        table = self.open_table()
        snapshots = table.metadata.snapshots if table is not None else []
        summaries = [
            snapshot.summary.additional_properties for snapshot in snapshots if snapshot.summary
        ]
        return table if any(summary.get(MAINTENANCE) == mine for summary in summaries) else None


def _data_file(table: Table, task: FileScanTask) -> DataFile:
    file, schema = task.file, table.schema()
    numbered = CHECKPOINT_COLUMN in schema.column_names
    field = schema.find_field(CHECKPOINT_COLUMN).field_id if numbered else -1
    lowest = (file.lower_bounds or {}).get(field)
    return DataFile(
        path=file.file_path,
        size=file.file_size_in_bytes,
        rows=file.record_count,
        partition=(("partition", repr(file.partition)),),
        first=int(from_bytes(LongType(), lowest)) if lowest else None,
        movable=not task.delete_files and file.spec_id == table.metadata.default_spec_id,
    )
