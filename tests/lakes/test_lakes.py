"""Sequences of fixed seeds: by the sink's session in memory, and in the long tier the program."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lakes.__main__ import live
from tests.lakes.columns import PLAIN, Column
from tests.lakes.drivers import ByHand
from tests.lakes.lakes import Delta, Iceberg, Lake
from tests.lakes.life import FoundError, Life, drawn_table
from tests.lakes.model import Model, Record, Rows
from tests.lakes.readers import difference, in_process
from tests.shared import ROOT

SEEDS = range(2)


def drawn(store: str, seed: int, folder: Path) -> Life:
    lake: Lake = Delta("t", folder) if store == "delta" else Iceberg("t", folder)
    chance = random.Random(f"{seed}/{store}")
    model, settings = drawn_table(chance, store)
    by_time = "(" in str(settings.get("partition_by"))
    driver = ByHand(lake, model, settings)
    return Life(chance, lake, model, driver, in_process(store), by_time=by_time)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store", ["delta", "iceberg"])
def test_after_each_step_the_table_is_what_the_model_says(
    store: str, seed: int, tmp_path: Path
) -> None:
    life = drawn(store, seed, tmp_path)
    wrong = live(life, None, steps=8)
    assert wrong is None, "\n".join([str(wrong), *life.log])


@pytest.mark.parametrize("store", ["delta", "iceberg"])
def test_a_row_that_is_not_the_models_is_noticed(store: str, tmp_path: Path) -> None:
    life = drawn(store, 1, tmp_path)
    assert live(life, None, steps=2) is None
    key, row = life.foreign_row()
    life.model.rows[key] = row
    for reader in life.readers:
        with pytest.raises(FoundError, match=rf"WRONG for {reader.name}: 1 rows missing"):
            life.check([reader])


def test_values_that_only_look_alike_differ() -> None:
    for name, one, other in (("double", 0.0, -0.0), ("double", 1.0, float("nan"))):
        kind = PLAIN[name]
        first, second = (Rows([(("c", kind.plain(value)),)]) for value in (one, other))
        assert difference(first, first) is None
        assert "1 rows missing" in (difference(first, second) or "")


def test_the_model_goes_back_and_forth() -> None:
    model = Model({"id": Column(PLAIN["bigint"], required=True)}, partitions=1)
    model.records = [Record(0, n, {"id": n if n != 1 else None}) for n in range(3)]
    model.run(most=2)
    assert sorted(row.offset or 0 for row in model.rows.values()) == [0, 2]
    assert model.letters == {(1, 0, 1)}
    model.source = {"id": Column(PLAIN["bigint"])}
    model.replay(1)
    assert (len(model.rows), model.letters, model.head) == (3, set(), 3)
    model.rewind(1)
    assert [row.offset for row in model.rows.values()] == [0, 1]
    assert model.pending() == model.records[2:]
    model.run()
    assert {row.checkpoint for row in model.rows.values()} == {1, 5}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_drawn_sequences_are_exact_from_every_reader() -> None:
    command = [sys.executable, "-m", "tests.lakes", "--seed", "34", "--sequences", "20"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
