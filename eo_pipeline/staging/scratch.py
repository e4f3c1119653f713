"""Folders for files that nobody publishes: an audit's, and those of a replay that is only looked
at. No recovery looks there; whatever killed processes left goes with the next that needs one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.entry import new_transaction_id
from eo_pipeline.places import Place
from eo_pipeline.staging.owner import is_dead, own

#: Nothing takes that long: what is older was left by a killed process, also where no lock tells.
ABANDONED_S = 7 * 24 * 3600.0
_SCRATCH = "_audit-"


@contextmanager
def scratch(staging: Place) -> Iterator[Path]:
    """A folder below one pipeline's ``staging`` that no recovery looks at; gone afterwards. Where
    staging is in a bucket it is a temporary folder of this machine.

    Raises:
        SetupError: it cannot be made.
    """
    if not isinstance(staging, Path):
        with tempfile.TemporaryDirectory(prefix="eo-audit-") as temporary:
            yield Path(temporary)
        return
    folder = staging.absolute() / f"{_SCRATCH}{new_transaction_id()}"
    try:
        folder.mkdir(parents=True)
        owner = own(folder)
        sweep_scratch(folder.parent, ours=folder)
    except OSError as error:
        raise SetupError(
            f"the staging folder {staging} cannot be used: {error.strerror}. Set Pipeline.staging "
            "to a folder this process may write."
        ) from error
    try:
        yield folder
    finally:
        # a cancelled job may write for a moment more; what it leaves goes with the next
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            owner.close()


def sweep_scratch(staging: Place, *, ours: Path | None = None) -> None:
    """Remove what killed processes left there: those of which a lock tells, and what is too old
    for any that lives.
    """
    if not isinstance(staging, Path):
        return
    now = ours.stat().st_mtime if ours else None
    for other in staging.glob(f"{_SCRATCH}*"):
        if other == ours:
            continue
        with suppress(FileNotFoundError):  # its process, or another sweep, was faster
            is_old = now is not None and other.stat().st_mtime < now - ABANDONED_S
            if is_old or is_dead(other):
                shutil.rmtree(other, ignore_errors=True)
