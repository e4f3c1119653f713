"""One pipeline's ledger and rows in a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from deltalake.exceptions import DeltaError

from eo_pipeline.arrow import pa
from eo_pipeline.errors import (
    DamagedError,
    EoPipelineError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.places import Place
from eo_pipeline.sinks.delta.append import Appendable
from eo_pipeline.sinks.delta.past import past_of
from eo_pipeline.sinks.delta.publication import AppendPublication, DeltaPublication
from eo_pipeline.sinks.delta.restore import Restore
from eo_pipeline.sinks.delta.store import Snapshot, explained, is_of_files
from eo_pipeline.sinks.delta.table_session import DeltaTableSession
from eo_pipeline.sinks.lake.ledger import LedgerFile
from eo_pipeline.sinks.lake.upkeep import stopped
from eo_pipeline.sinks.maintenance import Maintenance, Upkeep
from eo_pipeline.sinks.past import Past, Selected
from eo_pipeline.sinks.protocol import Publication
from eo_pipeline.sinks.removal import goes_back
from eo_pipeline.staging.rows import StagedOutput


class DeltaSession(DeltaTableSession):
    """See :class:`LakeSession` for the steps.

    What is Delta's own: the head's version and token are application transactions of the commit
    that adds the files, and survive vacuum, checkpoints and clean-up of the log.
    """

    def never_null(self) -> frozenset[str]:
        """The table's columns that take no null; none while it is absent."""
        described = self.described()
        return described.required if described else frozenset()

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one version of the table, file by file.

        Raises:
            DamagedError: besides the usual ones; a file is gone, or was cut.
        """
        return self._readable(lambda table: table.lineage(since))

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:
        """Of one version of the table, file by file; raises as :meth:`lineage`."""
        return self._readable(lambda table: table.values(since))

    def _readable(
        self, read: Callable[[Snapshot], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        table = self.open_table()
        try:
            yield from read(table) if table else ()
        except (SinkUnavailableError, DamagedError) as error:
            raise self.damage() or error from error.__cause__

    def past(self, entry: LedgerEntry) -> Past:
        """By Delta's own versions, also of an upserted table."""
        table = self.open_table()
        head = self.head_of(table)
        if table is None or head is None:
            raise RefusedError("there is no table yet")
        return past_of(Restore(table, self.ledger, head, self.options), entry)

    def queries(self, selected: Selected) -> Mapping[str, str]:
        condition = selected.condition(CHECKPOINT_COLUMN)
        return {"Spark": f"SELECT * FROM delta.`{self.root}` WHERE {condition}"}

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        """See :mod:`eo_pipeline.sinks.delta.maintain`."""
        from eo_pipeline.sinks.delta.maintain import DeltaUpkeep

        with self._told_as(self._not_kept):
            table = self.open_table()
            if table is not None:
                table.described.check(self.sink.partition_by)
            if not dry_run:
                self.remove_lost()
            self.about_to_commit()
            opened = partial(Snapshot.open, self.root, self.options, self.pipeline)
            yield from DeltaUpkeep(self.root, self.pipeline, rules, opened).work(dry_run=dry_run)

    def _not_kept(self, error: Exception) -> EoPipelineError:
        lasts = isinstance(error, DeltaError) and not is_of_files(error)
        return self.damage() or stopped(self.root, error, lasts=lasts)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, DeltaError):
            return (is_of_files(error) and self.damage()) or explained(self.uri, error)
        if isinstance(error, OSError | pa.ArrowException):  # a file that is written anew is read
            return self.damage() or super().explain(error)
        return super().explain(error)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        """On the newest commit where rows are added behind one of our own, on an opened table
        where not: the first one, behind anybody else's, and where more is changed than that.
        """
        newest = self._appendable(entry, staged)
        if newest is None:
            return super().begin(entry, staged)
        return AppendPublication(self, entry, staged, newest)

    def _appendable(self, entry: LedgerEntry, staged: StagedOutput) -> Appendable | None:
        rows = staged.rows
        if self._own is None or goes_back(entry) or (rows is not None and self.sink.upsert_rule):
            return None
        own = self._own.newest()
        described = self._described.get(own.described) if own and own.described else None
        if own is None or described is None or not self._own.is_last(own.version):
            return None
        fits = rows is None or described.takes(rows.schema)
        return Appendable(self.root / self.log_folder, own, described) if fits else None

    def _publication(
        self, entry: LedgerEntry, staged: StagedOutput, table: Snapshot | None, head: LedgerFile
    ) -> DeltaPublication:
        return DeltaPublication(self, entry, staged, table, head)

    def _refuse_going_back(self, entry: LedgerEntry, table: Snapshot | None) -> None:
        if table is None:
            return
        table.refuse_removal()
        if self.sink.upsert_rule:
            self.version_left_by_target(entry, table)

    def _side_folders(self) -> tuple[Place, ...]:
        return (self.published_folder,)
