"""Several Iceberg tables of one catalog, published by one transaction with one ledger entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table, Transaction

from eo_pipeline.errors import (
    ConfigError,
    LedgerDamagedError,
    SinkUnavailableError,
    TableRolledBackError,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.capabilities import Maintenance, TimeTravelView, Upkeep
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.iceberg.added import uri_of
from eo_pipeline.sinks.iceberg.catalogs import SharedCommits
from eo_pipeline.sinks.iceberg.config import IcebergSink
from eo_pipeline.sinks.iceberg.session import (
    IcebergPublication,
    IcebergSession,
    past_of_version,
    rolled_back,
)
from eo_pipeline.sinks.iceberg.table import (
    NO_ROWS,
    UNREACHABLE,
    commit_errors,
    make_namespace,
    manifests_of,
    new_properties,
    pointer_of,
    read_errors,
)
from eo_pipeline.sinks.lake.ledger import DeadLetterFiles, LedgerFile
from eo_pipeline.sinks.lake.session import Commit, FirstEntry
from eo_pipeline.sinks.session import Publication, goes_back
from eo_pipeline.sinks.tables import TablesSession, TablesSink
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.paths import Place

#: The table's property that names the catalog that was probed.
PROOF_PROPERTY = "eo.probed"
_PROBE_FOLDER = "_eo_probe"


def _apart(sink: IcebergSink, why: str) -> ConfigError:
    """The refusal of a catalog."""
    return ConfigError(
        f"sink.catalog: the catalog of {sink.table} {why}, and tables are filled together. Nothing "
        "was published. Use a catalog that is a database (properties: {type: sql, uri: ...}), a "
        "REST catalog that commits several tables at once (Nessie), another store, or a pipeline "
        "for each table."
    )


class LedgerSession(IcebergSession):
    """The ledger of several tables: a table without rows, whose commits are theirs."""

    def __init__(self, sink: IcebergSink, pipeline: str) -> None:
        super().__init__(sink, pipeline)
        self.members: dict[str, MemberSession] = {}
        #: the catalog of which a probe has shown nothing against it
        self._proven: str | None = None
        catalog = self.catalog
        if not isinstance(catalog, SharedCommits) or catalog.lacks:
            self.close()
            lacks = catalog.lacks if isinstance(catalog, SharedCommits) else ""
            raise _apart(sink, f"commits one table at a time{lacks}")

    @property
    def shared(self) -> SharedCommits:
        """The catalog."""
        assert isinstance(self.catalog, SharedCommits), "refused otherwise"
        return self.catalog

    def proven(self, table: Table | None) -> Table | None:
        """Return the ledger's ``table``, once the catalog was probed by which its commits come;
        where it is absent it is made then, so that it names the catalog.

        Raises:
            ConfigError: the catalog does not commit several tables together.
        """
        name = self.shared.unproven
        if name in (self._proven, table.properties.get(PROOF_PROPERTY) if table else None):
            return table
        try:
            make_namespace(self.catalog, self.sink)
            fault = self.shared.probe(self.sink.identifier, self.root / _PROBE_FOLDER)
            if table is None and name is not None and not fault:
                properties = {**new_properties(()), PROOF_PROPERTY: name}
                with suppress(TableAlreadyExistsError):  # another run has just made it
                    place = uri_of(self.root)
                    self.shared.new_table(self.sink.identifier, NO_ROWS, place, properties)
        except (NoSuchTableError, CommitFailedException, *UNREACHABLE) as error:
            raise SinkUnavailableError(
                f"{self.sink.table}: the catalog could not be probed for commits of several "
                f"tables, perhaps because another run probes it too: {error}. Nothing was "
                "published; the next run probes it again."
            ) from error
        if fault:
            raise _apart(self.sink, f"has transactions of several tables in name only: {fault}")
        self._proven = name
        return table or self.open_table()

    def _side_folders(self) -> tuple[Place, ...]:
        folders = super()._side_folders()
        for member in self.members.values():
            folders += (member.inline_folder, member.dead_letters.folder)
        return folders

    def _letters(self) -> Sequence[DeadLetterFiles]:
        return (self.dead_letters, *(member.dead_letters for member in self.members.values()))


class MemberSession(IcebergSession):
    """One of several tables. Its own property names the last entry that changed it."""

    def __init__(self, name: str, sink: IcebergSink, together: LedgerSession) -> None:
        super().__init__(sink, together.pipeline, together.catalog)
        self._together = together
        self.ledger = together.ledger
        self.dead_letters = DeadLetterFiles(self.ledger, name)

    def head_of(self, table: Table | None) -> LedgerFile | None:  # noqa: ARG002
        return self._together.newest_head()

    def last(self, table: Table | None) -> LedgerFile | None:
        """The last entry that changed the table; None below the ledger's floor."""
        pointer = pointer_of(table, self.pipeline) if table is not None else None
        try:
            return self.ledger.get(pointer) if pointer else None
        except LedgerDamagedError:
            head = self.newest_head()
            if pointer is None or head is None or pointer.version >= head.entry.floor:
                raise
            return None

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:  # noqa: ARG002
        table = self.open_table()
        last = self.last(table)
        return rolled_back(table, last.entry) if table is not None and last else None

    def past(self, entry: LedgerEntry) -> TimeTravelView:
        with read_errors(self.sink.table):
            return past_of_version(self.open_table(), entry)

    def _ledgers(self) -> list[str]:
        return sorted({*super()._ledgers(), self.pipeline})


class IcebergTablesSession(TablesSession[MemberSession]):
    """A session for each table, all with one catalog, and one for the ledger."""

    publish_tries: ClassVar[int] = IcebergSession.publish_tries
    keeps_ledger = None

    def __init__(self, sink: TablesSink, pipeline: str) -> None:
        ledger_sink = sink.first.ledger_sink
        assert isinstance(ledger_sink, IcebergSink)
        self._ledger = LedgerSession(ledger_sink, pipeline)
        super().__init__(sink, pipeline)
        self._ledger.members = self.members

    def _member(self, name: str, sink: Sink) -> MemberSession:
        assert isinstance(sink, IcebergSink)
        return MemberSession(name, sink, self._ledger)

    @property
    def ledger(self) -> LedgerSession:  # type: ignore[override]  # it has a table of its own
        return self._ledger

    def close(self) -> None:
        self._ledger.close()

    def rolled_back(self, head: LedgerEntry | None) -> TableRolledBackError | None:
        return next(filter(None, (m.rolled_back(head) for m in self.members.values())), None)

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:
        """Each table, then that of the ledger."""
        with_rows = (member for name, member in self.members.items() if name != self.rest)
        for session in (*with_rows, self._ledger):
            for done in session.maintain(rules, dry_run=dry_run):
                yield replace(done, remark=f"{session.sink.table}: {done.remark}")

    def prune(self, *, dry_run: bool) -> int:
        return self._ledger.prune(dry_run=dry_run)

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """All tables, then the ledger: a second call drops what the first one left."""
        head = self.head()
        for member in self.members.values():
            member.refuse_shared()
        dropped: tuple[str, ...] = ()
        for name, member in self.members.items():
            rows = head.of_table(name).counts.rows_total if head else 0
            dropped += member.drop(rows, dry_run=dry_run)
        return dropped + self._ledger.reset(dry_run=dry_run)

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        table = self._ledger.proven(self._ledger.open_table())
        if head := self._ledger.head_of(table):
            return IcebergTablesPublication(self, entry, staged, table, head)
        return FirstEntry(self._ledger, entry, staged)


class _SharedPublication(IcebergPublication):
    """A try whose table may be made by the commit of all."""

    def _new_table(
        self, schema: pa.Schema, location: str, properties: Mapping[str, str]
    ) -> Transaction:
        catalog = self.session.catalog
        assert isinstance(catalog, SharedCommits), "refused otherwise"
        identifier = self.session.sink.identifier
        return catalog.new_table(identifier, schema, location, properties, self._lay_out)


class MemberPublication(_SharedPublication):
    """Changes of one try in one of the tables."""

    session: MemberSession

    def _rolled_back(self, table: Table) -> TableRolledBackError | None:
        last = self.session.last(table)
        return rolled_back(table, last.entry) if last else None


class IcebergTablesPublication(_SharedPublication):
    """One try, on the tables as they are now, under one pointer."""

    session: LedgerSession

    def __init__(
        self,
        together: IcebergTablesSession,
        entry: LedgerEntry,
        staged: StagedOutput,
        table: Table | None,
        head: LedgerFile,
    ) -> None:
        super().__init__(together.ledger, entry, StagedOutput(), table, head)
        self._parts = [
            self._part(member, entry.of_table(name), staged.tables.get(name, StagedOutput()))
            for name, member in together.members.items()
            if name in staged.tables or goes_back(entry)
        ]
        #: those whose table changes; dead letters alone make none
        self._changed = [
            part
            for part in self._parts
            if part.staged.rows is not None or (goes_back(entry) and part.table is not None)
        ]

    def _part(
        self, member: MemberSession, entry: LedgerEntry, staged: StagedOutput
    ) -> MemberPublication:
        part = MemberPublication(member, entry, staged, member.open_table(), self.head)
        part.at, part.written = self.at, self.written
        return part

    @property
    def _has_dead_letters(self) -> bool:
        return any(part._has_dead_letters for part in self._parts)

    def _keep_letters(self) -> None:
        for part in self._parts:
            part._keep_letters()

    def transaction(self) -> Transaction:
        transaction = super().transaction()
        if catalog := self.session.shared.unproven:
            transaction.set_properties({PROOF_PROPERTY: catalog})
        return transaction

    def _prepare(self) -> Commit:
        transactions = []
        for part in (*self._changed, self):
            transactions.append(part.transaction())
            self.written += manifests_of(transactions[-1], part.session.root)
        return partial(self._make_together, transactions)

    def _make_together(self, transactions: Sequence[Transaction]) -> None:
        with commit_errors(self.session.sink.table):
            self.session.shared.commit_together(transactions)
