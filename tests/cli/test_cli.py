"""`eo` as people and scripts use it: real Kafka, real PostgreSQL, exit codes, what is printed.

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
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from eo_pipeline import Pipeline
from tests.cli.shell import SECRET, Shell, eo
from tests.support.engine import spark_has_begun, spark_is_free
from tests.support.servers import wait_until
from tests.support.topics import recreate

__all__ = ["eo"]


@pytest.mark.core
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
    assert "dead: undone by a rewind" in eo("show", "2").out
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


@pytest.mark.core
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
    assert sick["receipts"]["state"] == "fail"
    assert "eo adopt" in sick["receipts"]["remedy"]
    planned = {"pipeline": "events", "operation": "adopt", "head": 1, "lost": [2]}
    assert eo("adopt", "--dry-run", "--json").json() == planned
    assert eo("adopt", "--reason", "backup of Monday", "--yes").code == 0
    assert eo("run").code == 0
    eo.bench.table.assert_holds_once(eo.bench.topic.written)


@pytest.mark.core
def test_a_promise_that_was_cut_is_told_by_every_look_and_set_aside(eo: Shell) -> None:
    """Found before: run, replay and rewind ended in a traceback for good, --json or not, while
    status, plan and doctor said that all was well.
    """
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    eo.bench.topic.write(5)
    crashed = eo.bench.run_in_a_process("--crash-at", "pre_committed", "1")
    assert crashed.wait(120) == -signal.SIGKILL
    (manifest,) = Path(eo.bench.config["staging"]).rglob("manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:100])

    for command in (("run",), ("rewind", "0", "--yes"), ("replay", "1", "--yes")):
        stopped = eo(*command, "--json")
        error = stopped.json()["error"]
        assert (stopped.code, error["kind"]) == (1, "ManifestDamagedError"), stopped.out
        assert str(manifest) in error["message"]
    assert str(manifest) in eo("status", "--json").json()[0]["blocked"][0]
    assert str(manifest) in eo("plan", "--json").json()["blocked"][0]
    sick = {c["name"]: c for c in eo("doctor", "--json").json()["pipelines"]["events"]}
    assert sick["manifests"]["state"] == "fail"
    assert eo("set-aside", "--dry-run", "--json").json()["manifests"] == [str(manifest)]
    assert eo("set-aside", "--yes").code == 0
    assert eo("run").code == 0
    assert eo("set-aside", "--yes").code == 1
    eo.bench.table.assert_holds_once(eo.bench.topic.written)


def test_a_ledger_that_was_changed_far_below_the_head_is_found_by_the_doctor(eo: Shell) -> None:
    eo.document()
    for _ in range(4):
        eo.bench.topic.write(5)
        assert eo("run").code == 0
    eo.bench.table.execute("update eo_ledger set run_id = 'another' where version = 1")

    eo.bench.topic.write(5)
    assert eo("run").code == 0, "head and parent are as they were"
    sick = {c["name"]: c for c in eo("doctor", "--json").json()["pipelines"]["events"]}
    assert sick["ledger"]["state"] == "fail"
    assert "version 1 was changed" in sick["ledger"]["said"]
    assert sick["sink"]["state"] == "ok"
    back = eo("rewind", "1", "--yes", "--json")
    assert (back.code, back.json()["error"]["kind"]) == (1, "LedgerDamagedError")


def test_a_reset_is_shown_asked_for_and_leaves_other_pipelines_alone(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    fork = ("fork", "--at", "0", "--name", "other", "--table", "other", "--write", "other.yaml")
    assert eo(*fork, "--yes").code == 0
    assert eo("run", "-f", "other.yaml").code == 0
    mine = ("-f", "pipeline.yaml")

    shown = eo("reset", "--dry-run", "--json", *mine).json()
    assert (shown["head"], shown["drops"][0]) == (1, "5 rows of public.events")
    assert eo("reset", *mine).code == 2, "nobody can be asked"
    assert eo.versions() == [0, 0, 1, 1], "of both pipelines"
    done = eo("reset", "--yes", *mine)
    assert done.code == 0, done.err
    assert "2 versions of the ledger in public.eo_ledger" in done.out

    table = eo.bench.table
    assert table.query("select count(*) from events") == [(0,)]
    assert table.query("select distinct pipeline from eo_ledger") == [("other",)]
    assert table.query("select count(*) from other") == [(5,)]
    assert eo("run", *mine).code == 0, "also staging remembers nothing of it"
    table.assert_holds_once(eo.bench.topic.written)


@pytest.mark.core
def test_a_server_that_is_away_means_try_again(eo: Shell) -> None:
    source = {**eo.bench.config["source"], "bootstrap_servers": "127.0.0.1:1"}
    eo.document(source={**source, "request_timeout": 0.5})
    away = eo.process("plan")
    assert away.code == 4
    assert away.out == ""
    assert away.err.startswith("Could not reach Kafka at 127.0.0.1:1")
    assert "Connection refused" in away.err
    status = eo("status", "--json")
    assert (status.code, status.json()[0]["error"]["retryable"]) == (4, True)


@pytest.mark.core
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
    component = {"type": "eo_pipeline.dagster.KafkaPipelineComponent"}
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
        return self._process.wait(240)


def test_the_version_is_told_and_an_errors_causes_are_with_v(eo: Shell) -> None:
    told = eo("--version")
    assert (told.code, told.out.split()[0]) == (0, "eo-pipeline")
    assert "pyspark" in told.out
    eo.document(sink={**eo.sink(), "dsn": "host=127.0.0.1 port=1 dbname=x password=" + SECRET})
    plain, verbose = eo("run"), eo("run", "-v")
    assert plain.code == verbose.code == 4
    assert "because of psycopg.OperationalError" not in plain.err
    assert "because of psycopg.OperationalError" in verbose.err
    assert "DEBUG   eo_pipeline.progress: events: connecting to the store of events" in verbose.err
    assert eo("-v", "run").err.count("because of") == verbose.err.count("because of")


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
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_what_stands_and_leaves_no_spark_job_behind(
    eo: Shell, number: signal.Signals, code: int
) -> None:
    eo.document()
    eo.bench.topic.write(5)
    assert eo("run").code == 0
    eo.bench.topic.write(5)
    eo.document(transform="tests.runs.transforms:endless")
    command = [sys.executable, "-m", "eo_pipeline.cli", "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: spark_has_begun(eo.bench) or process.poll() is not None)

    process.send_signal(number)
    out, err = process.communicate(timeout=240)

    assert process.returncode == code, err
    told = "events: interrupted; version 1 stands; nothing of version 2 is visible\n"
    assert (out, err.splitlines(keepends=True)[-1]) == ("", told)
    spark_is_free(eo.bench)
    assert eo.versions() == [0, 1]
    eo.document()
    assert eo("run").code == 0
    eo.bench.table.assert_holds_once(eo.bench.topic.written)
