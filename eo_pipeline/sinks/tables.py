"""Several tables of one store as one sink: one transaction fills all, with one ledger entry."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from pydantic import ConfigDict, SerializeAsAny, model_validator

from eo_pipeline._lazy import pa
from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import EoPipelineError, RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Identity, LedgerEntry, Operation
from eo_pipeline.sinks.capabilities import Selected
from eo_pipeline.sinks.config import Guarantee, Sink, StagingFolders
from eo_pipeline.sinks.session import CommitConflictError, CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.storage.config import Storage

S = TypeVar("S", bound=SinkSession)


class TablesAppearedError(Exception):
    """Records of ``values`` were met, which have no table yet. Nothing was published."""

    def __init__(self, values: Collection[str]) -> None:
        super().__init__(f"no table yet: {', '.join(sorted(values))}")
        self.values = tuple(sorted(values))


class Appearing(NamedTuple):
    """Tables that are made when their first record comes, one for each value.

    ``ledger``: the sink of a table without rows, which has their ledger. ``name``: of a table, with
    a place for its value. ``names``: those of the tables there are, with their values. ``limit``:
    maximum number of them. ``topics``: those whose records they take; all if empty. ``new``: SQL
    expression of a record's value if it has no table yet, otherwise null; None: a record's value is
    its topic.
    """

    ledger: Sink
    name: str
    names: Mapping[str, str]
    limit: int
    topics: tuple[str, ...]
    new: str | None


class TablesSink(Sink):
    """The tables of one pipeline, by their names in its document.

    Args:
        members: the sink of each table; all of one store, whose ``tables_session_class`` publishes
            them together. The ledger is that of the first one.
        rest: the one of them that has no rows, and the dead letters of records that none takes.
        appearing: given if more tables appear; the ledger is then that of a table without rows.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    session_class: ClassVar[str] = ""

    members: Mapping[str, SerializeAsAny[Sink]]
    rest: str | None = None
    appearing: Appearing | None = None

    @model_validator(mode="after")
    def _are_of_one_store(self) -> Self:
        first = self.first
        others = self.members.values()
        if any(type(sink) is not type(first) or sink.store != first.store for sink in others):
            raise ValueError("all tables of a pipeline are in one schema of one database")
        places = [place for sink in self.members.values() for place in sink.tables_written]
        if twice := sorted({place for place in places if places.count(place) > 1}):
            raise ValueError(f"two of them write rows or dead letters into {', '.join(twice)}")
        return self

    @property
    def first(self) -> Sink:
        """The sink of the table that has the ledger."""
        return self.appearing.ledger if self.appearing else next(iter(self.members.values()))

    @property
    def with_rows(self) -> dict[str, Sink]:
        """The members that have rows."""
        return {name: sink for name, sink in self.members.items() if name != self.rest}

    @cached_property
    def _names(self) -> str:
        if self.appearing:
            return self.appearing.name
        return ", ".join(sink.table_name for sink in self.with_rows.values())

    def _session_class(self) -> Any:
        assert self.first.tables_session_class is not None
        return self.first._imported(self.first.tables_session_class)

    @property
    def store(self) -> Hashable | None:
        return self.first.store

    def meets(self, other: TablesSink) -> bool:
        """True if a table of ``other``, another pipeline's, is one of these."""
        if self.is_of_one_pipeline:
            return False
        described = [sink.describe() for sink in self.members.values()]
        return any(sink.describe() in described for sink in other.members.values())

    @property
    def table_name(self) -> str:
        return self._names

    @property
    def qualified_name(self) -> str:
        named = ", ".join(sink.qualified_name for sink in self.with_rows.values())
        return named or self._names

    def describe(self) -> dict[str, str]:
        return {**self.first.ledger_sink.describe(), "table": self._names}

    def place(self) -> dict[str, str]:
        """Return where the ledger is, for metadata: the same when tables join or leave."""
        return {**self.describe(), "table": self.first.table_name.rpartition(".")[0]}

    @property
    def is_of_one_pipeline(self) -> bool:  # type: ignore[override]  # the store decides
        return self.first.is_of_one_pipeline

    @property
    def copies_rows(self) -> bool:  # type: ignore[override]  # the store decides
        return self.first.copies_rows

    def staging_folders(self) -> StagingFolders:
        """Those of the ledger, and of each table the folder of its rows."""
        rows = {name: sink.staging_folders().rows for name, sink in self.members.items()}
        return StagingFolders(
            self.first.ledger_sink.staging_folders().manifests,
            tables={name: folder for name, folder in rows.items() if folder is not None},
        )

    def kafka_topics(self, pipeline: str) -> tuple[str, frozenset[str]]:
        cluster, topics = self.first.kafka_topics(pipeline)
        return cluster, topics.union(
            *(sink.kafka_topics(pipeline)[1] for sink in self.members.values())
        )

    @property
    def keeps_every_row(self) -> bool:
        return all(sink.keeps_every_row for sink in self.members.values())

    def reached_by(self, storage: Storage) -> Self:
        members = {name: sink.reached_by(storage) for name, sink in self.members.items()}
        return self.model_copy(update={"members": members})


class TablesSession(SinkSession, Generic[S]):
    """A session for each table. The ledger is that of the first."""

    members: dict[str, S]

    def __init__(self, sink: TablesSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self.members = {}
        #: the session with the ledger, which is the first one
        self.first: S | None = None
        with ExitStack() as failed:
            failed.callback(self.close)
            if sink.appearing:
                self.first = self._member("", sink.first)
            self.take_in(sink)
            failed.pop_all()

    def take_in(self, sink: TablesSink) -> None:
        """Open the sessions of those tables of ``sink`` that are not open yet."""
        #: the member without rows
        self.rest = sink.rest
        self._values = sink.appearing.names if sink.appearing else {}
        for name, member in sink.members.items():
            if name not in self.members:
                session = self._member(name, member)
                session.manner = member.manner()
                self.members[name] = session
                self.first = self.first or session

    @abstractmethod
    def _member(self, name: str, sink: Sink) -> S:
        """Open the session of table ``name``, on what the first one has opened."""

    @property
    def ledger(self) -> S:
        """The session of the table that has the ledger."""
        assert self.first is not None
        return self.first

    def close(self) -> None:
        if self.first is not None:
            self.first.close()

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        """See :meth:`SinkSession.publish`; the document may have changed since the rows were
        staged.
        """
        absent = sorted(staged.tables.keys() - self.members.keys())
        if absent and not self.has_landed(entry):
            raise RefusedError(
                f"version {entry.version} was staged for {', '.join(absent)} too, which the "
                "pipeline does not fill any more. Nothing was published; the ranges are read again."
            )
        return super().publish(entry, staged, reach)

    def recover(self) -> LedgerEntry | None:
        return self.ledger.recover()

    def head(self) -> LedgerEntry | None:
        return self.ledger.head()

    def entry(self, version: int) -> LedgerEntry | None:
        return self.ledger.entry(version)

    def has_landed(self, entry: LedgerEntry) -> bool:
        return self.ledger.has_landed(entry)

    def already_committed(self, entry: LedgerEntry, staged: StagedOutput) -> CommitOutcome:
        return self.ledger.already_committed(entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        return self.ledger.explain(error)

    def given_up(self, error: CommitConflictError) -> EoPipelineError:
        return self.ledger.given_up(error)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return self.ledger.history(since)

    def check_identity(self, head: LedgerEntry) -> None:
        """A table that was added to the document since has nothing to be compared with.

        Raises:
            RefusedError: also of rows that a rewind left in a table that had left the document.
        """
        for name, member in self.members.items():
            of_table = head.of_table(name)
            member.check_identity(of_table)
            rewound_to = of_table.identity.rewound_to
            if rewound_to is not None and member.holds_rows(rewound_to + 1):
                raise RefusedError(
                    f"Pipeline {self.pipeline!r} was rewound to version {rewound_to} while table "
                    f"{name} was out of its document: rows of later checkpoints are still in it, "
                    "and would come twice. Nothing was changed. Delete those with "
                    f"{CHECKPOINT_COLUMN} > {rewound_to} from it, or leave it out."
                )

    def identified(self, entry: LedgerEntry) -> LedgerEntry:
        tables = dict(entry.identity.tables)
        for name, member in self.members.items():
            sink = member.identified(entry.of_table(name)).identity.sink
            value = self._values.get(name)
            identity = tables.get(name, Identity())
            tables[name] = replace(identity, sink=sink, value=value, rewound_to=None)
        if entry.operation is Operation.REWIND and entry.target is not None:
            for name in tables.keys() - self.members.keys():
                earlier = tables[name].rewound_to
                lowest = entry.target if earlier is None else min(entry.target, earlier)
                tables[name] = replace(tables[name], rewound_to=lowest)
        return replace(entry, identity=replace(entry.identity, tables=tables))

    def was_written(self) -> bool:
        return any(member.was_written() for member in self.members.values())

    def holds_rows(self, since: int) -> bool:
        return any(member.holds_rows(since) for member in self.members.values())

    def has_later_rows(self, *, thorough: bool) -> bool:
        return any(member.has_later_rows(thorough=thorough) for member in self.members.values())

    def refused_records(
        self, error: RefusedError, staged: StagedOutput, most: int
    ) -> list[dict[str, Any]]:
        """Return the records with the name of the ``table`` that refuses them."""
        records: list[dict[str, Any]] = []
        for name, member in self.members.items():
            output = staged.tables.get(name, StagedOutput())
            refused = member.refused_records(error, output, most - len(records))
            records += ({**record, "table": name} for record in refused)
            if len(records) >= most:
                break
        return records

    def queries(self, selected: Selected) -> Mapping[str, str]:
        return {
            f"{name}, {kind}": query
            for name, member in self.members.items()
            for kind, query in member.queries(selected).items()
        }

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._not_together

    def values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._not_together

    def rows_of(self, selected: Selected) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._not_together

    @property
    def _not_together(self) -> RefusedError:
        return RefusedError("its tables have rows of their own: name one (--table, table=)")

    def counts_of(self, selected: Selected) -> dict[int | None, int]:
        total: Counter[int | None] = Counter()
        for member in self.members.values():
            total.update(member.counts_of(selected))
        return dict(total)

    def check_going_back(self, entry: LedgerEntry) -> None:
        for member in self.members.values():
            member.check_going_back(entry)


class TableView:
    """The session of one of several tables; entries are those of the table alone, with the ranges
    of its ``topics`` (all if there are none). To look at, not to publish.

    Attributes that are not defined here are those of the table's session.
    """

    def __init__(self, session: SinkSession, name: str, topics: Collection[str]) -> None:
        self._session = session
        self._name = name
        self._topics = topics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.members[self._name], name)

    def head(self) -> LedgerEntry | None:
        return self._of_table(self._session.head())

    def entry(self, version: int) -> LedgerEntry | None:
        return self._of_table(self._session.entry(version))

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        for entry in self._session.history(since):
            if of_table := self._of_table(entry):
                yield of_table

    def _of_table(self, entry: LedgerEntry | None) -> LedgerEntry | None:
        if entry is None:
            return None
        topics = self._topics or {tp.topic for tp in entry.offsets}
        narrowed = replace(
            entry.of_table(self._name),
            ranges=entry.ranges_of(self._topics),
            offsets={tp: offset for tp, offset in entry.offsets.items() if tp.topic in topics},
        )
        object.__setattr__(narrowed, "stored", entry.stored)
        return narrowed
