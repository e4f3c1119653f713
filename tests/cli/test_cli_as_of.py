"""``eo as-of``: shown, counted, written, and told as SQL."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.shell import Shell, eo
from tests.support.engine import TABLE

__all__ = ["eo"]


def test_the_table_of_then_is_shown_counted_written_and_told_as_sql(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(300, partitions=range(4))
    eo.bench.pipeline().run()

    table = eo("as-of", "2", "-n", "3")
    assert table.code == 0, table.err
    lines = table.out.splitlines()
    assert lines[0].split()[:3] == ["id", "name", "_eo_checkpoint"]
    assert len(lines) == 6
    assert lines[5].startswith("events as of version 2 (")
    assert "200 rows" in lines[5]
    assert "3 of them shown" in lines[5]
    found = eo("as-of", "2", "--json", "-n", "2").json()
    assert (found["version"], found["head"], found["rows"]) == (2, 3, 200)
    assert set(found["first"][0]) == set(lines[0].split())
    assert eo("as-of", "1", "--count", "--json").json()["rows"] == 100

    # in a process of its own: what a pipe gets
    piped = eo.process("as-of", "2", "--format", "json")
    assert (piped.code, len(piped.lines())) == (0, 200)
    written = Path("then.csv")
    assert eo("as-of", "2", "-o", str(written)).code == 0
    with written.open() as file:
        assert len({row["id"] for row in csv.DictReader(file)}) == 200
    assert eo("as-of", "2", "-o", "then.parquet").code == 0
    assert pq.read_table("then.parquet").num_rows == 200
    assert eo("as-of", "2", "--format", "parquet").code == 2
    assert eo("as-of", "2", "-o", "then.txt").code == 2

    sql = eo("as-of", "2", "--sql")
    statement = "".join(line for line in sql.out.splitlines() if not line.startswith("--"))
    eo.bench.table.execute(f"create view past as {statement.removesuffix(';')}")
    assert eo.bench.table.query("select count(*), max(_eo_checkpoint) from past") == [(200, 2)]
    eo.bench.table.execute("drop view past")

    eo("rewind", "1", "--yes")
    refused = eo("as-of", "2", "-o", "gone.csv")
    assert refused.code == 1
    assert "version 4 rewound to 1" in refused.err
    assert not Path("gone.csv").exists()
    left = eo("as-of", "2", "--count", "--what-is-left")
    assert "100 rows" in left.out
    assert "not all of it is left" in left.err
    error = json.loads(eo("as-of", "2", "--count", "--json").out)
    assert error["error"]["kind"] == "PastGoneError"

    eo.bench.table.execute(f"delete from {TABLE} where id = 0")
    assert eo("as-of", "1", "-o", "gone.csv").code == 1
    assert not Path("gone.csv").exists()
    assert [each.name for each in Path().glob(".gone*")] == []


def test_a_replay_is_previewed_and_nothing_is_changed(eo: Shell) -> None:
    eo.document()
    eo.bench.topic.write(200, partitions=range(4))
    eo.bench.pipeline().run()
    eo.document(transform="tests.runs.transforms:shouting")
    shown = eo("replay", "1", "2", "--preview", "--key", "id")
    assert shown.code == 0, shown.err
    assert (
        "200 rows would change, 0 be added, 0 be removed, 0 stay as they are (by id)" in shown.out
    )
    assert "name changes in 200 of 200" in shown.out
    assert "name record " in shown.out
    assert "Nothing was changed: --preview" in shown.out
    found = eo("replay", "1", "--preview", "--json").json()
    assert found["operation"] == "replay"
    assert found["preview"]["changed"] == 100
    assert eo.versions() == [0, 1, 2]
