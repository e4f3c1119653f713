"""`eo` as people and scripts use it: real Kafka, real PostgreSQL, exit codes, and what is printed.

Most commands run in this process, which saves the second that Python needs to import Spark; what
only a process of its own shows (stdout, a terminal, an interrupt) runs in one.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from eo_pipeline import Pipeline
from eo_pipeline.cli.app import app
from tests.engine import Bench
from tests.servers import MakeDatabase, MakeTopic
from tests.topics import recreate

SECRET = "hunter2"


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Shell:
    """``eo`` in a folder of its own, with a bench behind it. No command may print the password."""

    folder: Path
    bench: Bench

    def __call__(self, *arguments: str) -> Ended:
        found = CliRunner().invoke(app, arguments)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return self._checked(Ended(found.exit_code, found.stdout, found.stderr))

    def process(self, *arguments: str) -> Ended:
        """The same in a process of its own."""
        command = [sys.executable, "-m", "eo_pipeline.cli", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return self._checked(Ended(found.returncode, found.stdout, found.stderr))

    def document(self, file: str = "pipeline.yaml", /, **changes: Any) -> Path:
        """The bench's pipeline as a document."""
        path = self.folder / file
        config = {**self.bench.config, "sink": self.sink(), **changes}
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    def sink(self) -> dict[str, Any]:
        return {**self.bench.config["sink"], "dsn": "${EO_TEST_DSN}"}

    def versions(self) -> list[int]:
        return self.bench.table.versions()

    def _checked(self, ended: Ended) -> Ended:
        assert SECRET not in ended.out + ended.err
        assert "Traceback" not in ended.err
        return ended


@pytest.fixture
def eo(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("EO_PIPELINES", raising=False)
    # the server trusts this machine and looks at no password
    monkeypatch.setenv("EO_TEST_DSN", make_conninfo(bench.table.dsn, password=SECRET))
    repository = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", repository)
    return Shell(tmp_path, bench)


def test_from_a_topic_to_a_table_and_back_and_forth(eo: Shell) -> None:
    topic, table = eo.bench.topic, eo.bench.table
    topic.write(200, partitions=(0, 1))

    begun = eo(
        *("init", "--bootstrap", topic.bootstrap_servers, "--topic", topic.name),
        *("--sink", "postgres", "--set", "dsn=${EO_TEST_DSN}", "--set", "table=events"),
        *("--name", "events", "--out", "pipeline.yaml", "--not-null"),
    )
    assert begun.code == 0, begun.err
    assert "200 records of 4 partitions" in begun.out
    assert Pipeline.from_yaml("pipeline.yaml").source.value_schema == (
        "id BIGINT NOT NULL,\nname STRING NOT NULL"
    )
    assert eo("init", "--topic", "x", "--out", "pipeline.yaml").code == 2

    planned = eo("plan", "--json").json()
    assert (planned["offsets"], planned["version"]) == (200, None)
    assert planned["ranges"][topic.name] == {"0": [0, 100], "1": [0, 100]}

    # stdout of a real process holds JSON lines alone
    ran = eo.process("run", "--json", "--run-id", "first")
    assert ran.code == 0, ran.err
    checkpoint, summary = ran.lines()[-2:]
    assert checkpoint["checkpoint"]["entry"]["counts"]["rows"] == 200
    assert summary["run"]["rows_total"] == 200
    assert summary["run"]["run_id"] == "first"

    topic.write(10)
    (status,) = eo("status", "--json").json()
    assert (status["version"], status["lag"], status["run_id"]) == (1, 10, "first")
    piped = eo("status").out.splitlines()
    assert piped[0].split()[:5] == ["pipeline", "version", "kind", "lag", "rows"]
    assert piped[1].split()[:5] == ["events", "1", "forward", "10", "200"]

    again = eo("run")
    assert again.code == 0
    assert "events is at version 2: 10 rows more, 210 in all, lag 0" in again.out

    # what would change is shown, and nothing changes without a yes
    dry = eo("rewind", "1", "--dry-run", "--json")
    assert (dry.code, dry.json()["rows"], dry.json()["target"]) == (0, 10, 1)
    refused = eo("rewind", "1")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert eo.versions() == [0, 1, 2]
    done = eo("rewind", "1", "--yes", "--reason", "a test", "--json")
    assert done.code == 0
    (entry,) = done.json()["entries"]
    assert entry["operation"] == "rewind"
    assert entry["details"]["reason"] == "a test"
    assert entry["details"]["asked_by"]
    assert sum(table.coordinates().values()) == 200

    assert eo("run").code == 0
    replayed = eo("replay", "1", "--also", "4", "--yes", "--json")
    assert replayed.code == 0, replayed.out
    assert [next(iter(line)) for line in replayed.lines()] == ["checkpoint", "checkpoint", "replay"]
    assert [e["target"] for e in replayed.lines()[-1]["replay"]["entries"]] == [1, 4]
    assert set(table.coordinates().values()) == {1}
    assert table.coordinates().keys() == topic.written

    listed = eo("checkpoints", "--json").json()["checkpoints"]
    assert [(e["version"], e["operation"], e["live"]) for e in listed] == [
        *((0, "start", True), (1, "forward", True), (2, "forward", False), (3, "rewind", True)),
        *((4, "forward", True), (5, "replay", True), (6, "replay", True)),
    ]
    shown = eo("checkpoints", "-n", "2").out.splitlines()
    assert [line.split()[:4] for line in shown[1:]] == [
        ["5", "replay", "1", "live"],
        ["6", "replay", "4", "live"],
    ]

    entry = eo("show", "2", "--json").json()
    assert (entry["live"], entry["counts"]["rows"]) == (False, 10)
    assert "dead: a rewind left it behind" in eo("show", "2").out
    missing = eo("show", "99", "--json")
    assert (missing.code, missing.json()["error"]["kind"]) == (1, "UnknownCheckpointError")

    between = eo("diff", "4", "1", "--json").json()
    assert (between["from"], between["to"], between["rows_total"]) == (1, 4, [200, 210])
    assert between["offsets"] == {topic.name: {"0": [100, 110]}}
    assert [e["operation"] for e in between["between"]] == ["forward", "rewind", "forward"]
    assert "rows 200 -> 210 (+10)" in eo("diff", "1", "4").out

    lost = eo("accept-loss", "--reason", "none", "--yes", "--json")
    assert (lost.code, lost.json()["error"]["kind"]) == (1, "NothingToDoError")
    assert eo("adopt", "--reason", "none", "--yes").code == 1

    proved = eo("audit", "--json")
    assert (proved.code, proved.json()["passed"]) == (0, True)
    table.execute("delete from events where id = 7")
    differs = eo("audit", "--last", "2", "--repair")
    assert differs.code == 3
    assert "eo replay 1 1" in differs.out


def test_a_fork_begins_where_it_was_told_and_its_document_has_no_secret(eo: Shell) -> None:
    topic = eo.bench.topic
    eo.document()
    for _ in range(2):
        topic.write(40)
        assert eo("run").code == 0
    fork = ("fork", "--at", "1", "--name", "events_v2", "--write", "v2.yaml", "--yes")

    assert eo(*fork).code == 2, "into the same table"
    assert eo(*fork, "--table", "events").code == 2, "into the same table, in so many words"
    assert eo(*fork, "--sink", "tabel=x").code == 2
    begun = eo(*fork, "--table", "events_v2", "--reason", "a test")
    assert begun.code == 0, begun.err

    written = yaml.safe_load(Path("v2.yaml").read_text())
    assert written == {
        **eo.bench.config,
        "name": "events_v2",
        "sink": {**eo.sink(), "table": "events_v2"},
    }
    assert eo("run", "-f", "v2.yaml").code == 0
    assert eo.bench.table.query("select count(*), min(id) from events_v2") == [(40, 40)]
    stati = eo("status", "-f", "pipeline.yaml", "-f", "v2.yaml", "--json").json()
    assert [(s["pipeline"], s["version"]) for s in stati] == [("events", 2), ("events_v2", 1)]


def test_records_that_kafka_lost_end_a_run_with_5_until_the_loss_is_accepted(
    eo: Shell, admin: AdminClient
) -> None:
    eo.document()
    eo.bench.topic.write(10)
    assert eo("run").code == 0
    recreate(admin, eo.bench.topic.name)

    lost = eo("run", "--json")
    assert (lost.code, lost.json()["error"]["kind"]) == (5, "DataLossError"), lost.out
    assert "deleted and created again" in eo("status").out
    assert "lost: " in eo("accept-loss", "--dry-run").out
    assert eo("accept-loss", "--yes").code == 2, "a reason is required"
    accepted = eo("accept-loss", "--yes", "--reason", "known", "--json")
    assert accepted.code == 0, accepted.out
    assert accepted.json()["operation"] == "accept_loss"
    assert eo("run").code == 0


def test_a_ledger_that_went_backwards_is_diagnosed_and_adopted(eo: Shell) -> None:
    eo.document()
    for _ in range(2):
        eo.bench.topic.write(5)
        assert eo("run").code == 0
    eo.bench.table.execute("delete from eo_ledger where version = 2")
    eo.bench.table.execute("delete from events where _eo_checkpoint = 2")

    assert eo("run").code == 1
    sick = {c["name"]: c for c in eo("doctor", "--json").json()["pipelines"]["events"]}
    assert sick["witnesses"]["state"] == "fail"
    assert "eo adopt" in sick["witnesses"]["remedy"]
    assert eo("adopt", "--dry-run", "--json").json() == {"pipeline": "events", "lost": [2]}
    assert eo("adopt", "--reason", "backup of Monday", "--yes").code == 0
    assert eo("run").code == 0
    eo.bench.table.assert_holds_once(eo.bench.topic.written)


def test_the_doctor_finds_what_is_broken_and_goes_on_to_the_next(
    eo: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    well = eo("doctor")
    assert well.code == 0, well.out
    assert "fail" not in well.out
    assert "Kafka 2.8 or newer" in well.out

    source = eo.bench.config["source"]
    away = {**source, "bootstrap_servers": "127.0.0.1:1"}
    absent = {**source, "topics": ["no-such-topic"]}
    eo.document("a.yaml", name="away", source=away)
    eo.document("b.yaml", name="absent", source=absent, sink={**eo.sink(), "table": "b"})
    eo.document("c.yaml", name="closed", sink={**eo.sink(), "dsn": "host=127.0.0.1 port=1"})
    eo.document("d.yaml", name="wrong", transform="no_such_module:f")
    monkeypatch.setenv("JAVA_HOME", str(eo.folder))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    files = [part for name in "abcd" for part in ("-f", f"{name}.yaml")]
    ill = eo("doctor", "--timeout", "2", "--json", *files)
    assert ill.code == 3
    found = ill.json()
    states = {
        name: {check["name"] for check in checks if check["state"] == "fail"}
        for name, checks in found["pipelines"].items()
    }
    # the table belongs to the pipeline `events`, which away is not
    assert states == {
        "away": {"spark", "broker", "sink"},
        "absent": {"spark", "topic"},
        "closed": {"spark", "sink"},
        "wrong": {"document"},
    }
    assert [c["name"] for c in found["machine"] if c["state"] == "fail"] == ["java"]
    checks = [c for part in found["pipelines"].values() for c in part]
    assert all(check["remedy"] for check in checks if check["state"] in ("fail", "warn"))


def test_the_doctor_finds_a_user_who_may_not_write_and_a_ledger_with_a_gap(
    eo: Shell, make_database: MakeDatabase
) -> None:
    table = eo.bench.table
    eo.document()
    for _ in range(3):
        eo.bench.topic.write(5)
        assert eo("run").code == 0
    role = f"reader_{os.getpid()}"
    table.execute(f"create role {role} login; grant select on eo_ledger, events to {role}")
    try:
        sink = {**eo.sink(), "dsn": make_conninfo(table.dsn, user=role)}
        eo.document("reader.yaml", sink=sink)
        reader = eo("doctor", "-f", "reader.yaml")
        assert reader.code == 3
        assert f"{role} may not" in reader.out
        assert "INSERT on eo_ledger" in reader.out
    finally:
        table.execute(f"drop owned by {role}; drop role {role}")
    table.execute("alter table eo_ledger drop constraint eo_ledger_parent")
    table.execute("update eo_ledger set ranges = '{}' where version = 2")
    gap = {c["name"]: c for c in eo("doctor", "--json").json()["pipelines"]["events"]}
    assert gap["ledger"]["state"] == "fail"
    assert "version 2" in gap["ledger"]["said"]


def test_a_server_that_is_away_means_try_again(eo: Shell) -> None:
    source = {**eo.bench.config["source"], "bootstrap_servers": "127.0.0.1:1"}
    eo.document(source={**source, "request_timeout": 0.5})
    away = eo.process("plan")
    assert away.code == 4
    assert away.out == ""
    assert away.err.startswith("Kafka at 127.0.0.1:1 could not be asked")
    status = eo("status", "--json")
    assert (status.code, status.json()[0]["error"]["retryable"]) == (4, True)


def test_a_wrong_document_names_its_fields_and_a_wrong_command_line_its_option(eo: Shell) -> None:
    eo.document(inline_record=1, max_checkpoints=0)
    wrong = eo("run", "--json")
    assert (wrong.code, wrong.json()["error"]["kind"]) == (2, "ConfigError")
    for field in ("pipeline.yaml", "inline_record", "max_checkpoints"):
        assert field in wrong.json()["error"]["message"]
    eo.document(sink={**eo.sink(), "dsn": f"postgresql://u:{SECRET}@h:x/db"})
    assert "sink.dsn" in eo("run").err
    assert eo("run", "--jsn").code == 2
    usage = eo("show", "--json", "x")
    assert (usage.code, usage.json()["error"]["kind"]) == (2, "UsageError")
    assert "Exit codes: 0 done;" in " ".join(eo("--help").out.split())


def test_a_dagster_document_is_the_same_pipeline(eo: Shell) -> None:
    sink = {**eo.sink(), "dsn": "{{ env('EO_TEST_DSN') }}"}
    attributes = {**eo.bench.config, "sink": sink, "schedule": "0 * * * *", "group": "g"}
    component = {"type": "dagster_defs.component.KafkaPipelineComponent"}
    folder = Path("defs", "events")
    folder.mkdir(parents=True)
    text = yaml.safe_dump({**component, "attributes": attributes})
    (folder / "defs.yaml").write_text(text)
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    eo.bench.table.assert_holds_once(eo.bench.topic.written)
    assert eo("fork", *FORK).code == 0
    fork = yaml.safe_load(Path("v2.yaml").read_text())
    forked = {**attributes, "name": "v2", "sink": {**sink, "table": "v2"}}
    assert fork == {**component, "attributes": forked}


FORK = ("--at", "0", "--name", "v2", "--table", "v2", "--write", "v2.yaml", "--yes")


def test_init_reads_what_people_put_into_topics_and_the_document_runs(eo: Shell) -> None:
    topic = eo.bench.topic
    now = datetime.now(UTC)
    good = [
        {
            "id": n,
            "at": now.isoformat(),
            "day": f"{now:%Y-%m-%d}",
            "share": n / 2 if n else 1,
            "odd name": {"in": [n, 2**40], "$ref": None},
            "mixed": n if n % 2 else "text",
        }
        for n in range(6)
    ]
    for n, value in enumerate(good):
        topic.write_value(json.dumps(value).encode(), partition=n % 4)
    topic.write_value(b"not json", partition=1)
    topic.write_value(None, partition=2)
    begun = eo(
        *("init", "--bootstrap", topic.bootstrap_servers, "--topic", topic.name, "--json"),
        *("--sink", "postgres", "--name", "events"),
    )
    assert begun.code == 0, begun.out
    said = begun.json()
    assert (said["records"], said["bad"], said["tombstones"]) == (8, 1, 1)
    assert said["unset_variables"] == ["EO_EVENTS_DSN"]
    assert said["document"] == "pipelines/events.yaml"

    os.environ["EO_EVENTS_DSN"] = os.environ["EO_TEST_DSN"]
    try:
        ran = eo("run")
    finally:
        del os.environ["EO_EVENTS_DSN"]
    assert ran.code == 0, ran.err
    rows = eo.bench.table.query(
        """select id, at, day::text, share, "odd name"->'in'->>1, mixed from events order by id"""
    )
    assert rows[1] == (1, now, f"{now:%Y-%m-%d}", 0.5, str(2**40), "1")
    assert len(rows) == 6
    assert eo.bench.table.query("select count(*) from events_dead_letters") == [(1,)]


def test_init_keeps_bytes_where_there_is_no_json(eo: Shell, make_topic: MakeTopic) -> None:
    topic = eo.bench.topic
    topic.write_value(b"\x00\x00\x00\x00\x01avro")
    kafka = ("--bootstrap", topic.bootstrap_servers, "--sink", "console")
    begun = eo("init", *kafka, "--topic", topic.name, "--out", "raw.yaml")
    assert "begin as a schema registry's do" in begun.out
    assert Pipeline.from_yaml("raw.yaml").source.value_format == "raw"
    empty = eo("init", *kafka, "--topic", make_topic(), "--out", "empty.yaml")
    assert "The topic is empty" in empty.out
    gone = eo("init", *kafka, "--topic", "no-such-topic", "--out", "gone.yaml")
    assert gone.code == 1
    assert not Path("gone.yaml").exists()
    assert eo("init", *kafka).code == 2, "nobody can be asked for the topic"


def test_on_a_terminal_the_plan_is_shown_and_no_means_no(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    with Terminal("rewind", "0") as terminal:
        asked = terminal.until("[y/N]")
        assert "removes 5 rows of 1 checkpoint\n" in asked
        assert "Rewind events to version 0?" in asked
        terminal.type("n\n")
        assert terminal.ended() == 1
    assert eo.versions() == [0, 1]


def test_a_yes_to_a_plan_that_is_no_longer_true_changes_nothing(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    with Terminal("rewind", "0") as terminal:
        terminal.until("[y/N]")
        eo.bench.topic.write(5)
        assert eo("run").code == 0
        terminal.type("y\n")
        assert terminal.ended() == 4
    assert eo.versions() == [0, 1, 2]
    eo.bench.table.assert_holds_once(eo.bench.topic.written)


class Terminal:
    """``eo`` with a keyboard."""

    def __init__(self, *arguments: str) -> None:
        self._keyboard, theirs = pty.openpty()
        command = [sys.executable, "-m", "eo_pipeline.cli", *arguments]
        self._process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._keyboard)

    def until(self, words: str) -> str:
        """What was printed, up to ``words``."""
        assert self._process.stdout is not None
        printed = b""
        while words.encode() not in printed:
            more = os.read(self._process.stdout.fileno(), 4096)
            assert more, printed
            printed += more
        return printed.decode()

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def ended(self) -> int:
        """The exit code."""
        return self._process.wait(60)


def test_following_shows_each_version_as_it_comes_until_it_is_interrupted(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    command = [sys.executable, "-m", "eo_pipeline.cli", "checkpoints", "--follow", "--json"]
    process = subprocess.Popen(
        [*command, "--every", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline())["version"] for _ in range(2)] == [0, 1]
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    assert json.loads(process.stdout.readline())["version"] == 2
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in err
