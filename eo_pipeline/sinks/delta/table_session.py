"""What one pipeline's session knows of its Delta table, opened or not, and tells of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from deltalake.transaction import AddAction

from eo_pipeline.arrow import pa
from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import DamagedError, TableRolledBackError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.delta.config import ROWS_FOLDER, DeltaSink
from eo_pipeline.sinks.delta.damage import damage
from eo_pipeline.sinks.delta.described import Described, DescribedTables
from eo_pipeline.sinks.delta.log import LOG_FOLDER
from eo_pipeline.sinks.delta.newest import Newest
from eo_pipeline.sinks.delta.own import OwnCommit, OwnCommits, told_of
from eo_pipeline.sinks.delta.restore import NotRestorableError, Restore
from eo_pipeline.sinks.delta.rows import AddActions
from eo_pipeline.sinks.delta.set_back import set_back
from eo_pipeline.sinks.delta.store import Snapshot
from eo_pipeline.sinks.lake.ledger import LedgerFile, Pointer
from eo_pipeline.sinks.lake.rows import PublishedFiles
from eo_pipeline.sinks.lake.session import LakeSession
from eo_pipeline.staging.rows import StagedTable

#: Below a pipeline's folder of rows: files made by publishing.
_PUBLISHED_FOLDER = "published"


class DeltaTableSession(LakeSession[Snapshot]):
    """The part of a session that its publications use."""

    log_folder = LOG_FOLDER
    # decoded a second time; taken for a slash; refused
    misread = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
    folder_field = "path"

    def __init__(self, sink: DeltaSink, pipeline: str) -> None:
        super().__init__(pipeline, sink.root)
        self.sink = sink
        self.uri = str(sink.root)
        told = dict(sink.root.bucket.delta) if isinstance(sink.root, BucketPath) else {}
        self.options = told | {k: v.get_secret_value() for k, v in sink.storage_options.items()}
        log_folder = sink.root / self.log_folder
        self._newest = Newest(log_folder)
        # a bucket would be asked for one name after the other: delta-rs lists them in one request
        self._own = OwnCommits(log_folder, pipeline) if isinstance(log_folder, Path) else None
        self._described = DescribedTables(self.ledger.folder)
        self.published_folder = sink.root / ROWS_FOLDER / pipeline / _PUBLISHED_FOLDER
        own = self._own_commit()
        fits = own is not None and own.partition_by == sink.partition_by
        if not fits and (table := self.open_table()):
            table.described.check(sink.partition_by)

    def newest_head(self) -> LedgerFile | None:
        own = self._own_commit()
        return self.ledger.get(own.pointer) if own else super().newest_head()

    def table_identity(self) -> Mapping[str, str]:
        own = self._own_commit()
        return {"table": own.table} if own else super().table_identity()

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:
        if head is None or self._own_commit():
            return None
        table = self.open_table()
        return set_back(table, head) if table else None

    def _own_commit(self) -> OwnCommit | None:
        """What needs no open table; None: look at that."""
        return self._own.newest() if self._own else None

    def described(self) -> Described | None:
        """What the newest version is apart from its rows; ``None``: there is no table."""
        own = self._own_commit()
        if own and own.described and (kept := self._described.get(own.described)):
            return kept
        table = self.open_table()
        return table.described if table else None

    def told_of(self, described: Described, *, whole: bool = True) -> dict[str, str]:
        """What a commit says of its table, for the next look; and, if what was ``described`` is the
        ``whole`` of it behind this commit, for the next commit.
        """
        key = described.key if whole and self._own else None
        if key:
            self._described.keep(described)
        return told_of(described.identity, described.partition_by, key)

    def open_table(self) -> Snapshot | None:
        return self._newest.get(lambda: Snapshot.open(self.root, self.options, self.pipeline))

    def about_to_commit(self) -> None:
        """What is seen of the table from now on is looked at anew."""
        self._newest.forget()
        if self._own:
            self._own.forget()

    def damage(self) -> DamagedError | None:
        """What is wrong with the files of the newest version; ``None``: nothing."""
        table = self.open_table()
        upserts = self.sink.upsert_rule is not None
        return damage(table.table, self.root, upserts=upserts) if table else None

    def version_left_by_target(self, entry: LedgerEntry, table: Snapshot) -> int | None:
        """The version of the upserted table that a rewind restores; ``None``: there was no table.

        Raises:
            RefusedError: it cannot be had back.
        """
        head = self.head_of(table)
        if head is None:
            return None  # asked of a pipeline that never started: publishing is fenced
        try:
            return Restore(table, self.ledger, head, self.options).version(entry)
        except NotRestorableError as error:
            raise self.cannot_go_back(entry, f"the table is upserted, and {error}") from error

    def _id_of(self, table: Snapshot) -> str:
        return table.described.identity

    def _pointer(self, table: Snapshot) -> Pointer | None:
        return table.pointer

    def add_actions(
        self, described: Described | None, rows: StagedTable | None, files: PublishedFiles
    ) -> list[AddAction]:
        """What adds ``rows`` to the table; some become ``files`` first."""
        if rows is None:
            return []
        layout = tuple(described.partition_by) if described else self.sink.partition_by
        required = described.required if described else frozenset()
        known = described.following(rows.schema) if described else pa.schema([])
        return AddActions(self.root, layout, required, known).of(rows, files)
