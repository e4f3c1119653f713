"""The page about growth says what the file beside it holds."""

from pathlib import Path

import pytest

from benchmarks.growth import cluster, ledger
from benchmarks.growth.curves import Curve
from benchmarks.growth.page import publish, read, write
from benchmarks.growth.runs import bulk, long, named, wide

_PAGE = "before\n<!-- figures: growth -->\nold\n<!-- end of figures: growth -->\nafter\n"


def _curve() -> Curve:
    curve = Curve("records", "2026-01-01 00:00 UTC", "abc1234", {"processor": "Fast", "cores": "2"})
    curve.add("a million records, s", 1, 6.25)
    curve.add("a million records, s", 20, 6.125)
    curve.add("Spark at most, MiB", 20, 1234.5)
    return curve


def test_a_curve_is_a_table_and_a_picture_with_its_day_and_its_commit(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "growth.json"
    (tmp_path / "images").mkdir()
    page.write_text(_PAGE)
    write(file, {"records": _curve()})
    publish(page, file)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "2026-01-01 00:00 UTC, commit abc1234, Fast." in text
    assert "- processor Fast, cores 2\n" in text
    assert "| 1 | 6.25 | – |" in text
    assert "| 20 | 6.12 | 1,234 |" in text
    assert "<svg" in (tmp_path / "images" / "bench-growth-records.svg").read_text()


def test_curves_that_were_not_measured_again_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    write(file, {"records": _curve()})
    assert read(file) == {"records": _curve()}


def test_a_long_record_has_as_many_bytes_as_it_says() -> None:
    assert {len(value) for _, value in zip(range(60), long(1_200).made(), strict=False)} == {1_200}


def test_as_many_records_are_made_as_are_said() -> None:
    assert sum(1 for _ in named(17).made()) == 17
    first = next(iter(wide(3).made()))
    assert first == b'{"c0": 0, "c1": "w0-1", "c2": 2}'


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "kafka", "parquet"])
def test_a_ledger_is_looked_at_at_each_length(kind: str, tmp_path: Path) -> None:
    found = list(ledger.measure(kind, (2, 4), tmp_path, 60))
    assert [(name, size) for name, size, _ in found] == [
        (name, size) for size in (2, 4) for name in ("nothing new", "recover", "commit")
    ]
    assert all(ms > 0 for _, _, ms in found)


@pytest.mark.slow
def test_a_checkpoint_costs_the_driver_as_much_with_more_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In what does not depend on the machine: bytes, tasks, and requests."""
    monkeypatch.setattr(cluster, "OVER_EXECUTORS", bulk(8_000, partitions=2))
    monkeypatch.setattr(cluster, "WARM_UP", 1)
    monkeypatch.setattr(cluster, "COMPILED", 1)
    costs: dict[float, dict[str, float]] = {1: {}, 2: {}}
    for name, size, figure in cluster.executors((1, 2), 1):
        costs[size][name] = figure
    for executors in costs.values():
        assert executors["jobs, number"] == 1
        assert executors["tasks, number"] == 2
        assert 0 < executors["returned by tasks, kB"] < 20
    one, two = costs.values()
    assert two["returned by tasks, kB"] < 1.1 * one["returned by tasks, kB"]
    name = "requests to the bucket, number"
    assert 0 < two[name] < 1.1 * one[name]
