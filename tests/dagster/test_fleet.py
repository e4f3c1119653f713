"""Many pipelines in one Dagster: one look for all, and nobody who is away holds up the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from eo_pipeline.dagster import fleet_sensors
from eo_pipeline.dagster.definitions import load_pipelines, without_topics
from eo_pipeline.dagster.fleet_sensors import (
    Memory,
    check_fleet,
    cursors_of,
    reconcile_fleet,
    to_cursor,
)
from eo_pipeline.dagster.mirror import Progress
from eo_pipeline.dagster.naming import Automation, DagsterPipeline, Fleet
from eo_pipeline.dagster.topics import lag_check
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.errors import EoPipelineError
from eo_pipeline.kafka.admin import KafkaAdmin, SharedKafkaAdmin
from eo_pipeline.ledger.entry import EntryId, new_transaction_id
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.postgres.connection import PostgresStore
from tests.dagster.projects import write_project
from tests.dagster.steps import materialize, versions
from tests.support.engine import Bench, Topic
from tests.support.servers import MakeDatabase, MakeTopic, wait_until
from tests.support.stores import MySqlDatabase, on_both_servers_by_chaos
from tests.support.topics import add_partitions


@dataclass
class Ships:
    """A fleet in one test: its pipelines by name, and what its sensors answered and said."""

    bench: Bench
    topics: MakeTopic
    folder: Path
    instance: dg.DagsterInstance
    fleet: Fleet = field(default_factory=Fleet)
    members: dict[str, DagsterPipeline] = field(default_factory=dict)
    written: dict[str, Topic] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    said: list[str] = field(default_factory=list)

    def add(
        self, name: str, *, automation: dict[str, Any] | None = None, **changes: Any
    ) -> DagsterPipeline:
        """A pipeline that reads a topic of its own into a table of its own."""
        topic = Topic(self.topics(partitions=2), self.bench.topic.bootstrap_servers)
        source = {"topics": [topic.name], **changes.pop("source", {})}
        sink = changes.pop("sink", {"table": name})
        config = {**self.bench.config, "name": name, **changes}
        config["source"] = {**self.bench.config["source"], **source}
        config["sink"] = sink if "type" in sink else {**self.bench.config["sink"], **sink}
        declared = Automation(**{"lag_interval_seconds": 1, **(automation or {})})
        member = DagsterPipeline(Pipeline.from_config(config), declared, fleet=self.fleet)
        self.members[name], self.written[name] = member, topic
        return member

    def look(self) -> dg.SensorResult:
        """A tick of the lag sensor, long after the one before; its events are kept as the daemon
        keeps them.
        """
        self.memory.polled_at.clear()
        return self._kept(
            check_fleet(
                self.fleet,
                list(self.members.values()),
                self.instance,
                self.memory,
                log=self.said.append,
            )
        )

    def reconcile(self, cursor: str | None = None) -> dg.SensorResult:
        """A tick of the reconciler."""
        members = list(self.members.values())
        return self._kept(
            reconcile_fleet(members, self.instance, self.memory, cursor, log=self.said.append)
        )

    def _kept(self, answer: dg.SensorResult) -> dg.SensorResult:
        for event in answer.asset_events:
            self.instance.report_runless_asset_event(event)
        return answer

    def started(self, request: dg.RunRequest) -> None:
        """What the daemon does with a request."""
        assert request.job_name
        self.instance.add_run(
            dg.DagsterRun(
                job_name=request.job_name,
                run_id=f"{len(self.instance.get_runs()):032d}",
                tags=dict(request.tags),
                status=dg.DagsterRunStatus.STARTED,
            )
        )

    def follows(self, name: str) -> bool:
        """What the check of the pipeline's topic shows."""
        member = self.members[name]
        key = lag_check(member, member.topics[0])
        storage = self.instance.event_log_storage
        shown = storage.get_latest_asset_check_execution_by_key([key])[key].evaluation
        assert isinstance(shown, dg.AssetCheckEvaluation)
        return shown.passed


@pytest.fixture
def ships(
    bench: Bench, make_topic: MakeTopic, tmp_path: Path, instance: dg.DagsterInstance
) -> Ships:
    return Ships(bench, make_topic, tmp_path, instance)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Kafka and PostgreSQL are asked from here on: looks, and connections."""
    asked: list[str] = []
    for where, name, what in (
        (SharedKafkaAdmin, "clusters", "a look for all"),
        (KafkaAdmin, "cluster", "a look for one"),
        (PostgresStore, "connect", "a connection"),
    ):
        monkeypatch.setattr(where, name, _counted(getattr(where, name), asked, what))
    return asked


def _counted(method: Any, asked: list[str], what: str) -> Any:
    def counted(self: Any) -> Any:
        asked.append(what)
        return method(self)

    return counted


def jobs(answer: dg.SensorResult) -> list[str | None]:
    return [request.job_name for request in answer.run_requests or []]


def said(answer: dg.SensorResult) -> str:
    assert answer.skip_reason
    return str(answer.skip_reason.skip_message)


@pytest.mark.core
def test_each_broker_and_store_is_asked_once_for_all_and_each_pipeline_gets_its_own_run(
    ships: Ships, questions: list[str]
) -> None:
    ships.add("orders")
    ships.add("returns")
    lake = {"type": "delta", "path": str(ships.folder / "lake")}
    ships.add("payments", sink=lake, automation={"lag_threshold": 10})
    for member in ships.members.values():
        materialize(member, ships.instance)
    for name in ("orders", "payments"):
        ships.written[name].write(5)
    questions.clear()

    answer = ships.look()

    assert questions == ["a connection", "a look for all"]
    [request] = answer.run_requests or []
    assert request.job_name == "orders_job"
    assert request.tags == {"eo/pipeline": "orders", "eo/lag": "5"}
    assert len(answer.asset_events) == 6
    materialize(ships.members["orders"], ships.instance)
    ships.written["payments"].write(5)
    assert jobs(ships.look()) == ["payments_job"]
    materialize(ships.members["payments"], ships.instance)
    assert said(ships.look()) == "3 pipelines: no run to start"
    # nothing happened, so nothing is told
    assert ships.look().asset_events == []


def test_who_is_away_is_told_by_name_and_the_others_get_their_runs(ships: Ships) -> None:
    ships.add("orders")
    nowhere = f"127.0.0.1:{free_port()}"
    ships.add("deaf", source={"bootstrap_servers": nowhere})
    ships.add("lost", sink={"table": "lost", "dsn": f"postgresql://{nowhere}/x"})
    ships.add("wrong", sink={"table": "elsewhere.wrong"})
    ships.add("early", source={"topics": ["nobody-has-made-it"]})
    ships.written["orders"].write(5)

    answer = ships.look()

    assert jobs(answer) == ["orders_job"]
    [told] = ships.said
    for each in (
        "deaf: Could not reach Kafka at",
        "lost: PostgreSQL does not",
        "wrong: sink.table: the database",
    ):
        assert each in told
    assert {name: ships.follows(name) for name in ("orders", "deaf", "lost", "wrong")} == {
        "orders": True,
        "deaf": False,
        "lost": False,
        "wrong": False,
    }
    # red is told once, and so is that it is over
    assert ships.look().asset_events == []
    ships.members["lost"] = ships.add("lost")
    ships.look()
    assert ships.follows("lost")
    compared = said(ships.reconcile())
    assert "wrong: sink.table" in compared
    assert compared.startswith("5 ledgers, 0 compared")


def test_a_store_that_hangs_is_asked_once_and_the_others_get_their_runs(
    ships: Ships, make_database: MakeDatabase, questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a database takes the question and does not answer. Outcome: the round goes on
    without it, and the next one opens no further connection to it.
    """
    monkeypatch.setattr(fleet_sensors, "STORES_S", 1.0)
    ships.add("orders")
    other = make_database()
    ships.add("stuck", sink={"table": "stuck", "dsn": other})
    for member in ships.members.values():
        member.pipeline.run()
        ships.written[member.pipeline.name].write(1)
    with psycopg.connect(other) as holder:
        holder.execute("lock table eo_ledger in access exclusive mode")
        assert jobs(ships.look()) == ["orders_job"]
        questions.clear()
        assert jobs(ships.look()) == ["orders_job"]
        assert questions == ["a connection", "a look for all"]
        assert "stuck: no response in time" in ships.said[-1]
    wait_until(lambda: jobs(ships.look()) == ["orders_job", "stuck_job"])


def test_a_tick_at_which_nobody_can_be_looked_at_fails_with_the_reason(ships: Ships) -> None:
    ships.add("deaf", source={"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(EoPipelineError, match="Connection refused"):
        ships.look()
    assert not ships.follows("deaf")


def test_a_tick_asks_for_so_many_runs_and_the_next_one_for_the_others(ships: Ships) -> None:
    ships.fleet = Fleet(runs_a_tick=2)
    for name in ("a", "b", "c"):
        ships.add(name)
        ships.written[name].write(1)
    answer = ships.look()
    assert jobs(answer) == ["a_job", "b_job"]
    for request in answer.run_requests or []:
        ships.started(request)
    assert jobs(ships.look()) == ["c_job"]


def test_a_pipeline_is_looked_at_by_its_own_interval(ships: Ships) -> None:
    ships.add("often")
    ships.add("rarely", automation={"lag_interval_seconds": 300})
    assert jobs(ships.look()) == ["often_job", "rarely_job"]
    ships.memory.polled_at = {name: at - 60 for name, at in ships.memory.polled_at.items()}
    members = list(ships.members.values())
    again = check_fleet(ships.fleet, members, ships.instance, ships.memory, log=ships.said.append)
    assert jobs(again) == ["often_job"]


def test_records_in_new_partitions_start_a_run_also_without_a_threshold(
    ships: Ships, admin: Any
) -> None:
    member = ships.add("orders", automation={"lag_threshold": None})
    materialize(member, ships.instance)
    topic = ships.written["orders"]
    topic.write(5)
    assert said(ships.look()) == "1 pipelines: no run to start"
    add_partitions(admin, topic.name, 3)
    topic.write(5, partitions=[2])
    [request] = ships.look().run_requests or []
    assert request.tags["eo/new_partitions"] == f"{topic.name}[2]"


def test_ledgers_that_moved_are_compared_and_no_others(ships: Ships, questions: list[str]) -> None:
    for name in ("orders", "returns"):
        ships.add(name)
        ships.written[name].write(3)
        ships.members[name].pipeline.run()
    first = ships.reconcile()
    for member in ships.members.values():
        assert versions(ships.instance, member.offsets) == [0, 1]
    assert said(first) == "2 ledgers, 2 compared"
    # what stands was shown with it, so one more tick finds that all agree
    questions.clear()
    second = ships.reconcile(first.cursor)
    assert said(second) == "2 ledgers, 0 compared"
    assert questions == ["a connection"]

    ships.written["orders"].write(1)
    ships.members["orders"].pipeline.run()
    ships.memory = Memory()  # another code server
    third = ships.reconcile(second.cursor)

    assert said(third) == "2 ledgers, 1 compared"
    assert versions(ships.instance, ships.members["orders"].offsets) == [0, 1, 2]
    assert versions(ships.instance, ships.members["returns"].offsets) == [0, 1]


@on_both_servers_by_chaos(but="mariadb")
def test_heads_of_many_come_from_another_database_as_well(
    ships: Ships, mysql_database: MySqlDatabase
) -> None:
    for name in ("one", "two"):
        ships.add(name, sink=mysql_database.settings(table=name))
    ships.members["one"].pipeline.run()
    sink = ships.members["two"].pipeline.sink
    assert sink.store == ships.members["one"].pipeline.sink.store
    assert sink.heads(["one", "two"]) == {"one": ships.members["one"].pipeline.head(), "two": None}


DOCUMENT = """
name: %s
source: {bootstrap_servers: "broker:9092", topics: [orders], value_format: raw}
sink: {type: postgres, dsn: "postgresql://host/db", table: %s}
"""


def test_a_folder_of_documents_is_a_fleet_with_two_sensors_and_one_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    documents = [DOCUMENT % (name, name) for name in ("a", "b")]
    own = DOCUMENT % ("c", "c") + "pool: mine\nschedule: '@hourly'"
    folder = write_project(tmp_path, *documents, own)
    loaded = load_pipelines(folder, fleet=Fleet(name="sales", sensors="running"))
    dg.Definitions.validate_loadable(loaded)

    repository = loaded.get_repository_def()
    sensors = {each.name: each for each in repository.sensor_defs}
    assert sensors.keys() == {"sales_lag", "sales_reconciler"}
    assert {t.job_name for t in sensors["sales_lag"].targets} == {"a_job", "b_job", "c_job"}
    assert all(e.default_status is dg.DefaultSensorStatus.RUNNING for e in sensors.values())
    pools = {
        name: repository.get_job(f"{name}_job").get_node_named(f"eo_{name}").definition.pools
        for name in ("a", "b", "c")
    }
    assert pools == {"a": {"spark"}, "b": {"spark"}, "c": {"mine"}}
    assert {each.name for each in repository.schedule_defs} == {"c_schedule"}
    assert repository.has_job("sales_rewind")


def test_a_job_of_many_pipelines_holds_its_own_assets_and_no_others(tmp_path: Path) -> None:
    """Also where somebody else's assets hang on them."""
    declared = [
        DagsterPipeline(
            Pipeline.from_config(
                {
                    "name": name,
                    "source": {
                        "bootstrap_servers": "broker:9092",
                        "topics": ["t"],
                        "value_format": "raw",
                    },
                    "sink": {"type": "delta", "path": str(tmp_path / name)},
                }
            ),
            Automation(),
        )
        for name in ("a", "b")
    ]
    below = dg.AssetSpec("below", deps=["a"])
    made = dg.Definitions.merge(
        *(without_topics(each) for each in declared), dg.Definitions(assets=[below])
    )
    job = made.resolve_job_def("a_job")
    assert job.asset_layer.executable_asset_keys == {dg.AssetKey("a"), dg.AssetKey("a_offsets")}
    checks = {key.name for key in job.asset_layer.asset_graph.asset_check_keys}
    assert checks == {"ledger_contiguous", "agrees_with_sink"}


def test_the_cursor_of_many_is_small_and_comes_back() -> None:
    heads = {f"p{n:03d}": EntryId(n, new_transaction_id()) for n in range(200)}
    cursors = {name: Progress(at, 7, shown=at).to_cursor() for name, at in heads.items()}
    packed = to_cursor(cursors)
    assert cursors_of(packed) == cursors
    assert len(packed) < 10_000
    assert cursors_of(None) == cursors_of("something else") == {}
