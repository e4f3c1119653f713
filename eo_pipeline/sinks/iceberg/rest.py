"""REST catalogs: their connections, and one commit for several tables."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any, cast

import pyarrow as pa
from pyiceberg.catalog.rest import (
    _RETRY_ARGS,
    API_PREFIX,
    DEFAULT_ENDPOINTS,
    VIEW_ENDPOINTS,
    Endpoint,
    HttpMethod,
    RestCatalog,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import (
    CommitTableRequest,
    CommitTableResponse,
    Namespace,
    Table,
    TableIdentifier,
    TableProperties,
    Transaction,
)
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from requests import HTTPError, PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from tenacity import Retrying

from eo_pipeline.sinks.iceberg.added import append, uri_of
from eo_pipeline.sinks.iceberg.catalogs import SharedCommits, hand_over
from eo_pipeline.storage.paths import Place, remove_tree

#: Seconds for a connection; and for an answer, which a commit may take the catalog a while to give.
CONNECT_S, ANSWER_S = 10.0, 60.0

_TRANSACTIONS = "transactions/commit"
_COMMIT_TRANSACTION = Endpoint(http_method=HttpMethod.POST, path=f"{API_PREFIX}/{_TRANSACTIONS}")


class _PatientAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **more: Any) -> Response:
        if more.get("timeout") is None:
            more["timeout"] = (CONNECT_S, ANSWER_S)
        return super().send(request, *args, **more)


class PatientRestCatalog(RestCatalog, SharedCommits):
    """PyIceberg 0.12 sets no time-out: a connection that hangs would hang the run with it. Nothing
    is repeated here: whether a commit landed of which no answer came, the ledger says.
    """

    def _create_session(self) -> Session:
        session = super()._create_session()
        for prefix, adapter in list(session.adapters.items()):
            if type(adapter) is HTTPAdapter:  # one that signs requests has retries of its own
                session.mount(prefix, _PatientAdapter())
        return session

    @property
    def lacks(self) -> str:
        listed = self._supported_endpoints
        # a catalog that lists none has the specification's default ones, of which this is one
        if _COMMIT_TRANSACTION in listed or listed - VIEW_ENDPOINTS == DEFAULT_ENDPOINTS:
            return ""
        return f" (its GET /v1/config does not list {_COMMIT_TRANSACTION})"

    @property
    def unproven(self) -> str | None:
        """A digest of its address, which may hold a password."""
        return hashlib.sha256(self.url("").encode()).hexdigest()[:16]

    def probe(self, identifier: Identifier, folder: Place) -> str:
        return _Probe(self, identifier, folder).run()

    def commit_together(self, transactions: Sequence[Transaction]) -> None:
        """Commit all by one request. A table of others that has no snapshot gets one first: Nessie
        0.99 takes the requirement that there is none for no requirement.
        """
        bare = [t._table for t in transactions if t._table.metadata.current_snapshot_id is None]
        for table in bare:
            with self.load_table(table.name()).transaction() as first:
                append(first, [], {})
        if bare:
            raise CommitFailedException("a table had no snapshot to compare with")
        changes: list[dict[str, Any]] = []

        def take(
            table: Table,
            requirements: tuple[TableRequirement, ...],
            updates: tuple[TableUpdate, ...],
        ) -> CommitTableResponse:
            changes.append(_change(table, requirements, updates))
            return CommitTableResponse(
                metadata=table.metadata, metadata_location=table.metadata_location
            )

        for transaction in transactions:
            hand_over(transaction, self, take)
        # with a new token, if the one there is has expired
        again = Retrying(**cast("dict[str, Any]", _RETRY_ARGS))
        again(PatientRestCatalog._commit_transaction, self, changes)

    def _commit_transaction(self, changes: list[dict[str, Any]]) -> None:
        response = self._session.post(
            self.url(_TRANSACTIONS), data=json.dumps({"table-changes": changes}).encode()
        )
        try:
            response.raise_for_status()
        except HTTPError as error:
            refused = {404: NoSuchTableError, 409: CommitFailedException}
            unknown = dict.fromkeys((500, 502, 504), CommitStateUnknownException)
            _handle_non_200_response(error, {**refused, **unknown})

    def new_table(
        self,
        identifier: Identifier,
        schema: pa.Schema,
        location: str,
        properties: Mapping[str, str],
        lay_out: Callable[[Transaction], None] = lambda _: None,
    ) -> Transaction:
        """Make the table, empty and with a snapshot, and return a transaction on it. Its metadata
        is registered: a catalog that makes tables itself may choose their place (Nessie does).
        """
        columns = self._convert_schema_if_needed(schema)
        no_order, no_layout = UNSORTED_SORT_ORDER, UNPARTITIONED_PARTITION_SPEC
        metadata = new_table_metadata(columns, no_layout, no_order, location, {**properties})
        place = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        io = self._load_file_io(location=place)
        transaction = Table(identifier, metadata, place, io, self).transaction()
        lay_out(transaction)
        append(transaction, [], {})
        metadata = transaction.table_metadata
        ToOutputFile.table_metadata(metadata, io.new_output(place))
        try:
            table: Table = self.register_table(identifier, place)
        except TableAlreadyExistsError:
            for file in (place, *(snapshot.manifest_list for snapshot in metadata.snapshots)):
                with suppress(OSError):
                    io.delete(file)
            raise
        return table.transaction()


def _change(
    table: Table,
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> dict[str, Any]:
    """One table's part of the request."""
    *namespace, name = table.name()
    request = CommitTableRequest(
        identifier=TableIdentifier(namespace=Namespace(namespace), name=name),
        requirements=requirements,
        updates=updates,
    )
    change: dict[str, Any] = json.loads(request.model_dump_json())
    for update, serialized in zip(updates, change["updates"], strict=True):
        if isinstance(update, AddSchemaUpdate):
            # servers of 2024 require this field, which PyIceberg 0.12 leaves out
            last = max(table.metadata.last_column_id, update.schema_.highest_field_id)
            serialized["last-column-id"] = last
    return change


#: In a snapshot's summary: which committer of a probe made it.
_MARK = "eo.probe"

_SECOND_FIRST, _BOTH, _FIRST, _SECOND = slice(None, None, -1), slice(None), slice(1), slice(1, 2)

#: The committers of each round of a race, by the tables that they change. A catalog that commits
#: one table after another tears two that go opposite ways, or one of a table alone.
_ROUNDS = 3 * (
    (_BOTH, _SECOND_FIRST, _BOTH, _SECOND_FIRST),
    (_BOTH, _SECOND_FIRST, _FIRST, _SECOND),
)


class _Probe:
    """Two tables beside that of the ledger, which are committed to in all the ways that show
    whether a catalog changes both or none.
    """

    def __init__(self, catalog: PatientRestCatalog, identifier: Identifier, folder: Place) -> None:
        self._catalog = catalog
        self._namespace = identifier[:-1]
        self._prefix = f"{identifier[-1]}_probe_"
        self._folder = folder
        number = uuid.uuid4().hex[:12]
        self._names = [(*self._namespace, f"{self._prefix}{number}_{side}") for side in "ab"]

    def run(self) -> str:
        """Return what shows that it does not; empty if nothing does. No table is left, also none
        of a probe that was killed.
        """
        self._clean()
        try:
            return self._first_fault()
        finally:
            self._clean()

    def _make(self, name: Identifier) -> None:
        location = uri_of(self._folder / name[-1])
        columns = pa.schema([("id", pa.int64())])
        once = {TableProperties.COMMIT_NUM_RETRIES: "0"}
        self._catalog.new_table(name, columns, location, once)

    def _clean(self) -> None:
        for name in self._catalog.list_tables(self._namespace):
            if name[-1].startswith(self._prefix):
                with suppress(NoSuchTableError):
                    self._catalog.drop_table(name)
        remove_tree(self._folder)

    def _first_fault(self) -> str:
        try:
            for name in self._names:
                self._make(name)
            faults = (self._fault_alone(), self._fault_stale(0), self._fault_stale(1))
            races = (self._fault_of_race(committers) for committers in _ROUNDS)
            return next(filter(None, (*faults, *races)), "")
        except (BadRequestError, ForbiddenError, NotImplementedError) as error:
            return f"it answers {error}"
        except NoSuchTableError as error:
            if not all(map(self._catalog.table_exists, self._names)):
                raise
            return f"it answers {error}"

    def _fault_alone(self) -> str:
        self._catalog.commit_together(self._transactions(self._tables(), "alone"))
        return "" if self._marks() == ["alone", "alone"] else "a transaction changed not all tables"

    def _fault_stale(self, which: int) -> str:
        """One of the tables has changed since the look at both."""
        tables, mark = self._tables(), f"stale {which}"
        self._catalog.commit_together(self._transactions([self._tables()[which]], "newer"))
        before = self._marks()
        with suppress(CommitFailedException):
            self._catalog.commit_together(self._transactions(tables, mark))
        return "" if self._marks() == before else "a transaction with a stale table was not refused"

    def _fault_of_race(self, committers: Sequence[slice]) -> str:
        tables = self._tables()
        prepared = [self._transactions(tables[of], str(n)) for n, of in enumerate(committers)]
        ready = Barrier(len(committers))

        def attempt(transactions: list[Transaction]) -> bool | None:
            """Return True for a commit, False for a conflict, None for an unknown outcome."""
            ready.wait(ANSWER_S)
            try:
                self._catalog.commit_together(transactions)
            except CommitFailedException:
                return False
            except CommitStateUnknownException:
                return None
            return True

        with ThreadPoolExecutor(len(committers)) as threads:
            outcomes = [*threads.map(attempt, prepared)]
        marks = self._marks()
        for number, (outcome, of) in enumerate(zip(outcomes, committers, strict=True)):
            shown = {mark == str(number) for mark in marks[of]}
            if shown == {True, False}:
                return "of transactions at the same time one changed a table and not the other"
            if outcome is not None and shown != {outcome}:
                return "a transaction was answered otherwise than it ended"
        return ""

    def _tables(self) -> list[Table]:
        return [self._catalog.load_table(name) for name in self._names]

    def _marks(self) -> list[str | None]:
        """Return who made the newest snapshot of each table."""
        snapshots = (table.current_snapshot() for table in self._tables())
        return [s.summary.get(_MARK) if s and s.summary else None for s in snapshots]

    def _transactions(self, tables: Sequence[Table], mark: str) -> list[Transaction]:
        """Transactions without rows, for handles of their own."""
        transactions = []
        for table in tables:
            place = table.metadata_location
            handle = Table(table.name(), table.metadata, place, table.io, self._catalog)
            transactions.append(handle.transaction())
            append(transactions[-1], [], {_MARK: mark})
        return transactions
