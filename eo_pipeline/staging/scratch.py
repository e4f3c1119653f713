"""Temporary folders of an audit or of the preview of a replay, where Spark can reach them.

Recovery ignores these folders, and their files are never published.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.entry import new_transaction_id
from eo_pipeline.staging.markers import is_dead, own
from eo_pipeline.storage.paths import Place, RemotePath, folders_in, remove_tree

#: Nothing takes that long: what is older was left by a killed process, also where no lock tells.
ABANDONED_S = 7 * 24 * 3600.0
_SCRATCH = "_audit-"


@dataclass(frozen=True)
class Scratch:
    """A ``folder`` of this process. Spark's executors may be where they cannot see it: they find
    its files in the bucket ``shared``, if there is one.
    """

    folder: Path
    shared: RemotePath | None = None

    def seen(self, file: Path) -> Place:
        """Return the path by which Spark reads ``file`` of :attr:`folder` as it is now."""
        if self.shared is None:
            return file
        copy = self.shared / file.name
        copy.put_file(file)
        return copy

    def remove(self, file: Path) -> None:
        """Delete ``file``, and its copy in the bucket."""
        file.unlink()
        if self.shared is not None:
            (self.shared / file.name).unlink()

    @property
    def place(self) -> Place:
        """The path that Spark writes to and this process reads from."""
        return self.folder if self.shared is None else self.shared


@contextmanager
def scratch(staging: Place) -> Iterator[Scratch]:
    """Below one pipeline's ``staging``; gone afterwards. What killed processes left there goes,
    too: see :func:`sweep_scratch`.

    Raises:
        SetupError: it cannot be made.
    """
    if isinstance(staging, RemotePath):
        with tempfile.TemporaryDirectory(prefix="eo-audit-") as temporary:
            # a bucket tells no time of a folder
            shared = staging / f"{_SCRATCH}{time.time():.0f}-{new_transaction_id()}"
            try:
                _sweep_bucket(staging)
                yield Scratch(Path(temporary), shared)
            finally:
                remove_tree(shared)
        return
    folder = staging.absolute() / f"{_SCRATCH}{new_transaction_id()}"
    try:
        folder.mkdir(parents=True)
        owner = own(folder)
        _sweep(folder.parent, ours=folder)
    except OSError as error:
        raise SetupError(
            f"the staging folder {staging} cannot be used: {error.strerror}. Set Pipeline.staging "
            "to a folder this process may write."
        ) from error
    try:
        yield Scratch(folder)
    finally:
        # a cancelled job may write for a moment more; what it leaves goes with the next
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            owner.close()


def sweep_scratch(staging: Place) -> None:
    """Remove what killed processes left there, if a lock tells that they are dead; what is in a
    bucket, or on a file system without locks, goes with a later audit or preview, after a week.
    """
    if isinstance(staging, Path):
        _sweep(staging, ours=None)


def _sweep(staging: Path, *, ours: Path | None) -> None:
    now = ours.stat().st_mtime if ours else None
    for other in staging.glob(f"{_SCRATCH}*"):
        if other == ours:
            continue
        with suppress(FileNotFoundError):  # its process, or another sweep, was faster
            is_old = now is not None and other.stat().st_mtime < now - ABANDONED_S
            if is_old or is_dead(other):
                shutil.rmtree(other, ignore_errors=True)


def _sweep_bucket(staging: RemotePath) -> None:
    oldest = time.time() - ABANDONED_S
    for name in folders_in(staging):
        begun = name.removeprefix(_SCRATCH).partition("-")[0]
        if name.startswith(_SCRATCH) and begun.isdecimal() and int(begun) < oldest:
            remove_tree(staging / name)
