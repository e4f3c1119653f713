"""On what, and of which code, figures are."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime

from tests.kills.processes import ROOT


def described() -> Mapping[str, str]:
    """Date, commit, cores."""
    git = ["git", "describe", "--always", "--dirty=+"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}",
    }
