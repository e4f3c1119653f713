"""Which tests are in which tier, part and share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import resuming
from tests.support.parallel import share_of
from tests.support.resuming import is_of_a_room
from tests.support.tiers import NOT_BY_PIP, is_slow


def test_what_starts_spark_is_slow_unless_it_is_marked_core() -> None:
    assert not is_slow({"tmp_path", "kafka", "postgres"}, core=False)
    assert is_slow({"bench", "spark_server"}, core=False)
    assert not is_slow({"bench", "spark_server"}, core=True)


@pytest.mark.parametrize("server", sorted(NOT_BY_PIP))
def test_what_needs_a_server_that_pip_does_not_bring_is_slow_whatever_its_marks(
    server: str,
) -> None:
    assert is_slow({server}, core=True)


def test_the_parts_of_the_suite_are_the_suite() -> None:
    groups = [f"tests/test_{number}.py" for number in range(21)]
    dealt = [group for part in range(1, 9) for group in share_of(groups, f"{part}/8")]
    assert sorted(dealt) == sorted(groups)
    assert share_of(groups, "3/8") == [groups[2], groups[10], groups[18]]


@pytest.mark.parametrize(
    ("test", "changed", "expected"),
    [
        ("tests/sinks/delta/test_delta.py", "eo_pipeline/sinks/delta/log.py", True),
        ("tests/sinks/delta/test_delta.py", "eo_pipeline/sinks/session.py", True),
        ("tests/sinks/mysql/test_mysql.py", "eo_pipeline/sinks/delta/log.py", False),
        ("tests/operations/test_plans.py", "eo_pipeline/pipeline.py", True),
        ("tests/runs/test_overlap.py", "tests/runs/driver.py", True),
        ("tests/operations/test_plans.py", "docs/cli.md", False),
    ],
)
def test_a_room_is_tested_by_the_folder_of_its_name(
    test: str, changed: str, expected: bool
) -> None:
    assert is_of_a_room(test, changed) is expected


def test_what_passed_is_forgotten_once_a_source_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(resuming, "ROOT", tmp_path)
    assert resuming.sources() is None
    git("init")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "-m", "a")
    states = [resuming.sources()]
    assert resuming.sources() == states[0]
    (tmp_path / "a.py").write_text("2")
    states.append(resuming.sources())
    (tmp_path / "b.py").write_text("1")
    states.append(resuming.sources())
    (tmp_path / "b.py").write_text("2")
    states.append(resuming.sources())
    assert None not in states
    assert len({*states}) == 4
