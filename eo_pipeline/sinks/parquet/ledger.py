"""A pipeline's ledger as folders: ``checkpoint=<version>/`` exists exactly when the version does.

Each holds ``_eo_ledger.json`` from the moment it appears, so that it is never empty: POSIX
``rename`` replaces an empty folder, and fails on any other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import LedgerDamagedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, START_VERSION, LedgerEntry
from eo_pipeline.sinks.capabilities import Selected, lineage_of_batches, lineage_schema
from eo_pipeline.sinks.files import link_or_copy
from eo_pipeline.sinks.parquet.config import TYPES
from eo_pipeline.staging.rows import StagedTable, batches_of
from eo_pipeline.storage.paths import create_file, fsync

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
    """Contents of :data:`ENTRY_FILE`. ``columns`` is the table's schema so far."""

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
        create_file(folder / ENTRY_FILE, json.dumps(self.to_json()))
        fsync(folder)


@dataclass(frozen=True)
class CheckpointFolders:
    """The folders below ``root``. What has appeared there is never changed, and goes only when
    ``root`` as a whole is exchanged for another (:mod:`eo_pipeline.sinks.parquet.exchange`).
    """

    root: Path

    def path(self, version: int) -> Path:
        return self.root / f"checkpoint={version}"

    def file(self, version: int) -> EntryFile | None:
        """Return the entry in the folder of ``version``, None if there is none.

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
            fault = f"cannot be read, in the ledger file {path}: {error}"
            raise LedgerDamagedError(str(self.root), version, fault) from error

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
        versions = (version for name in names if (version := version_of(name)) is not None)
        return next((v for v in sorted(versions, reverse=True) if self._exists(v)), None)

    def _exists(self, version: int) -> bool:
        return (self.path(version) / ENTRY_FILE).exists()


def write_rows(staged: StagedTable, folder: Path, stem: str = "part") -> None:
    """The rows as files ``<stem>-<number>.parquet``, flushed. Staged files are not copied but given
    a second name, so that they stay whole for whoever else publishes them, and may go afterwards.
    """
    for number, source in enumerate(staged.paths()):
        link_or_copy(source, folder / f"{stem}-{number:05}.parquet")
    if staged.table is not None and staged.rows:
        path = folder / f"{stem}-00000.parquet"
        pq.write_table(TYPES.table(staged.table), path, compression="snappy")
        fsync(path)
    fsync(folder)


def read_lineage(root: Path, head: EntryFile, since: int) -> Iterator[pa.RecordBatch]:
    """The checkpoints up to ``head``, in the folder that has the name now: if it is exchanged for
    another meanwhile this goes on in the old one, and fails when that is removed.

    Raises:
        SinkUnavailableError: it was removed, or a file cannot be read.
    """
    schema = lineage_schema(head.columns.names)
    return lineage_of_batches(_rows(root, head, since, schema.names), schema, since)


def read_values(root: Path, head: EntryFile, since: int) -> Iterator[pa.RecordBatch]:
    """Read the rows with all their columns; raises as :func:`read_lineage`."""
    return TYPES.shown(_rows(root, head, since))


def queries(root: Path, selected: Selected) -> dict[str, str]:
    """See ``SinkSession.queries``."""
    condition = selected.condition(CHECKPOINT_COLUMN)
    files = str(root / "checkpoint=*" / "*.parquet").replace("'", "''")
    return {
        "DuckDB": f"SELECT * FROM read_parquet('{files}', union_by_name = true, "
        f"hive_partitioning = false) WHERE {condition}",
        "Spark": f"SELECT * FROM parquet.`{root}` WHERE {condition}",
    }


def _rows(
    root: Path, head: EntryFile, since: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    try:
        with _folder(root) as table:
            versions = (version_of(name) for name in os.listdir(table))
            for version in sorted(v for v in versions if v is not None):
                if version <= head.entry.version:
                    yield from _checkpoint(table, f"checkpoint={version}", columns, since)
    except (OSError, pa.ArrowException) as error:
        raise SinkUnavailableError(
            f"{root} cannot be read: {error}. Were rows taken back meanwhile? Ask again."
        ) from error


def _checkpoint(
    table: int, name: str, columns: Sequence[str] | None, since: int
) -> Iterator[pa.RecordBatch]:
    with _folder(name, table) as folder:
        for file in sorted(os.listdir(folder)):
            if file.endswith(".parquet") and not file.startswith(("_", ".")):
                handle = os.open(file, os.O_RDONLY, dir_fd=folder)
                with os.fdopen(handle, "rb") as opened, pq.ParquetFile(opened) as rows:
                    yield from _batches(rows, columns, since)


def _batches(
    rows: pq.ParquetFile, columns: Sequence[str] | None, since: int
) -> Iterator[pa.RecordBatch]:
    existing = [name for name in columns or () if name in rows.schema_arrow.names]
    groups = [n for n in range(rows.num_row_groups) if not _is_older(rows.metadata, n, since)]
    yield from batches_of(rows, existing or None, groups)


def _is_older(metadata: pq.FileMetaData, group: int, since: int) -> bool:
    """True if the file's own bounds say that all its rows belong to older checkpoints."""
    columns = metadata.row_group(group)
    for number in range(columns.num_columns):
        statistics = columns.column(number)
        if statistics.path_in_schema == CHECKPOINT_COLUMN and statistics.is_stats_set:
            bounds = statistics.statistics
            return bool(bounds.has_min_max and bounds.null_count == 0 and bounds.max < since)
    return False


@contextmanager
def _folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """A folder kept open, so that it is the same one until the end."""
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)
