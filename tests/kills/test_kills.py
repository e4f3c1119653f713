"""What a seed draws it draws again; what was counted is kept; a control is caught."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.kills import figures
from tests.kills.__main__ import order
from tests.kills.disks import Disk
from tests.kills.figures import Run
from tests.kills.life import Sums
from tests.kills.plan import FAULTS, GOING_BACK, OPERATIONS, Abilities, grown_beyond, steps
from tests.kills.processes import ROOT
from tests.kills.report import BEGIN, END, publish
from tests.support.server_settings import POSTGRES, drawn

pytestmark = pytest.mark.slow

ALL = Abilities({*FAULTS}, {*OPERATIONS})


def test_the_same_seed_draws_the_same_life() -> None:
    drawn = list(steps("7/PostgreSQL, append/0", 40, ALL))
    assert drawn == list(steps("7/PostgreSQL, append/0", 40, ALL))
    assert drawn != list(steps("8/PostgreSQL, append/0", 40, ALL))
    assert drawn[:10] == list(steps("7/PostgreSQL, append/0", 10, ALL))


def test_a_store_meets_only_what_can_be_done_with_it() -> None:
    able = Abilities({"kill", "freeze"}, {*OPERATIONS} - GOING_BACK)
    drawn = list(steps("any", 300, able))
    assert {step.fault for step in drawn} == {"kill", "freeze"}
    assert {step.operation for step in drawn} == {"run", "add partitions", "maintain"}


def test_some_lives_end_with_a_log_that_was_truncated_and_has_grown_again() -> None:
    drawn = [grown_beyond(f"{n}/PostgreSQL, append/0") for n in range(100)]
    assert {*drawn} == {None, 0, 1, 15}
    assert drawn == [grown_beyond(f"{n}/PostgreSQL, append/0") for n in range(100)]


def test_some_lives_are_on_a_server_that_is_set_up_otherwise() -> None:
    lives = [drawn(POSTGRES, f"{n}/PostgreSQL, append/0") for n in range(100)]
    assert {0, 5} >= {len(settings) for settings in lives} > {0}
    assert len({name for settings in lives for name, _ in settings}) > 40
    assert lives[7] == drawn(POSTGRES, "7/PostgreSQL, append/0")


def test_short_runs_of_several_seeds_together_get_to_every_store() -> None:
    names = ["a", "b", "c", "d"]
    assert {next(order(names, seed))[1] for seed in range(4)} == {*names}
    assert [name for _, name in islice(order(names, 1), 5)] == ["d", "a", "b", "c", "d"]


def test_the_page_shows_the_sums_of_all_runs(tmp_path: Path) -> None:
    """What was found stands there as what it is, and what could not be tried apart from it."""
    page = tmp_path / "correctness.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    machine = {"date": "2026-01-01 00:00 UTC", "commit": "abc", "cores": "2", "system": "Linux"}
    for seed in (1, 2):
        run = Run(seed, machine, 5.0)
        run.add("PostgreSQL, append", Sums(kills=Counter(run=20, store=2), records=100))
        run.add("Redis, upsert", Sums(found=Counter(lost=3), not_tried=["no compiler"]))
        figures.keep(page.with_suffix(".json"), [*figures.read(page.with_suffix(".json")), run])
    publish(page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**44 kills** in 4 lives" in text
    assert "| PostgreSQL, append | 2 | 40 | 0 | 0 | 4 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| Redis, upsert | 2 | 0 | 0 | 0 | 0 | 0 | 6 | 0 | 0 | 0 |" in text
    assert "- no compiler (2 times)" in text


def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", megabytes=4)
    if disk.why_not:
        return  # in a container without the right to: the program says so, too
    try:
        with disk.full(), pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_bytes(b"x" * 4096)
        assert (disk.folder / "more").write_bytes(b"x" * 4096) == 4096
    finally:
        disk.close()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_sink_that_promises_less_is_caught(tmp_path: Path) -> None:
    """Scenario: lives on Kafka at least once. Outcome: rows more than once are found, none lost."""
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.kills", "--minutes", "4", "--seed", "5"]
    command += ["--only", "at_least_once", "--figures", str(file)]
    subprocess.run(command, cwd=ROOT, timeout=800, check=True)
    (run,) = figures.read(file)
    assert run.scenarios["Kafka, at_least_once"].found["doubled"] > 0
    assert run.scenarios["Kafka, at_least_once"].found["lost"] == 0
