"""Where an audit keeps files meanwhile, and where Spark finds them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.entry import new_transaction_id
from eo_pipeline.places import Place, folders_in, remove_tree

#: No audit takes that long: what is older was left by a killed one.
ABANDONED_S = 7 * 24 * 3600.0
_SCRATCH = "_audit-"


@dataclass(frozen=True)
class Scratch:
    """A ``folder`` of this process. Spark's executors may be where they cannot see it: they find
    its files in the bucket ``shared``, if there is one.
    """

    folder: Path
    shared: BucketPath | None = None

    def seen(self, file: Path) -> Place:
        """Where Spark reads ``file`` as it is now, which lies in :attr:`folder`."""
        if self.shared is None:
            return file
        place = self.shared / file.name
        place.put_file(file)
        return place

    def remove(self, file: Path) -> None:
        """Here, and where it was seen."""
        file.unlink()
        if self.shared is not None:
            (self.shared / file.name).unlink()


@contextmanager
def scratch(staging: Place) -> Iterator[Scratch]:
    """Below one pipeline's ``staging``, where no recovery looks; gone afterwards. What killed
    audits left there goes, too, once no audit can still be at work on it.

    Raises:
        SetupError: it cannot be made.
    """
    if isinstance(staging, BucketPath):
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
        _sweep(folder)
    except OSError as error:
        raise SetupError(
            f"the staging folder {staging} cannot be used: {error.strerror}. Set Pipeline.staging "
            "to a folder this process may write."
        ) from error
    try:
        yield Scratch(folder)
    finally:
        shutil.rmtree(folder)


def _sweep(ours: Path) -> None:
    oldest = ours.stat().st_mtime - ABANDONED_S
    for other in ours.parent.glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its audit, or another sweep, was faster
            if other.stat().st_mtime < oldest:
                shutil.rmtree(other)


def _sweep_bucket(staging: BucketPath) -> None:
    oldest = time.time() - ABANDONED_S
    for name in folders_in(staging):
        begun = name.removeprefix(_SCRATCH).partition("-")[0]
        if name.startswith(_SCRATCH) and begun.isdecimal() and int(begun) < oldest:
            remove_tree(staging / name)
