"""A pipeline's ledger as folders: ``checkpoint=<version>/`` exists exactly when the version does.

Each holds ``_eo_ledger.json`` from the moment it appears, so that it is never empty: POSIX
``rename`` replaces an empty folder, and fails on any other.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eo_pipeline.arrow import pa
from eo_pipeline.errors import LedgerDamagedError, SinkUnavailableError
from eo_pipeline.files import sync, write_new
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry

#: The entry, in its checkpoint's folder; and the newest version, in the table's folder.
ENTRY_FILE = "_eo_ledger.json"
HINT_FILE = "_eo_head"
DEAD_LETTERS_FOLDER = "_eo_dead_letters"

#: Versions looked for one by one after the hinted one, before the folder is listed instead.
PROBES_MAX = 16

_FORMAT = 1
_NAME = re.compile(r"checkpoint=(\d+)")


def version_of(name: str) -> int | None:
    """The version whose folder has this name, None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class EntryFile:
    """What :data:`ENTRY_FILE` holds. ``columns`` is the table's schema so far."""

    entry: LedgerEntry
    columns: pa.Schema
    dead_letters: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "entry": self.entry.to_json(),
            # the first for machines, the second for people
            "schema": self.columns.serialize().to_pybytes().hex(),
            "columns": {field.name: str(field.type) for field in self.columns},
            "dead_letters": self.dead_letters,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> EntryFile:
        return cls(
            entry=LedgerEntry.from_json(raw["entry"]),
            columns=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["schema"]))),
            dead_letters=raw["dead_letters"],
        )

    def write(self, folder: Path) -> None:
        """Keep this in ``folder``, flushed: the folder's last file."""
        write_new(folder / ENTRY_FILE, json.dumps(self.to_json()))
        sync(folder)


@dataclass(frozen=True)
class CheckpointFolders:
    """The folders below ``root``. What has appeared there is never changed, and goes only when
    ``root`` as a whole is exchanged for another (:mod:`eo_pipeline.sinks.parquet.swap`).
    """

    root: Path

    def path(self, version: int) -> Path:
        return self.root / f"checkpoint={version}"

    def file(self, version: int) -> EntryFile | None:
        """What the folder of ``version`` says, None if there is none.

        Raises:
            LedgerDamagedError: its ledger file is not whole: somebody changed it.
            SinkUnavailableError: it cannot be read just now.
        """
        path = self.path(version) / ENTRY_FILE
        try:
            return EntryFile.from_json(json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SinkUnavailableError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            found = f"cannot be read, in the ledger file {path}: {error}"
            raise LedgerDamagedError(str(self.root), version, found) from error

    def newest(self) -> EntryFile | None:
        """The newest version's file. Its cost does not grow with the number of versions, as
        long as the hint is near; without one the folder is listed.
        """
        version = self._hint()
        if version is None or not self._exists(version):
            version = self._listed()
        for _ in range(PROBES_MAX):
            if version is None or not self._exists(version + 1):
                return None if version is None else self.file(version)
            version += 1
        version = self._listed()
        return None if version is None else self.file(version)

    def has_rows_above(self) -> bool:
        """True if the folder above the newest version has rows, and its ledger file is gone: no
        rename makes one without it.
        """
        newest = self.newest()
        above = newest.entry.version + 1 if newest else START_VERSION
        return any(self.path(above).glob("**/*.parquet")) and self.file(above) is None

    def remember(self, version: int) -> None:
        """Leave a hint for :meth:`newest`. Nothing depends on it being there, or right."""
        aside = self.root / f".{HINT_FILE}.{os.getpid()}"
        try:
            aside.write_text(str(version))
            aside.replace(self.root / HINT_FILE)
        except OSError:
            aside.unlink(missing_ok=True)

    def _hint(self) -> int | None:
        try:
            text = (self.root / HINT_FILE).read_text()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def _listed(self) -> int | None:
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SinkUnavailableError(f"{self.root} cannot be listed: {error.strerror}") from error
        found = (version for name in names if (version := version_of(name)) is not None)
        return next((v for v in sorted(found, reverse=True) if self._exists(v)), None)

    def _exists(self, version: int) -> bool:
        return (self.path(version) / ENTRY_FILE).exists()
