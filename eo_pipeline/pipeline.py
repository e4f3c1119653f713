"""The public API: one pipeline, declared in Python or in one YAML document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PositiveInt,
    PrivateAttr,
    model_validator,
)

from eo_pipeline.batch.code_version import code_version, code_version_of_tables
from eo_pipeline.boundary import boundary, callers, callers_block
from eo_pipeline.config.documents import Document, load_transform, one_document
from eo_pipeline.config.settings import Problem, Settings, as_config_error
from eo_pipeline.errors import ConfigError, ManifestDamagedError
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import (
    START_VERSION,
    EntryId,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.ledger.history import Damage, damages
from eo_pipeline.observers import observed
from eo_pipeline.operations.accept_loss import AcceptLossPlan, plan_accept_loss
from eo_pipeline.operations.change_plan import ChangeReport, kept_from, later_rows, newest_entries
from eo_pipeline.operations.fork import ForkPlan, plan_fork
from eo_pipeline.operations.maintain import MaintenanceReport, maintain
from eo_pipeline.operations.repair import (
    AdoptPlan,
    ResetPlan,
    SetAsidePlan,
    plan_adopt,
    plan_reset,
    plan_set_aside,
)
from eo_pipeline.operations.replay import (
    DeadLetter,
    ReplayPlan,
    dead_letter_rows,
    plan_redrive,
    plan_replay,
    with_dead_letters,
)
from eo_pipeline.operations.rewind import RewindPlan, plan_rewind
from eo_pipeline.operations.status import RunPlan, Status, plan_next_run, read_status
from eo_pipeline.progress import phase
from eo_pipeline.runs.checkpoint import Filled, RunContext, TableInput, recover
from eo_pipeline.runs.interruption import watched
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.runs.report import NOBODY, ObservedRun, Observer, OnCheckpoint, Recorder, RunReport
from eo_pipeline.runs.runner import Runner, checkpoints_limit
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import SinkField
from eo_pipeline.sinks.tables import TablesSink, TableView
from eo_pipeline.spark import SparkProvider, SparkSettings
from eo_pipeline.staging.attempt import StagingArea
from eo_pipeline.staging.failures import Failures
from eo_pipeline.staging.scratch import sweep_scratch
from eo_pipeline.storage.config import PlaceField, Storage
from eo_pipeline.storage.paths import Place, RemotePath
from eo_pipeline.tables import EachTable, Table, with_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eo_pipeline.audit import AuditReport, ReplayPreview
    from eo_pipeline.ledger.history import Checkpoint
    from eo_pipeline.operations.as_of import AsOf
    from eo_pipeline.sinks.session import SinkSession


class Changes:
    """Methods of :class:`~eo_pipeline.pipeline.Pipeline` that change the table or the ledger."""

    if TYPE_CHECKING:
        name: str
        sink: Sink

        def _open_context(
            self,
            run_id: str | None = None,
            on_checkpoint: OnCheckpoint | None = None,
            spark: SparkProvider | None = None,
            operation: str | None = None,
        ) -> AbstractContextManager[RunContext]: ...

        def _filling(self) -> AbstractContextManager[tuple[SinkSession, Self]]: ...

        def recover(self) -> LedgerEntry | None: ...

        def forked(self, name: str, sink: Sink | Mapping[str, Any]) -> Self: ...

    def plan_rewind(self, to: int | datetime, *, accept_compacted: bool = False) -> RewindPlan:
        """To take the rows of all checkpoints after ``to`` out of the table, and stand there again.

        One transaction, a new ledger version. The next run reads again from that checkpoint's
        offsets. Rows a replay rewrote stay rewritten, if their checkpoint is spared. Every check
        is made now, and nothing is changed before :meth:`ChangePlan.apply`.

        Args:
            to: a live version, or a moment: then the newest live version committed by then.
            accept_compacted: go back although compaction may have taken records.

        Raises:
            GoingBackError, NothingToDoError, RefusedError: not possible as asked, see their kinds.
        """
        return plan_rewind(self._open_context, to, accept_compacted=accept_compacted)

    def rewind(
        self, to: int | datetime, *, reason: str = "", accept_compacted: bool = False
    ) -> ChangeReport:
        """Recover, then :meth:`plan_rewind` and apply the plan without review."""
        self.recover()
        return self.plan_rewind(to, accept_compacted=accept_compacted).apply(reason=reason)

    def plan_replay(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        versions: Collection[int] | None = None,
        accept_compacted: bool = False,
    ) -> ReplayPlan:
        """To read the ranges of checkpoints again, with today's transform, and replace their rows.

        One transaction and one ledger version for each checkpoint; offsets do not move, readers
        see the old rows or the new ones. Those that were committed before an error stay replayed.

        Args:
            first, last: replay every checkpoint with rows from ``first`` to ``last``, both live;
                without ``last`` only ``first``.
            versions: replay exactly these instead; ``first`` and ``last`` are then ignored.
            accept_compacted: as for :meth:`plan_rewind`; so are the errors.
        """
        return plan_replay(
            self._open_context, first, last, versions, accept_compacted=accept_compacted
        )

    def replay(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        versions: Collection[int] | None = None,
        reason: str = "",
        accept_compacted: bool = False,
    ) -> ChangeReport:
        """Recover, then :meth:`plan_replay` and apply the plan without review."""
        self.recover()
        plan = self.plan_replay(first, last, versions=versions, accept_compacted=accept_compacted)
        return plan.apply(reason=reason)

    def dead_letters(self) -> list[Checkpoint]:
        """The live checkpoints with records that were set aside, oldest first; ``counts`` say how
        many. Nothing is read but the ledger.
        """
        with watched(self.name, self.sink) as session:
            return list(with_dead_letters(session))

    def dead_letter_rows(self, version: int = 0) -> Iterator[DeadLetter]:
        """The records that were set aside, of the checkpoint ``version`` and later ones, as the
        sink holds them, in any order.

        Raises:
            RefusedError: this sink cannot read them back.
            SinkUnavailableError: it does not answer.
        """
        with self._filling() as (session, _):
            yield from dead_letter_rows(session, version)

    def plan_redrive(
        self, versions: Collection[int] | None = None, *, accept_compacted: bool = False
    ) -> ReplayPlan:
        """To read again the checkpoints that set records aside, once what was wrong with them is
        mended: the schema, the registry, the transform, the limits of a column.

        A :meth:`plan_replay` of just these: what is good now lands once, what is bad still is set
        aside again, and each checkpoint's rows and dead letters are replaced in one transaction.

        Args:
            versions: only these of them; all if absent.
            accept_compacted: as for :meth:`plan_rewind`; so are the errors.

        Raises:
            NothingToDoError: none of them set anything aside.
        """
        return plan_redrive(self._open_context, versions, accept_compacted=accept_compacted)

    def plan_fork(
        self,
        at: int | datetime,
        name: str,
        sink: Sink | Mapping[str, Any],
        *,
        accept_compacted: bool = False,
    ) -> ForkPlan:
        """To begin a new pipeline ``name`` into ``sink`` where version ``at`` stood.

        Applying it writes the new ledger's first entry; the new pipeline, :meth:`forked`, reads on
        from there with its first run. This pipeline stays as it is.

        Raises:
            GoingBackError: not possible as asked; by ``apply`` if there is such a ledger already.
            ConfigError: the name or the sink is not valid.
        """
        fork = self.forked(name, sink)
        return plan_fork(
            self._open_context, at, name, fork._open_context, accept_compacted=accept_compacted
        )

    def fork(
        self,
        at: int | datetime,
        name: str,
        sink: Sink | Mapping[str, Any],
        *,
        reason: str = "",
        accept_compacted: bool = False,
    ) -> Self:
        """:meth:`plan_fork`, apply the plan without review, and return the new pipeline."""
        self.plan_fork(at, name, sink, accept_compacted=accept_compacted).apply(reason=reason)
        return self.forked(name, sink)

    def plan_accept_loss(self, topics: Collection[str] | None = None) -> AcceptLossPlan:
        """To go on past what Kafka no longer holds, knowingly: the way past a DataLossError.

        The hole becomes a ledger version of its own, which status and audit go on naming. What
        other partitions lose after the plan was made is not accepted by it.

        Args:
            topics: accept only the losses of these topics; all if absent.

        Raises:
            NothingToDoError: nothing is lost (in these topics).
        """
        return plan_accept_loss(self._open_context, topics)

    def accept_loss(self, reason: str, *, topics: Collection[str] | None = None) -> LedgerEntry:
        """Recover, then :meth:`plan_accept_loss` and apply the plan without review."""
        self.recover()
        return self.plan_accept_loss(topics).apply(reason=reason).entries[0]

    def plan_adopt(self) -> AdoptPlan:
        """To make the sink's present, older state the new head, knowingly.

        For a sink that came back from a backup or failed over: runs refuse with LedgerBehindError
        until this writes an entry on top of what the ledger holds now. Offsets and rows stay as
        they are; the next run reads on from there, or starts anew if the ledger is empty.

        Raises:
            NothingToDoError: the ledger did not go backwards, so that there is nothing to adopt.
        """
        return plan_adopt(self._open_context)

    def adopt(self, reason: str) -> LedgerEntry | None:
        """:meth:`plan_adopt` and apply the plan without review. Returns the new head, if any."""
        return next(iter(self.plan_adopt().apply(reason=reason).entries), None)

    def plan_set_aside(self) -> SetAsidePlan:
        """To make promises in staging that cannot be read no promises any more.

        They stop every run with ManifestDamagedError. Their files are kept under another name, and
        the next run reads the same offsets again.

        Raises:
            NothingToDoError: all can be read.
        """
        return plan_set_aside(self._open_context)

    def plan_reset(self) -> ResetPlan:
        """To drop this pipeline's rows, dead letters, ledger and staging: for development.

        The next run starts anew; nothing tells of what was dropped. It may be applied twice.

        Raises:
            RefusedError: the sink leaves this to a person; says how.
        """
        return plan_reset(self._open_context)

    def reset(self) -> None:
        """:meth:`plan_reset` and apply the plan without review."""
        self.plan_reset().apply()


class Pipeline(Changes, Settings):
    """Kafka topics, a transform, and the table that follows them exactly once.

    Args:
        name: identifies the pipeline in the ledger. Lower-case letters, digits, ``_`` and ``-``.
        source: Kafka topics and how to decode their records.
        sink: store of the table and its ledger.
        transform: ``DataFrame -> DataFrame`` on the decoded records, or its import path
            ``package.module:function``.
        lineage: write ``_eo_topic``, ``_eo_partition`` and ``_eo_offset`` with every row. The
            transform must then keep the ``_kafka`` column.
        storage: connection settings of the table's store and of staging.
        staging: folder, ``s3://``, ``gs://``, ``abfss://`` or ``hdfs://`` for staged batches;
            driver and executors must both reach it.
        inline_records: batches of at most this many offsets bypass staging files.
        max_checkpoints: maximum number of checkpoints (commits) per run.
        overlap: stage the next checkpoint while the previous one commits. Default: true with two
            or more cores and no transform, since a transform that reads its own table would not
            see the previous checkpoint.
        spark: where Spark runs; used only when there is something to read.
        maintenance: settings of ``eo maintain`` for Delta and Iceberg tables.
        tables: several tables of one store instead of one, filled by one transaction; ``sink`` then
            has no ``table``, and may name their ``schema``. With ``each`` instead of a list: one
            for each value, made when its first record comes.
        rest: for records that match none of ``tables``: ``fail``, ``ignore`` and count them, or
            ``dead_letter``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    source: KafkaSource
    storage: Storage = Storage()
    sink: SinkField
    transform: Annotated[Callable[..., Any] | None, BeforeValidator(load_transform)] = None
    lineage: bool = True
    staging: PlaceField = Path(".eo/staging")
    inline_records: int = Field(default=10_000, ge=0)
    max_checkpoints: PositiveInt = 1_000
    overlap: bool | None = None
    spark: SparkSettings = SparkSettings()
    maintenance: Maintenance = Maintenance()
    tables: tuple[Table, ...] = ()
    rest: Literal["fail", "ignore", "dead_letter"] = "fail"

    #: as it was declared, if it fills several tables
    _declared: Mapping[str, Any] | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _with_tables(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        given = data.get("tables") if isinstance(data, Mapping) else None
        if not given or not isinstance(given, list | tuple | Mapping | EachTable):
            return validate(data)
        if data.get("transform") is not None:
            raise ValueError("transform: each of tables has its own")
        pipeline = validate(with_tables(data))
        pipeline._declared = data
        return pipeline

    @model_validator(mode="after")
    def _does_not_read_what_it_writes(self) -> Self:
        self.source.refuse_own_topics(*self.sink.kafka_topics(self.name))
        return self

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A pipeline from plain values, as a YAML document holds them.

        Raises:
            ConfigError: names every wrong field, and never shows a value.
        """
        with as_config_error("the pipeline's configuration"):
            return cls.model_validate(config)

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """A pipeline from one YAML document.

        ``${NAME}`` in a text is the environment variable, ``${NAME:-default}`` with a default.

        Raises:
            ConfigError: no such file, not YAML, a variable is not set, or a field is wrong.
        """
        return cls.from_document(one_document(path))

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """A pipeline from a document that was read.

        Raises:
            ConfigError: names the file, and every wrong field with its line.
        """
        fields = cls.model_fields.keys()
        try:
            with as_config_error(
                "the pipeline's configuration",
                more=[Problem(*fault) for fault in document.faults(fields)],
                line_of=lambda problem: document.line_of(problem.location),
            ):
                return cls.model_validate(document.config(fields))
        except ConfigError as error:
            text = str(error)
            path = str(document.path)
            raise ConfigError(text if text.startswith(path) else f"{path}: {text}") from error

    @property
    def code_version(self) -> str | None:
        """Changes when the schema or the transform's module is edited; None if nobody can tell."""
        if self._is_growing:  # its tables are alike
            inputs = self._of_values(["any"])._table_inputs.values()
            one = next(table for table in inputs if not table.takes_rest)
            return code_version(one.source, one.transform, lineage=self.lineage)
        if self.has_tables:
            return code_version_of_tables(
                {
                    name: code_version(table.source, table.transform, lineage=self.lineage)
                    for name, table in self._table_inputs.items()
                }
            )
        return code_version(self.source, self.transform, lineage=self.lineage)

    @property
    def declared_sink(self) -> Sink | Mapping[str, Any]:
        """The sink as it was given: with several tables that of all, without names of tables."""
        given = (self._declared or {}).get("sink")
        return given if given is not None else self.sink

    @property
    def has_tables(self) -> bool:
        """True if it fills several tables, or as many as appear."""
        return isinstance(self.sink, TablesSink)

    def run(
        self,
        *,
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        max_checkpoints: int | None = None,
        spark: SparkProvider | None = None,
    ) -> RunReport:
        """Bring the table up to the end offsets Kafka has now.

        Args:
            run_id: stored with every ledger entry; made up if absent.
            on_checkpoint: called after each commit.
            max_checkpoints: stop after this many, fewer than the pipeline's own limit.
            spark: a session to use instead of ``self.spark``; asked for only if needed.

        Raises:
            EoPipelineError: one of its kinds; nothing is lost or half-applied.
        """
        limit = checkpoints_limit(self.max_checkpoints, max_checkpoints)
        with self._open_context(run_id, on_checkpoint, spark, Operation.FORWARD.value) as context:
            sweep_scratch(self._scratch)
            return Runner(context, limit, self.overlap).run()

    def head(self) -> LedgerEntry | None:
        """The newest ledger entry, ``None`` before the first run."""
        with watched(self.name, self.sink) as session:
            return session.verified(session.head())

    def history(self, since: int = 0) -> list[LedgerEntry]:
        """The ledger from version ``since``, or its floor, oldest first."""
        with watched(self.name, self.sink) as session:
            return list(session.history(max(since, kept_from(session))))

    def newest(self, count: int) -> list[LedgerEntry]:
        """The last ``count`` entries, oldest first; see :func:`newest_entries`."""
        with watched(self.name, self.sink) as session:
            return newest_entries(session, count)

    def ledger_damages(self) -> list[Damage]:
        """Describe each fault of the whole ledger; none if every entry is what was committed."""
        with watched(self.name, self.sink) as session:
            since = kept_from(session)
            return [*damages(session.history(since), since), *later_rows(session)]

    def following(self, known: EntryId | None, count: int) -> list[LedgerEntry] | None:
        """At most ``count`` entries after ``known`` (None: all), as far as they are kept.

        Returns None if the ledger does not hold ``known``: it was replaced by an older one.
        """
        with watched(self.name, self.sink) as session:
            since = known.version + 1 if known else START_VERSION
            held = session.entry(known.version) if known else None
            if held is None:
                floor = kept_from(session)
                if known and known.version >= floor:
                    return None
                since = max(since, floor)
            elif held.id != known:
                return None
            return list(islice(session.history(since), count))

    def status(self) -> Status:
        """Return the pipeline's status: the sink is asked, then Kafka.

        Raises:
            SinkUnavailableError, SourceUnavailableError: one of them does not answer.
        """
        return read_status(self._open_context)

    def plan_run(self) -> RunPlan:
        """Return the ranges of the next run; nothing changes, no Spark starts. Errors: see
        status.
        """
        return plan_next_run(self._open_context)

    def recover(self, *, on_checkpoint: OnCheckpoint | None = None) -> LedgerEntry | None:
        """Commit, without Kafka and Spark, what a dead run had promised. Returns the head.

        Raises:
            LedgerBehindError: the ledger went backwards.
            SinkUnavailableError, CommitUnknownError: the sink could not be asked; nothing is lost.
        """
        with self._open_context(None, on_checkpoint) as context:
            return recover(context)

    def maintain(self, *, dry_run: bool = False) -> MaintenanceReport:
        """Put the table's small files together, remove what nothing refers to any more, keep its
        log short, settle what dead runs left, and prune the ledger if ``maintenance`` says how long
        it is kept; without Kafka and Spark. Rows keep their values and their checkpoint's number.

        Args:
            dry_run: only look.

        Raises:
            SinkUnavailableError: the store does not answer, or another maintenance of this table
                has begun; what was done stays.
            LedgerBehindError, LedgerDamagedError: as a run.
        """
        with self._open_context() as context:
            return maintain(context, self.maintenance, dry_run=dry_run)

    def failures(self) -> list[Failures]:
        """Runs that failed, by the kind of error, as they noted it in staging; whoever cannot
        write there leaves no note. Nothing is asked but staging.
        """
        with boundary(self.name):
            return self._staging_area().failures.all()

    @contextmanager
    def as_of(
        self, version: int | datetime, *, what_is_left: bool = False, table: str | None = None
    ) -> Iterator[AsOf]:
        """The table as it stood when ``version`` was the head (of a moment: the newest committed
        by then), also of a version that a rewind left behind. Of use within the ``with`` block.

        Args:
            version: of the ledger, or a moment with its time zone.
            what_is_left: also if rows are gone that were there; ``AsOf.missing`` says which.
            table: of a pipeline with several tables the one whose rows are read; without it only
                the number of rows of all, and the queries.

        Raises:
            ConfigError: the pipeline has no such table.
            UnknownCheckpointError: there is no such version.
            PastGoneError: its rows were taken out, replaced or overwritten, and the store keeps no
                earlier states, or not that one.
        """
        from eo_pipeline.operations.as_of import open_as_of

        with self._filling() as (session, filling):
            of_table, sink = filling._of_table(session, table)
            view = open_as_of(of_table, sink, version, what_is_left=what_is_left)
            with callers_block():
                yield view

    def forked(self, name: str, sink: Sink | Mapping[str, Any]) -> Self:
        """This declaration under another name, into another sink; nothing is written.

        Raises:
            ConfigError: the name or the sink is not valid, or several tables would be the same.
        """
        forked = self.from_config({**(self._declared or dict(self)), "name": name, "sink": sink})
        old, new = (p._of_values(["any"]).sink if p._is_growing else p.sink for p in (self, forked))
        if isinstance(old, TablesSink) and isinstance(new, TablesSink) and old.meets(new):
            raise ConfigError(
                f"sink: the tables of {name!r} would be those of {self.name!r}. Nothing was "
                "changed. Name another schema, namespace or database."
            )
        return forked

    def audit(
        self,
        last: int | None = None,
        *,
        spark: SparkProvider | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> AuditReport:
        """Prove from outside that the table holds every record once; see :mod:`eo_pipeline.audit`.

        Reads Kafka again and compares with the table's rows. Nothing is changed, in no place.

        Args:
            last: only this many checkpoints, the newest live ones; all if absent.
            spark: a session to use instead of ``self.spark``.
            on_progress: hears a sentence at each step.

        Raises:
            UnknownCheckpointError, LedgerBehindError: there is no ledger yet, or an older one.
            EoPipelineError: one of its kinds, if Kafka, Spark or the sink cannot be asked.
        """
        from eo_pipeline.audit import Audit
        from eo_pipeline.audit.tables import audit_tables

        with phase(f"{self.name}: audit"), self._open_context(spark=spark) as context:
            if self.has_tables:
                return audit_tables(context, self._scratch, on_progress or _no_listener, last)
            return Audit(context, self._scratch, on_progress or _no_listener).run(last)

    def preview_replay(
        self, plan: ReplayPlan, *, key: Sequence[str] = (), spark: SparkProvider | None = None
    ) -> ReplayPreview:
        """Compare the rows of a planned replay with the table: how many it would add, remove and
        change.

        Kafka is read, the transform applied, and the result staged where nobody publishes it.

        Args:
            key: the columns that say which rows are the same row; the record they came from if
                absent, or all their values where rows do not say from which record they are.
            spark: a session to use instead of ``self.spark``.

        Raises:
            StalePlanError: the ledger has moved on since the plan was made.
            ConfigError: the rows have no such key.
            RefusedError: rows cannot be read back from this sink.
            EoPipelineError: whatever a replay would meet in reading and staging.
        """
        from eo_pipeline.audit.preview import preview_replay

        with phase(f"{self.name}: preview"), self._open_context(spark=spark) as context:
            return preview_replay(context, self._scratch, plan, key)

    @property
    def _scratch(self) -> Place:
        """Folder for the files of an audit or a preview; see :mod:`eo_pipeline.staging.scratch`."""
        # remote executors share only a bucket with this process
        manifests = self.sink.staging_folders().manifests
        return (manifests if isinstance(manifests, RemotePath) else self.staging) / self.name

    @contextmanager
    def _open_context(
        self,
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        spark: SparkProvider | None = None,
        operation: str | None = None,
    ) -> Iterator[RunContext]:
        staging, run_id = self._staging_area(), run_id or new_transaction_id()
        watching = self._observed(operation, run_id, staging) if operation else nullcontext(NOBODY)
        with ExitStack() as open_now:
            observer = open_now.enter_context(watching)
            # Kafka answers while the sink is opened
            admin = self._ask_kafka() if operation == Operation.FORWARD else None
            session, filling = open_now.enter_context(self._filling())
            yield RunContext(
                pipeline=self.name,
                source=self.source,
                sink=filling.sink,
                transform=self.transform,
                lineage=self.lineage,
                inline_records=self.inline_records,
                run_id=run_id,
                session=session,
                recovery=Recovery(
                    self.name, session, filling._staging_area(), self.sink.copies_rows
                ),
                admin=admin or KafkaAdmin(self.source),
                spark=callers(spark) if spark else self._own_spark,
                begin_spark=_nothing if spark else self.spark.begin,
                recorder=Recorder(callers(on_checkpoint or _no_listener), observer),
                tables=filling._table_inputs,
                rest=self.rest,
                filled=self._filled if self._is_growing else None,
            )

    @property
    def _is_growing(self) -> bool:
        return isinstance(self.sink, TablesSink) and self.sink.appearing is not None

    @contextmanager
    def _filling(self) -> Iterator[tuple[SinkSession, Self]]:
        """Open a session. Yields it, and the pipeline with the tables that appeared until now,
        those of promises in staging, too; itself if its tables are listed.
        """
        with watched(self.name, self.sink) as session:
            if not self._is_growing:
                yield session, self
                return
            head = session.head()
            entries = [head] if head else []
            recovery = Recovery(self.name, session, self._staging_area(), self.sink.copies_rows)
            for attempt in recovery.waiting(head):
                with suppress(ManifestDamagedError):
                    entries += [manifest.entry] if (manifest := attempt.manifest()) else []
            values = [value for entry in entries for value in entry.values.values()]
            filling = self._of_values(values)
            session.take_in(filling.sink)
            yield session, filling

    def _of_values(self, values: Collection[str]) -> Self:
        """Return the pipeline with the tables of ``values``, as if they were listed.

        Raises:
            ConfigError: they are too many, or one makes no name of a table.
        """
        with as_config_error(f"Pipeline {self.name!r}"):
            config = dict(self._declared or {})
            template = EachTable.model_validate(config["tables"])
            with_values = {**dict(template), "values": tuple(dict.fromkeys(values))}
            return self.model_validate({**config, "tables": with_values})

    def _filled(self, values: Collection[str]) -> Filled:
        filling = self._of_values(values)
        return Filled(filling.sink, filling._table_inputs, filling._staging_area())

    @property
    def _table_inputs(self) -> dict[str, TableInput]:
        return {
            table.name: TableInput(table.source, table.transform, table.where, table.takes_rest)
            for table in self.tables
            if table.source is not None
        }

    def _of_table(self, session: SinkSession, name: str | None) -> tuple[SinkSession, Sink]:
        """Return the session and the sink of one of several tables; those given if none is named.

        Raises:
            ConfigError: there is no such table.
        """
        if name is None:
            return session, self.sink
        topics = {
            table.name: table.source.topics
            for table in self.tables
            if table.source and not table.takes_rest
        }
        if name not in topics or not isinstance(self.sink, TablesSink):
            known = f"its tables are {', '.join(topics)}" if topics else "it fills one table"
            raise ConfigError(f"Pipeline {self.name!r} has no table {name!r}: {known}.")
        view = TableView(session, name, topics[name])
        return cast("SinkSession", view), self.sink.members[name]

    @property
    def _is_transformed(self) -> bool:
        transforms = (self.transform, *(table.transform for table in self.tables))
        return any(transform is not None for transform in transforms)

    def _ask_kafka(self) -> KafkaAdmin:
        with boundary(self.name):
            admin = KafkaAdmin(self.source)
            admin.look_ahead()
            return admin

    def _own_spark(self) -> SparkSession:
        return self.spark.session(of_ours=not self._is_transformed)

    def _staging_area(self) -> StagingArea:
        into, sink = self.sink.staging_folders(), self.sink
        where = sink.place() if isinstance(sink, TablesSink) else sink.describe()
        root = into.manifests or self.staging
        return StagingArea(root, self.name, into.rows, where, into.tables)

    def _observed(
        self, operation: str, run_id: str, staging: StagingArea
    ) -> AbstractContextManager[Observer]:
        transformed = self._is_transformed
        return observed(
            ObservedRun(self.name, run_id, operation, self.source, self.sink, staging, transformed)
        )


def _nothing() -> None:
    """Begin no session where the caller has one."""


def _no_listener(_: object) -> None:
    """Ignore a report: the caller reads the final one."""
