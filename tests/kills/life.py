"""One life: a pipeline, a topic and a table of its own; a plan; and what came of it."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import NewPartitions, NewTopic
from deltalake.exceptions import DeltaError, TableNotFoundError
from polars.exceptions import PolarsError

from tests.kills import faults
from tests.kills.history import History
from tests.kills.judge import Ends, Fault, Finding, Judge, Record, Row, Topic, ends_of
from tests.kills.plan import PARTITIONS, Step, grown_beyond
from tests.kills.processes import Operation, Outcome
from tests.kills.targets import Target
from tests.kills.world import World

#: What a run may say under these faults, and be right. Anything else is noted as odd.
EXPECTED_ERRORS = frozenset(
    {
        "CommitUnknownError",
        "FencedError",
        "GoingBackError",
        "NothingToDoError",
        "SinkUnavailableError",
        "SourceUnavailableError",
        "SparkUnavailableError",
        "StalePlanError",
        "UnknownCheckpointError",
    }
)
#: Runs with nothing wrong any more until one comes through: so many at least, and so many seconds.
_LAST_TRIES, _LAST_S = 12, 180.0
#: A machine that has too much to do, or servers that were started again and do not answer.
_AWAY = frozenset({"SinkUnavailableError", "SourceUnavailableError", "SparkUnavailableError"})
_KEYS_OF_A_PARTITION = 25
#: Faults under which an operation that comes through takes the time that it usually takes.
_LEAVE_ALONE = ("none", "kill", "kill at a point")
#: How long operations of a kind took lately, in all lives on a store.
_USUAL: dict[tuple[str, str], deque[float]] = {}
_GUESS_S = 3.0
_LEAST_RECORDS = 20
#: What a truncated log loses.
_LOST_RECORDS = 10
#: What readers of files say of a table that is not whole, and how often they may try.
UNREADABLE = (
    DeltaError,
    PolarsError,
    TableNotFoundError,
    duckdb.Error,
    pyarrow.ArrowInvalid,
    json.JSONDecodeError,
)
_READS = 4
#: Seconds until every client of a topic knows a partition that was added.
_KNOWN_S = 60.0


@dataclass
class Sums:
    """What was done in a life, and what was found."""

    operations: int = 0
    records: int = 0
    looks: int = 0
    rows: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    not_tried: list[str] = field(default_factory=list)


@dataclass
class _Fork:
    """``at`` is known once it was told."""

    name: str
    table: str
    at: int | None = None
    starts: Ends | None = None


class Life:
    """See the module's text. Afterwards ``sums`` says it all; nothing raises but the machine."""

    def __init__(self, world: World, target: Target, seed: str, folder: Path) -> None:
        self.world, self.target, self.seed = world, target, seed
        self.folder = folder
        self.sums = Sums()
        self.history = History(folder / "history.jsonl")
        self.table = target.make()
        self._settings = target.vary(self.table, seed)
        self.topic = Topic()
        self._judge = target.judge(self.topic)
        self._name = f"in-{uuid.uuid4().hex[:10]}"
        self._partitions = PARTITIONS
        self._next_id = 0
        self._forks: list[_Fork] = []
        self._staging = target.folder / "staging" / self._name
        self._make_topic()
        self._producer = self._new_producer()

    # ---- what a plan asks for ----

    def live(self, plan: Sequence[Step], until: float) -> None:
        """Step by step, then everything is healed, read to the end and compared."""
        told = {"seed": self.seed, "target": self.target.name, "settings": self._settings}
        self.history.note("info", "life", **told)
        for step in plan:
            if time.monotonic() > until:
                break
            self._take(step)
        self._end()
        self.history.note("info", "sums", **_plain(self.sums))
        self.history.close()

    def _take(self, step: Step) -> None:
        self.write(step.records)
        if step.operation == "add partitions":
            self._add_partition()
        began, before = self.topic.ends(), self._judge.rows
        try:
            outcome = faults.FAULTS[step.fault](self, step)
        except faults.NotPossibleError as error:
            self._not_tried(f"{step.fault}: {error}")
            return
        self.world.heal(self.target)
        self.ended(outcome, full=step.fault == "fill the disk")
        self._look_after(step, outcome, began, before)

    def _look_after(self, step: Step, outcome: Outcome, began: Ends, before: Sequence[Row]) -> None:
        """What a reader sees, and what the operation said of it."""
        operation = self._operation(step)
        if operation == "rewind" and "to" in outcome.told:
            self._judge.may_fall(outcome.told["to"])
        self.look(at_least=began if outcome.ok and operation == "run" else None)
        alone = step.fault not in ("race", "freeze")
        if outcome.ok and alone:
            if step.fault in _LEAVE_ALONE:
                self._usual(operation, outcome.seconds)
            if operation == "rewind":
                self._found(self._judge.rewound(before, outcome.value["to"]))
            if operation == "replay" and outcome.value["checkpoints"]:
                self._found(
                    self._judge.replayed(outcome.value["checkpoints"], outcome.value["rev"])
                )
            if operation in ("run", "rewind"):  # they moved the head: whoever was late is fenced
                self._judge.settled()
        if operation == "fork" and "at" in outcome.told:
            self._fork_stands(outcome.told["at"], sure=outcome.ok)

    # ---- for the faults ----

    def begin(
        self,
        step: Step,
        *,
        crash: tuple[str, int] | None = None,
        port: int | None = None,
    ) -> Operation:
        """The step's operation, under way."""
        operation = self._operation(step)
        asked: dict[str, Any] = {"operation": operation, "fraction": step.aim, "rev": step.rev}
        if operation == "fork":
            fork = _Fork(f"fork-{len(self._forks)}", self.target.make())
            self._forks.append(fork)
            asked |= {"name": fork.name, "sink": self.target.sink(fork.table)}
        if crash is not None:
            asked["crash"] = crash
        rev = step.rev if operation == "replay" else 0
        config = self._config(
            rev=rev,
            files=step.files,
            overlap=step.overlap,
            port=port,
            max_records=self._share(step.checkpoints),
        )
        self.sums.operations += 1
        self.history.note("invoke", operation, fault=step.fault, step=step.to_json())
        return self._begun(config, asked)

    def begin_rival(self) -> Operation:
        """An orderly run beside another operation."""
        self.history.note("invoke", "run", fault="none", rival=True)
        self.sums.operations += 1
        return self._begun(self._config(), {"operation": "run"})

    def rival(self) -> Outcome:
        """An orderly run, until it ends."""
        outcome = self.begin_rival().wait()
        self.ended(outcome)
        return outcome

    def look_beside(self, frozen: Operation, outcome: Outcome) -> None:
        """What a reader sees after another's run while ``frozen`` sleeps."""
        told = frozen.told()
        if "to" in told:
            self._judge.may_fall(told["to"])
        self.look(at_least=self.topic.ends() if outcome.ok else None)

    def moment(self, step: Step) -> float:
        """The step's share of the usual time, in seconds."""
        usual = _USUAL.get((self.target.name, self._operation(step)))
        seconds = step.share * (statistics.median(usual) if usual else _GUESS_S) * 1.1
        self.history.note("fault", step.fault, after=round(seconds, 3))
        return seconds

    def counted(self, whom: str, outcome: Outcome) -> Outcome:
        """Counts a kill that met its process alive."""
        if outcome.killed:
            self.killed(whom)
        return outcome

    def killed(self, whom: str) -> None:
        self.sums.kills[whom] += 1
        self.history.note("fault", "killed", whom=whom)

    def happened(self, what: str) -> None:
        """Another fault than a kill has taken place."""
        self.sums.faults[what] += 1
        self.history.note("fault", what)

    def ended(self, outcome: Outcome, *, full: bool = False) -> None:
        """Notes how an operation ended; ``full``: on a disk without room."""
        self.history.note(
            outcome.kind,
            "operation",
            seconds=round(outcome.seconds, 3),
            told=outcome.told,
            value=outcome.value,
            killed=outcome.killed,
        )
        error = outcome.value.get("error")
        if error and error not in EXPECTED_ERRORS and not (full and error == "SetupError"):
            self.sums.odd[error] += 1

    def write(self, count: int) -> None:
        """So many records, acknowledged by the broker."""
        if not count:
            return
        before = len(self.topic.records)
        for _ in range(count):
            partition = self._next_id % self._partitions
            turn = self._next_id // self._partitions % _KEYS_OF_A_PARTITION
            record = Record(self._next_id, f"{partition}:{turn}", f"record {self._next_id}")
            self._produce(json.dumps(record._asdict()).encode(), partition)
            self._next_id += 1
        if self._producer.flush(60) or len(self.topic.records) != before + count:
            raise TimeoutError("the broker did not acknowledge what was written")
        self.sums.records += count
        self.history.note("ok", "write", count=count, ends=self.topic.ends())

    def look(self, *, at_least: Ends | None = None) -> None:
        """Read the table, and judge it."""
        rows = self._read(self.table)
        newest = max((row.checkpoint for row in rows), default=None)
        self.history.note("look", "table", rows=len(rows), newest=newest, ends=ends_of(rows))
        self._found(self._judge.look(rows, at_least=at_least))

    # ---- the end ----

    def _end(self) -> None:
        self.world.heal(self.target)
        if not self._comes_through(self._config(), "run"):
            return
        self._judge.settled()
        self.write(30)
        if not self._comes_through(self._config(), "run"):
            return
        rows = self._read(self.table)
        self.history.note("look", "table at the end", rows=len(rows))
        self._found(self._judge.exact(rows))
        for fork in self._forks:
            self._end_of(fork)
        if (more := grown_beyond(self.seed)) is not None:
            self._truncate(more)
        self._clean()

    def _truncate(self, more: int) -> None:
        """The broker comes back with an older log of a partition, which then grows past what was
        read by so many records: the next run reads nothing, and says why.
        """
        log = self.world.broker.folder / "data" / f"{self._name}-0"
        older, ends = self.folder / "older", self.topic.ends()
        self._while_the_broker_is_away(lambda: shutil.copytree(log, older))
        self.write(_LOST_RECORDS * self._partitions)
        if not self._comes_through(self._config(), "run"):
            return

        def put_back() -> None:
            shutil.rmtree(log)
            shutil.copytree(older, log)

        self._while_the_broker_is_away(put_back)
        for offset in range(ends[0], self.topic.ends()[0]):
            del self.topic.records[0, offset]
        self._producer = self._new_producer()  # the older log does not know how far that one wrote
        self.write((_LOST_RECORDS + more) * self._partitions)
        self.happened("log truncated")
        for _ in range(_LAST_TRIES):
            outcome = self._begun(self._config(), {"operation": "run"}).wait()
            if outcome.ok or outcome.value.get("error") not in _AWAY:
                break
        said = outcome.value.get("error")
        self.history.note("info", "run on a truncated log", ok=outcome.ok, said=said)
        if outcome.ok:
            text = "records of a log that was truncated and had grown again, without a word"
            self._found([Finding(Fault.LOST, _LOST_RECORDS, text)])
        elif said != "DataLossError":
            self.sums.odd[str(said)] += 1

    def _while_the_broker_is_away(self, act: Callable[[], object]) -> None:
        with self.world.changing:
            self.world.broker.kill()
            try:
                act()
            finally:
                self.world.broker.start()

    def _end_of(self, fork: _Fork) -> None:
        """A fork goes on from where it was made: with everything since, and nothing before."""
        if fork.starts is None:  # it died before it had decided where; nothing was written
            return
        config = self._config() | {"name": fork.name, "sink": self.target.sink(fork.table)}
        if not self._comes_through(config, "run"):
            return
        rows = self._read(fork.table)
        self.history.note("look", fork.name, rows=len(rows), starts=fork.starts)
        self._found(Judge(self.topic, fork.starts).exact(rows))
        self.target.drop(fork.table)

    def _fork_stands(self, at: int, *, sure: bool) -> None:
        """A fork that may have been killed is made again, at the same version."""
        fork = self._forks[-1]
        asked = {"name": fork.name, "sink": self.target.sink(fork.table), "at": at}
        if not sure and not self._comes_through(self._config(), "fork", **asked):
            return
        self.look()
        fork.at, fork.starts = at, ends_of(self._judge.rows, at)
        self.history.note("info", "fork", at=at, starts=fork.starts)

    def _comes_through(self, config: dict[str, Any], operation: str, **more: Any) -> bool:
        """Whether an operation with nothing in its way succeeds, in several tries.

        Raises:
            TimeoutError: all that it said is that a server does not answer, which none kills now.
        """
        until = time.monotonic() + _LAST_S
        for tried in itertools.count(1):
            self.history.note("invoke", operation, fault="none")
            self.sums.operations += 1
            outcome = self._begun(config, {"operation": operation, **more}).wait()
            self.ended(outcome)
            if outcome.ok or (tried >= _LAST_TRIES and time.monotonic() > until):
                break
            self.world.heal(self.target)
        if outcome.ok:
            self._usual(operation, outcome.seconds)
        elif outcome.value.get("error") in _AWAY:
            raise TimeoutError(f"a server does not answer: {outcome.value.get('text')}")
        else:
            self.sums.found["stuck"] += 1
            self.history.note("found", "stuck", value=outcome.value)
        return outcome.ok

    def _clean(self) -> None:
        self.target.drop(self.table)
        self.world.admin.delete_topics([self._name])[self._name].result()

    # ---- the rest ----

    def _operation(self, step: Step) -> str:
        return "run" if step.operation == "add partitions" else step.operation

    def _begun(self, config: dict[str, Any], asked: dict[str, Any]) -> Operation:
        return Operation(config, {**asked, "log": str(self.folder / "operations.log")})

    def _config(
        self,
        *,
        rev: int = 0,
        files: bool = True,
        overlap: bool = False,
        port: int | None = None,
        max_records: int = 5_000,
    ) -> dict[str, Any]:
        config = {
            "name": "life",
            "source": {
                "bootstrap_servers": self.world.broker.bootstrap_servers,
                "topics": [self._name],
                "value_schema": "id BIGINT NOT NULL, key STRING NOT NULL, name STRING",
                "max_records": max_records,
                "request_timeout": 10,
            },
            "sink": self.target.sink(self.table, port),
            "transform": f"tests.kills.transforms:rev_{rev}",
            "staging": str(self._staging),
            "inline_records": 0 if files else 10_000,
            "overlap": overlap,
            "spark": {"connect_timeout": 5},
        }
        return self.target.document(config, self.table)

    def _read(self, table: str) -> Sequence[Row]:
        """All that a reader sees. A table that cannot be read is a wrong one."""
        for left in reversed(range(_READS)):
            try:
                rows = self.target.rows(table)
            except UNREADABLE as error:
                if not left:
                    self._found([Finding(Fault.WRONG, 1, f"cannot be read: {error}")])
                    raise TimeoutError(f"{table} cannot be read") from error
                time.sleep(1.0)
            else:
                break
        self.sums.looks += 1
        self.sums.rows += len(rows)
        return rows

    def _share(self, checkpoints: int) -> int:
        """The most records of a checkpoint, for so many of them."""
        seen = sum(ends_of(self._judge.rows).values())
        return max(_LEAST_RECORDS, (len(self.topic.records) - seen) // checkpoints + 1)

    def _usual(self, operation: str, seconds: float) -> None:
        _USUAL.setdefault((self.target.name, operation), deque(maxlen=9)).append(seconds)

    def _found(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self.sums.found[finding.fault.value] += finding.times
            self.history.note("found", finding.fault.value, count=finding.times, text=finding.text)

    def _not_tried(self, why: str) -> None:
        self.sums.not_tried.append(why)
        self.history.note("info", "not tried", why=why)

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.world.broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def _make_topic(self) -> None:
        asked = NewTopic(self._name, self._partitions, 1)
        self.world.admin.create_topics([asked])[self._name].result()

    def _add_partition(self) -> None:
        self._partitions += 1
        asked = NewPartitions(self._name, self._partitions)
        self.world.admin.create_partitions([asked])[self._name].result()
        until = time.monotonic() + _KNOWN_S
        while len(self._producer.list_topics(self._name).topics[self._name].partitions) < (
            self._partitions
        ):
            if time.monotonic() > until:
                raise TimeoutError(f"nobody knows the new partition of {self._name}")
            time.sleep(0.02)
        self.history.note("ok", "add partitions", total=self._partitions)

    def _produce(self, value: bytes, partition: int) -> None:
        until = time.monotonic() + _KNOWN_S
        while True:
            try:
                self._producer.produce(
                    self._name, value=value, partition=partition, on_delivery=self._delivered
                )
            except KafkaException as error:  # the producer asks for the new partition by itself
                if error.args[0].name() != "_UNKNOWN_PARTITION" or time.monotonic() > until:
                    raise
                self._producer.poll(0.05)
            else:
                return

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            value = Record(**json.loads(message.value() or b"{}"))
            self.topic.records[int(message.partition() or 0), int(message.offset() or 0)] = value


def _plain(sums: Sums) -> dict[str, Any]:
    return {**vars(sums)}
