"""Values that only MySQL or MariaDB itself judges: which records they came from is found."""

from __future__ import annotations

import pyarrow as pa
import pytest

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.columns import Bound
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.mysql.mysql_world import BOTH_WAYS, World, staged, world

__all__ = ["world"]


@BOTH_WAYS
@pytest.mark.parametrize("key", [[], ["id"]], ids=["append", "upsert"])
def test_the_records_are_found_by_halves(world: World, load_data: bool, key: list[str]) -> None:
    world.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, code varchar(3), doc json, m bigint, CHECK (m > 0))"
    )
    good, wrong = ("abc", "{}", 1), ("abcd", "{", 0)
    rows = [[*good] for _ in range(60)]
    for place, value in enumerate(wrong):
        rows[11 * place][place] = value
    code, doc, m = map(list, zip(*rows, strict=True))
    columns = {"id": [*range(60)], "code": code, "doc": doc, "m": m}
    origin = {
        "_eo_topic": ["x"] * 60,
        "_eo_partition": pa.array([0] * 60, pa.int32()),
        "_eo_offset": [*range(1000, 1060)],
        CHECKPOINT_COLUMN: [1] * 60,
    }
    output = StagedOutput(staged(**columns, **origin))
    mode = {"mode": "upsert", "key": key, "sequence_by": ["id"]} if key else {}
    with world.sink(load_data=load_data, **mode).open("p") as session:
        session.publish(first_entry("p"), StagedOutput())
        head = session.head()
        assert head is not None
        with pytest.raises(RefusedError) as refused:
            session.publish(child_of(head, output), output)
        found = session.refused_records(refused.value, output, 1000)
        assert [each["offset"] for each in found] == [1000, 1011, 1022]
        assert all("MySQL refuses the row" in each["error"] for each in found)
        assert len(session.refused_records(refused.value, output, 2)) == 2
    assert world.count() == 0


def test_what_a_type_would_round_in_silence_is_known(world: World) -> None:
    world.run("CREATE TABLE t (A datetime, b datetime(3), c datetime(6), d varchar(3), e text)")
    with world.sink().open("p") as session:
        assert session.bounds() == {"a": Bound(False, 0), "b": Bound(False, 3)}
