"""The ledger of a whole pipeline is pruned: what is refused then, what goes on, what is left."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eo_pipeline.errors import LedgerBehindError, PrunedError, StalePlanError
from eo_pipeline.formats.history import reader_changes, written_changes
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.schemas import ReadWith, WrittenWith
from eo_pipeline.operations import maintain
from eo_pipeline.operations.maintain import floor_entry
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from tests.support.engine import Bench
from tests.support.registry import record

OLD = record(("id", "long"), ("name", "string"))
NEW = record(("id", "long"), ("size", "int"))


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Four checkpoints of 100 records, one version each: 1, 2, 3, 4."""
    bench.topic.write(400, partitions=range(4))
    bench.pipeline(inline_records=10_000).run()
    return bench


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few entries."""
    monkeypatch.setattr(maintain, "LEAST", 2)


@pytest.fixture
def at_once(worth_it: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the ledger as it was."""
    monkeypatch.setattr(maintain, "READERS_HAVE", timedelta())


class _Since(Maintenance):
    """Entries are kept that were the head at ``moment`` or came later."""

    moment: datetime

    @property
    def ledger_kept_for(self) -> timedelta:
        return datetime.now(UTC) - self.moment


def kept_from(pipeline: Pipeline, version: int) -> Pipeline:
    """The same pipeline, that keeps its ledger as long as ``version`` is old."""
    moment = pipeline.history()[version].committed_at
    assert moment is not None
    return pipeline.model_copy(update={"maintenance": _Since(moment=moment)})


def maintained(pipeline: Pipeline, *, dry_run: bool = False) -> list[Upkeep]:
    """What was done to the ledger."""
    report = pipeline.maintain(dry_run=dry_run)
    return [each for each in report.work if each.work == "ledger"]


def holds_once(bench: Bench) -> bool:
    """Whether exactly what was written is in the table; no entry counts a pruned checkpoint."""
    return bench.table.coordinates() == Counter(bench.topic.written)


def emptied(bench: Bench) -> list[int]:
    query = "select version from eo_ledger where operation = 'pruned' order by 1"
    return [version for (version,) in bench.table.query(query)]


@pytest.mark.core
@pytest.mark.usefixtures("worth_it")
def test_the_floor_is_a_version_and_to_go_back_below_it_is_refused_with_the_reason(
    filled: Bench,
) -> None:
    pipeline = kept_from(filled.pipeline(), 2)
    before = pipeline.history()
    (told,) = maintained(pipeline, dry_run=True)
    assert told.remark == "would set the floor to version 2, 2 versions up"
    assert pipeline.history() == before
    (done,) = maintained(pipeline)
    assert done.remark.startswith("version 5 sets the floor to version 2, 2 versions up")
    head = pipeline.head()
    assert head is not None
    assert (head.operation, head.floor, head.offsets) == (Operation.PRUNE, 2, before[-1].offsets)
    for go_back in (
        lambda: pipeline.plan_rewind(1),
        lambda: pipeline.plan_replay(1),
        lambda: pipeline.plan_replay(0, 3),
        lambda: pipeline.plan_redrive([1]),
        lambda: pipeline.plan_rewind(before[1].committed_at or datetime.now(UTC)),
        lambda: pipeline.as_of(1).__enter__(),
    ):
        with pytest.raises(PrunedError, match="pruned below version 2, by version 5"):
            go_back()
    assert pipeline.plan_rewind(2).target == before[2]
    # those who read the ledger as it was have an hour
    (later,) = maintained(pipeline)[:1]
    assert later.remark == "entries below version 2 expire in an hour or later"
    assert emptied(filled) == []


@pytest.mark.usefixtures("at_once")
def test_on_a_pruned_ledger_runs_rewinds_replays_and_audits_are_exact(filled: Bench) -> None:
    pipeline = kept_from(filled.pipeline(), 2)
    maintained(pipeline)
    removed = maintained(pipeline)[0]
    assert (removed.files, removed.files_after) == (2, 0)
    assert removed.remark == "removed what is below version 2"
    assert emptied(filled) == [0, 1]
    assert [entry.version for entry in pipeline.history()] == [2, 3, 4, 5]
    assert pipeline.ledger_damages() == []
    filled.topic.write(100, partitions=range(4))
    pipeline.run()
    pipeline.replay(3)
    pipeline.rewind(2)
    pipeline.run()
    assert holds_once(filled)
    audit = pipeline.audit()
    assert audit.passed
    assert any("before version 2: the ledger was pruned" in text for text in audit.cannot_prove)
    with pipeline.as_of(2) as then:
        assert then.count() == 200


@pytest.mark.usefixtures("at_once")
def test_a_plan_made_before_the_floor_was_set_is_refused(filled: Bench) -> None:
    pipeline = kept_from(filled.pipeline(), 3)
    plan = pipeline.plan_rewind(1)
    maintained(pipeline)
    with pytest.raises(StalePlanError):
        plan.apply(reason="a test")
    assert holds_once(filled)


@pytest.mark.usefixtures("at_once")
def test_the_floor_waits_while_a_run_is_under_way(filled: Bench) -> None:
    """A run that staged its rows is not made to stage them again."""
    pipeline = kept_from(filled.pipeline(), 2)
    head = pipeline.head()
    assert head is not None
    attempt = pipeline._staging_area().begin(head.child(Operation.FORWARD, "run", head.offsets))
    (told,) = maintained(pipeline)
    assert told.remark == "a run is under way: the floor is set by the next maintenance"
    assert pipeline.head() == head
    assert not attempt.is_abandoned


@pytest.mark.usefixtures("at_once")
def test_a_host_that_was_away_since_before_the_floor_goes_on_and_a_lost_ledger_is_still_noticed(
    filled: Bench, tmp_path: Path
) -> None:
    """Scenario: another host's staging has seen version 1 committed, and nothing since."""
    pipeline = filled.pipeline()
    (witness,) = Path(filled.config["staging"]).rglob("000000000004-*")
    away = tmp_path / "away"
    shutil.copytree(filled.config["staging"], away)
    (seen,) = away.rglob(witness.name)
    one = pipeline.history()[1]
    seen.rename(seen.with_name(f"{1:012d}-{one.transaction_id}"))
    (away_file,) = away.rglob(f"{1:012d}-{one.transaction_id}")
    away_file.write_text("{}")
    for _ in range(2):
        maintained(kept_from(pipeline, 2) if pipeline.history()[0].version == 0 else pipeline)
    assert emptied(filled) == [0, 1]
    filled.topic.write(100, partitions=range(4))
    filled.pipeline(staging=str(away)).run()
    assert holds_once(filled)
    filled.table.execute("delete from events where _eo_checkpoint > 5")
    filled.table.execute("delete from eo_ledger where version > 5")
    with pytest.raises(LedgerBehindError):
        filled.pipeline(staging=str(away)).run()


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"type": "console", "ledger": "ledger"}, "this store cannot remove entries"),
        ({"type": "parquet", "path": "table"}, "an entry is a file in its checkpoint's folder"),
    ],
)
def test_a_store_that_keeps_its_ledger_says_why(
    sink: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "value_schema": "id BIGINT"}
    pipeline = Pipeline.from_config(
        {"name": "p", "source": source, "sink": sink, "maintenance": {"ledger": "1h"}}
    )
    (told,) = maintained(pipeline)
    assert told.remark.startswith(f"kept whole: {why}")


def entries(*read: Counts) -> list[LedgerEntry]:
    """A ledger whose versions from 1 on counted this."""
    found = [LedgerEntry("p", "l", 0, "t0", None, Operation.START, {})]
    for counts in read:
        child = found[-1].child(Operation.FORWARD, "run", {})
        found.append(child.with_counts(counts))
    return found


def test_what_later_entries_need_of_those_below_goes_into_the_entry_of_the_floor() -> None:
    """Schemas and columns; those that an entry above the floor holds stay there."""
    columns = {"id": "BIGINT", "name": "STRING"}
    ledger = entries(
        Counts(
            schemas=ReadWith("1", ("1",), texts={"1": OLD}),
            written=WrittenWith(1, columns),
        ),
        Counts(schemas=ReadWith("1", ("1",)), written=WrittenWith(1)),
        Counts(schemas=ReadWith("2", ("1", "2"), texts={"2": NEW}), written=WrittenWith(1)),
    )
    floor = floor_entry(ledger[-1], 2, lambda version: ledger[version], "run")
    assert floor.counts.schemas is not None
    assert floor.counts.schemas.texts == {"1": OLD}
    known = floor.known_schemas
    assert {key: held.version for key, held in known.held.items()} == {"1": 4, "2": 3}
    assert (known.last, known.reader) == (("1", "2"), "2")
    before, now = ledger[-1].last_written, floor.last_written
    assert before is not None
    assert now is not None
    assert (before.since, now.since, now.digest) == (1, 4, before.digest)
    kept = [*ledger[2:], floor]
    assert [each.columns for each in written_changes(kept)] == [columns]
    again = floor_entry(floor, 4, lambda version: {3: ledger[3], 4: floor}[version], "run")
    assert again.counts.schemas is not None
    assert again.counts.schemas.texts == {"2": NEW}
    assert again.counts.written is None
    assert LedgerEntry.from_json(again.to_json()) == again


def test_an_entry_whose_schema_is_below_the_floor_is_still_told() -> None:
    ledger = entries(
        Counts(schemas=ReadWith("1", ("1",), texts={"1": OLD})),
        Counts(schemas=ReadWith("1", ("1",))),
    )
    floor = floor_entry(ledger[-1], 2, lambda version: ledger[version], "run")
    assert list(reader_changes([ledger[2], floor])) == []


def test_an_entry_without_a_floor_is_written_as_ever() -> None:
    """Another release reads it, and its hash is what it was."""
    (start,) = entries()
    assert "floor" not in start.to_json()["identity"]
