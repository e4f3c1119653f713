"""Counts of runs that failed before they committed.

``<root>/<pipeline>/_failures/<kind>.json`` is replaced with each failure of that kind. The ledger
does not record such runs, since they committed nothing. Nothing is decided by these files: two
failures at the same moment may count as one, and deleting the files restarts the count.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

from pydantic import PositiveInt, TypeAdapter, ValidationError
from pydantic.types import AwareDatetime

from eo_pipeline.storage.paths import Place, names_in, remove_tree, write_atomically

_FOLDER = "_failures"
_SUFFIX = ".json"


@dataclass(frozen=True)
class Failures:
    """Runs that failed with one ``kind`` of error, the ``last`` of them with this ``message``."""

    kind: str
    count: PositiveInt
    last: Annotated[datetime, AwareDatetime]
    run_id: str
    message: str


_FORMAT = TypeAdapter(Failures)


@dataclass(frozen=True)
class FailureBook:
    """The notes of one pipeline, in ``folder`` of its staging."""

    folder: Place

    def add(self, kind: str, run_id: str, message: str) -> None:
        """One more.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder / _FOLDER / f"{kind}{_SUFFIX}"
        before = self._read(kind)
        count = before.count + 1 if before else 1
        noted = Failures(kind, count, datetime.now(UTC), run_id, message)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(noted), "last": noted.last.isoformat()})
        write_atomically(path, text, flushed=False)

    def all(self) -> list[Failures]:
        """Return the failures by kind, without those whose file cannot be read."""
        names = sorted(names_in(self.folder / _FOLDER))
        kinds = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return [failures for kind in kinds if (failures := self._read(kind))]

    def forget(self) -> None:
        """Begin to count anew."""
        remove_tree(self.folder / _FOLDER)

    def _read(self, kind: str) -> Failures | None:
        try:
            return _FORMAT.validate_json((self.folder / _FOLDER / f"{kind}{_SUFFIX}").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
