"""The public face: one pipeline, declared in Python or in one YAML document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PositiveInt

from eo_pipeline.audit import Audit, AuditReport
from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.documents import load_transform, read_document
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, new_transaction_id
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.forward import Runner
from eo_pipeline.run.going_back import GoingBack, accept_loss, begin_fork
from eo_pipeline.run.plans import ChangePlan, ChangeReport
from eo_pipeline.run.recover import Recovery
from eo_pipeline.run.reports import CheckpointReport, RunReport
from eo_pipeline.run.stage import Stager
from eo_pipeline.run.status import RunPlan, Status, look, look_ahead
from eo_pipeline.settings import Settings, told_as_config_error
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.sinks.registry import validate_sink
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.spark import SparkProvider, SparkSettings
from eo_pipeline.staging.attempt import StagingArea

if TYPE_CHECKING:
    from typing import Self

#: Ledger entries a plan looks at to estimate how long the next run takes.
ENTRIES_TO_ESTIMATE_BY = 50


def _as_sink(value: Any) -> Any:
    return validate_sink(value) if isinstance(value, Mapping) else value


class Pipeline(Settings):
    """Kafka topics, a transform, and the table that follows them exactly once.

    Args:
        name: names the ledger; part of every key. Lower-case letters, digits, ``_`` and ``-``.
        source: what to read.
        sink: where rows and ledger go.
        transform: ``DataFrame -> DataFrame`` on the decoded records, or its import path
            ``package.module:function``.
        lineage: write ``_eo_topic``, ``_eo_partition`` and ``_eo_offset`` with every row. The
            transform must then keep the ``_kafka`` column.
        staging: folder for rows that wait; on a cluster one that driver and executors share.
        inline_records: a batch of at most this many offsets skips the files.
        max_checkpoints: the most checkpoints one run makes.
        spark: where Spark runs; used only when there is something to read.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    source: KafkaSource
    sink: Annotated[Sink, BeforeValidator(_as_sink)]
    transform: Annotated[Callable[..., Any] | None, BeforeValidator(load_transform)] = None
    lineage: bool = True
    staging: Path = Path(".eo/staging")
    inline_records: int = Field(default=10_000, ge=0)
    max_checkpoints: PositiveInt = 1_000
    spark: SparkSettings = SparkSettings()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A pipeline from plain values, as a YAML document holds them.

        Raises:
            ConfigError: names every wrong field, and never shows a value.
        """
        with told_as_config_error("the pipeline's configuration"):
            return cls.model_validate(config)

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """A pipeline from one YAML document.

        ``${NAME}`` in a text is the environment variable, ``${NAME:-default}`` with a default.

        Raises:
            ConfigError: no such file, not YAML, a variable is not set, or a field is wrong.
        """
        try:
            return cls.from_config(read_document(path))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def run(
        self,
        *,
        run_id: str | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        max_checkpoints: int | None = None,
        spark: SparkProvider | None = None,
        reach: Reach = keep_going,
    ) -> RunReport:
        """Bring the table up to the end offsets Kafka has now.

        Args:
            run_id: stored with every ledger entry; made up if absent.
            on_checkpoint: called after each commit.
            max_checkpoints: stop after this many, fewer than the pipeline's own limit.
            spark: a session to use instead of ``self.spark``; asked for only if needed.
            reach: see :mod:`eo_pipeline.crashpoints`.

        Raises:
            EoPipelineError: one of its kinds; nothing is lost or half-applied.
        """
        limit = self.max_checkpoints
        with self._steps(run_id, on_checkpoint, spark, reach) as steps:
            return Runner(steps, min(max_checkpoints or limit, limit)).run()

    def head(self) -> LedgerEntry | None:
        """The newest ledger entry, ``None`` before the first run."""
        with self.sink.open(self.name) as session:
            return session.head()

    def history(self, since: int = 0) -> list[LedgerEntry]:
        """The ledger from version ``since``, oldest first."""
        with self.sink.open(self.name) as session:
            return list(session.history(since))

    def newest(self, count: int) -> list[LedgerEntry]:
        """The last ``count`` entries, oldest first."""
        with self.sink.open(self.name) as session:
            head = session.head()
            return list(session.history(max(0, head.version + 1 - count))) if head else []

    def following(self, known: EntryId | None, count: int) -> list[LedgerEntry] | None:
        """At most ``count`` entries after ``known`` (None: from the first), oldest first.

        Returns None if the ledger does not hold ``known``: it was replaced by an older one.
        """
        with self.sink.open(self.name) as session:
            if known is None:
                return list(islice(session.history(), count))
            held = session.entry(known.version)
            if held is None or held.id != known:
                return None
            return list(islice(session.history(known.version + 1), count))

    def status(self) -> Status:
        """Where the pipeline stands: the sink is asked, then Kafka.

        Raises:
            SinkUnavailableError, SourceUnavailableError: one of them does not answer.
        """
        return look(self.name, self.source, self.head())

    def plan_run(self) -> RunPlan:
        """What the next run would read; nothing is changed, no Spark started.

        Raises:
            SinkUnavailableError, SourceUnavailableError: one of them does not answer.
        """
        return look_ahead(self.name, self.source, self.newest(ENTRIES_TO_ESTIMATE_BY))

    def plan_rewind(self, to: int | datetime, *, accept_compacted: bool = False) -> ChangePlan:
        """What :meth:`rewind` would take away; every check is made, nothing changed."""
        with self._going_back(accept_compacted=accept_compacted) as back:
            return back.plan_rewind(back.seen_head(), to)

    def rewind(
        self,
        to: int | datetime,
        *,
        reason: str = "",
        asked_by: str = "",
        run_id: str | None = None,
        accept_compacted: bool = False,
        expected_head: EntryId | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        reach: Reach = keep_going,
    ) -> ChangeReport:
        """Take the rows of all checkpoints after ``to`` out of the table, and stand there again.

        One transaction, a new ledger version. The next run reads again from that checkpoint's
        offsets. Rows a replay rewrote stay rewritten, if their checkpoint is spared.

        Args:
            to: a live version, or a moment: then the newest live version committed by then.
            reason: kept in the ledger, for people; so is asked_by.
            run_id: stored with the entry; made up if absent.
            accept_compacted: go back although compaction may have taken records.
            expected_head: refuse if the head is another one than the plan was looked at with.
            on_checkpoint: called after each commit, those of a dead run's promises included.
            reach: see :mod:`eo_pipeline.crashpoints`.

        Raises:
            GoingBackError, NothingToDoError, RefusedError: not possible as asked, see their kinds.
            FencedError: a run was faster; nothing was changed.
        """
        remarks = {"reason": reason, "asked_by": asked_by}
        with self._going_back(run_id, on_checkpoint, None, reach, accept_compacted) as back:
            return back.rewind(back.plan_rewind(back.head(expected_head), to), remarks)

    def plan_replay(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        versions: Collection[int] | None = None,
        accept_compacted: bool = False,
    ) -> ChangePlan:
        """What :meth:`replay` would replace; every check is made, nothing changed."""
        with self._going_back(accept_compacted=accept_compacted) as back:
            head = back.seen_head()
            return back.plan_replay(head, versions or back.between(head, first, last))

    def replay(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        versions: Collection[int] | None = None,
        reason: str = "",
        asked_by: str = "",
        run_id: str | None = None,
        accept_compacted: bool = False,
        expected_head: EntryId | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        spark: SparkProvider | None = None,
        reach: Reach = keep_going,
    ) -> ChangeReport:
        """Read the ranges of checkpoints again, with today's transform, and replace their rows.

        One transaction and one ledger version for each checkpoint; offsets do not move, readers
        see the old rows or the new ones. Those that were committed before an error stay replayed.

        Args:
            first, last: replay every checkpoint with rows from ``first`` to ``last``, both live;
                without ``last`` only ``first``.
            versions: replay exactly these instead; ``first`` and ``last`` are then ignored.
            spark: a session to use instead of ``self.spark``.

        The other arguments and errors are those of :meth:`rewind`, and those of :meth:`run`.
        """
        remarks = {"reason": reason, "asked_by": asked_by}
        with self._going_back(run_id, on_checkpoint, spark, reach, accept_compacted) as back:
            head = back.head(expected_head)
            wanted = versions or back.between(head, first, last)
            return back.replay(back.plan_replay(head, wanted), remarks)

    def plan_fork(self, at: int | datetime, *, accept_compacted: bool = False) -> ChangePlan:
        """What a pipeline forked ``at`` that version would read again; nothing is changed."""
        with self._going_back(accept_compacted=accept_compacted) as back:
            return back.plan_fork(back.seen_head(), at)

    def fork(
        self,
        at: int | datetime,
        name: str,
        sink: Sink | Mapping[str, Any],
        *,
        reason: str = "",
        asked_by: str = "",
        run_id: str | None = None,
        accept_compacted: bool = False,
    ) -> Self:
        """A new pipeline ``name`` into ``sink``, which begins where version ``at`` stood.

        Writes the new ledger's first entry; the new pipeline reads on from there with its first
        run. This pipeline stays as it is. Returns the new pipeline.

        Raises:
            GoingBackError: not possible as asked, or the new pipeline has a ledger already.
            ConfigError: the name or the sink is not valid.
        """
        forked = self.from_config({**dict(self), "name": name, "sink": sink})
        plan = self.plan_fork(at, accept_compacted=accept_compacted)
        remarks = {"reason": reason, "asked_by": asked_by}
        with forked._steps(run_id, None, None, keep_going) as steps:
            begin_fork(steps, plan, remarks)
        return forked

    def accept_loss(
        self,
        reason: str,
        *,
        topics: Collection[str] | None = None,
        asked_by: str = "",
        run_id: str | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
    ) -> LedgerEntry:
        """Go on past what Kafka no longer holds, knowingly: the way past a DataLossError.

        The hole becomes a ledger version of its own, which status and audit go on naming.
        :meth:`status` shows the losses beforehand.

        Args:
            reason: why this is acceptable; kept in the ledger.
            topics: accept only the losses of these topics; all if absent.

        Raises:
            NothingToDoError: nothing is lost (in these topics).
            FencedError: a run was faster.
        """
        remarks = {"reason": reason, "asked_by": asked_by}
        with self._steps(run_id, on_checkpoint, None, keep_going) as steps:
            return accept_loss(steps, topics, remarks)

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
            UnknownCheckpointError: the pipeline has no ledger yet.
            EoPipelineError: one of its kinds, if Kafka, Spark or the sink cannot be asked.
        """
        with self._steps(None, None, spark, keep_going) as steps:
            return Audit(steps, self.staging / self.name, on_progress or _no_listener).run(last)

    def adopt(self, reason: str, *, run_id: str | None = None) -> LedgerEntry | None:
        """Make the sink's present, older state the new head, knowingly.

        For a sink that came back from a backup or failed over: runs refuse with LedgerBehindError
        until this writes an entry on top of what the ledger holds now. Offsets and rows stay as
        they are, and the next run reads on from there. Returns the new head; ``None`` if the
        ledger is empty, so that the next run starts anew.

        Raises:
            NothingToDoError: the ledger did not go backwards, so that there is nothing to adopt.
        """
        with self.sink.open(self.name) as session:
            return self._recovery(session).adopt(reason, run_id or "")

    @contextmanager
    def _going_back(
        self,
        run_id: str | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        spark: SparkProvider | None = None,
        reach: Reach = keep_going,
        accept_compacted: bool = False,
    ) -> Iterator[GoingBack]:
        with self._steps(run_id, on_checkpoint, spark, reach) as steps:
            yield GoingBack(steps, accept_compacted)

    @contextmanager
    def _steps(
        self,
        run_id: str | None,
        on_checkpoint: Callable[[CheckpointReport], None] | None,
        spark: SparkProvider | None,
        reach: Reach,
    ) -> Iterator[Steps]:
        with self.sink.open(self.name) as session:
            yield Steps(
                pipeline=self.name,
                source=self.source,
                session=session,
                stager=Stager(self.source, self.sink, self.transform, self.lineage),
                recovery=self._recovery(session),
                spark=spark or self.spark.session,
                reach=reach,
                run_id=run_id or new_transaction_id(),
                inline_records=self.inline_records,
                on_checkpoint=on_checkpoint or _no_listener,
            )

    def _recovery(self, session: SinkSession) -> Recovery:
        folders = self.sink.staging_folders()
        staging = StagingArea(folders.manifests or self.staging, self.name, folders.rows)
        return Recovery(self.name, session, staging, self.sink.copies_rows)


def _no_listener(_: object) -> None:
    """For callers that read the final report instead."""
