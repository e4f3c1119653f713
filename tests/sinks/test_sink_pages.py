"""The examples under "Try it" on the sinks' pages do what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "sinks"
_EXAMPLE = re.compile(r"^## Try it\n.*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("console.md", ["N24211", "committed", "[0, 1]"]),
        ("postgres.md", ["committed\nalready_committed", "(1, 'N14228', 1)", "(1, 'forward')"]),
        ("redis.md", ["committed\nalready_committed", "b'tail': b'N14228'"]),
    ],
)
def test_the_example_runs(page: str, said: list[str], tmp_path: Path) -> None:
    found = _EXAMPLE.search((PAGES / page).read_text())
    assert found is not None
    ran = subprocess.run(
        [sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    assert all(words in ran.stdout for words in said), ran.stdout
