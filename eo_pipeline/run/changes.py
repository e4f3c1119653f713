"""What may be done to a pipeline's table besides following the topics: going back and forth, and
mending what is wrong by hand. A plan is made and looked at first, then applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eo_pipeline.run.accept_loss import AcceptLossPlan, plan_accept_loss
from eo_pipeline.run.adopt import AdoptPlan, plan_adopt
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.dead_letters import (
    DeadLetter,
    dead_letter_rows,
    plan_redrive,
    with_dead_letters,
)
from eo_pipeline.run.fork import ForkPlan, plan_fork
from eo_pipeline.run.plans import ChangeReport
from eo_pipeline.run.replay import ReplayPlan, plan_replay
from eo_pipeline.run.reports import CheckpointReport
from eo_pipeline.run.reset import ResetPlan, plan_reset
from eo_pipeline.run.rewind import RewindPlan, plan_rewind
from eo_pipeline.run.set_aside import SetAsidePlan, plan_set_aside

if TYPE_CHECKING:
    from typing import Self

    from eo_pipeline.ledger.branch import Checkpoint
    from eo_pipeline.ledger.entry import LedgerEntry
    from eo_pipeline.sinks.config import Sink
    from eo_pipeline.spark import SparkProvider


class Changes:
    """The part of :class:`~eo_pipeline.pipeline.Pipeline` that changes what stands."""

    if TYPE_CHECKING:

        def _steps(
            self,
            run_id: str | None = None,
            on_checkpoint: Callable[[CheckpointReport], None] | None = None,
            spark: SparkProvider | None = None,
            operation: str | None = None,
        ) -> AbstractContextManager[Steps]: ...

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
        return plan_rewind(self._steps, to, accept_compacted=accept_compacted)

    def rewind(
        self, to: int | datetime, *, reason: str = "", accept_compacted: bool = False
    ) -> ChangeReport:
        """Recover, then :meth:`plan_rewind` and apply the plan, unseen."""
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
        return plan_replay(self._steps, first, last, versions, accept_compacted=accept_compacted)

    def replay(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        versions: Collection[int] | None = None,
        reason: str = "",
        accept_compacted: bool = False,
    ) -> ChangeReport:
        """Recover, then :meth:`plan_replay` and apply the plan, unseen."""
        self.recover()
        plan = self.plan_replay(first, last, versions=versions, accept_compacted=accept_compacted)
        return plan.apply(reason=reason)

    def dead_letters(self) -> list[Checkpoint]:
        """The live checkpoints with records that were set aside, oldest first; ``counts`` say how
        many. Nothing is read but the ledger.
        """
        with self._steps() as steps:
            return list(with_dead_letters(steps))

    def dead_letter_rows(self, version: int = 0) -> Iterator[DeadLetter]:
        """The records that were set aside, of the checkpoint ``version`` and later ones, as the
        sink holds them, in any order.

        Raises:
            RefusedError: this sink cannot read them back.
            SinkUnavailableError: it does not answer.
        """
        with self._steps() as steps:
            yield from dead_letter_rows(steps.session, version)

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
        return plan_redrive(self._steps, versions, accept_compacted=accept_compacted)

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
        return plan_fork(self._steps, at, name, fork._steps, accept_compacted=accept_compacted)

    def fork(
        self,
        at: int | datetime,
        name: str,
        sink: Sink | Mapping[str, Any],
        *,
        reason: str = "",
        accept_compacted: bool = False,
    ) -> Self:
        """:meth:`plan_fork`, apply the plan, unseen, and return the new pipeline."""
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
        return plan_accept_loss(self._steps, topics)

    def accept_loss(self, reason: str, *, topics: Collection[str] | None = None) -> LedgerEntry:
        """Recover, then :meth:`plan_accept_loss` and apply the plan, unseen."""
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
        return plan_adopt(self._steps)

    def adopt(self, reason: str) -> LedgerEntry | None:
        """:meth:`plan_adopt` and apply the plan, unseen. Returns the new head, if any."""
        return next(iter(self.plan_adopt().apply(reason=reason).entries), None)

    def plan_set_aside(self) -> SetAsidePlan:
        """To make promises in staging that cannot be read no promises any more.

        They stop every run with ManifestDamagedError. Their files are kept under another name, and
        the next run reads the same offsets again.

        Raises:
            NothingToDoError: all can be read.
        """
        return plan_set_aside(self._steps)

    def plan_reset(self) -> ResetPlan:
        """To drop this pipeline's rows, dead letters, ledger and staging: for development.

        The next run starts anew; nothing tells of what was dropped. It may be applied twice.

        Raises:
            RefusedError: the sink leaves this to a person; says how.
        """
        return plan_reset(self._steps)

    def reset(self) -> None:
        """:meth:`plan_reset` and apply the plan, unseen."""
        self.plan_reset().apply()
