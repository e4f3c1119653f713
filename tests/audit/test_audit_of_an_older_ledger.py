"""An audit of a ledger that lacks what was seen committed: it proves nothing, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from eo_pipeline.audit import Audit
from eo_pipeline.errors import LedgerBehindError
from eo_pipeline.testing import child_of
from tests.runs.test_losing_a_race import START, run_context
from tests.runs.test_recovery import Ledger


def test_a_commit_seen_before_that_is_not_there_is_told_as_a_run_tells_it(tmp_path: Path) -> None:
    """Scenario: the newest entry of a Delta table's log was deleted, or a backup came back."""
    audit = Audit(run_context(Ledger(START), tmp_path, lambda: None), tmp_path, lambda _: None)
    audit.steps.recovery.staging.witnesses.remember(child_of(START))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LedgerBehindError, match=r"version 1 .* does not hold it"):
        audit.run()
    assert sorted(tmp_path.rglob("*")) == before
