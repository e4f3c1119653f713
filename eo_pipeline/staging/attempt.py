"""Where an attempt's rows wait: folders, manifests, refusals, witnesses, and who may delete what.

``<root>/<pipeline>/<version>-<transaction id>/`` is one attempt's own folder. Its Parquet files
mean nothing until ``manifest.json`` is written, last and atomically; from then on anyone may
commit the attempt, without Kafka and without Spark. ``refused.json`` takes that back for good.

``<root>/<pipeline>/_witness/<version>-<transaction id>`` is an empty file made after a commit was
confirmed. It decides nothing; it only lets a later run notice that the ledger went backwards
(a restored backup, a failover to an old replica). A witness goes only once the ledger is known to
hold it: when its child was committed on top of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
REFUSED = "refused.json"
_WITNESS = "_witness"

#: Width of a version in a folder's name, so that names sort by version.
_VERSION_DIGITS = 12


@dataclass(frozen=True)
class Manifest:
    """Everything needed to commit an attempt: the ledger entry and the files with their sizes."""

    entry: LedgerEntry
    output: StagedOutput


@dataclass(frozen=True)
class Attempt:
    """One attempt's folder. Only its owner writes rows there; anyone may read its manifest."""

    folder: Path
    id: EntryId
    #: below it lie the files; the folder itself, unless the sink stages inside its table
    data: Path

    def rows_folder(self) -> Path:
        return self.data / "rows"

    def dead_letters_folder(self) -> Path:
        return self.data / "dead_letters"

    def collect(self, folder: Path) -> StagedTable:
        """The Parquet files Spark left in ``folder``, with sizes and row counts from their
        footers, flushed to disk so that a power cut cannot leave a manifest without its rows.
        """
        paths = sorted(p for p in folder.rglob("*.parquet") if not p.name.startswith(("_", ".")))
        files, schema = [], None
        for path in paths:
            _flush(path)
            with pq.ParquetFile(path) as parquet:
                rows = parquet.metadata.num_rows
                schema = schema or parquet.schema_arrow
            name = path.relative_to(self.data).as_posix()
            files.append(StagedFile(name, path.stat().st_size, rows))
        filled = tuple(file for file in files if file.rows)
        return StagedTable(
            schema=_plain(schema or pa.schema([])),
            rows=sum(file.rows for file in filled),
            root=self.data,
            files=filled,
        )

    def write_manifest(self, manifest: Manifest) -> None:
        """Step 6. After this returns, the attempt can be committed by anyone who finds it."""
        raw = {
            "format": MANIFEST_FORMAT,
            "entry": manifest.entry.to_json(),
            "rows": _table_json(manifest.output.rows),
            "dead_letters": _table_json(manifest.output.dead_letters),
        }
        _write_atomically(self.folder / MANIFEST, json.dumps(raw))

    def manifest(self) -> Manifest | None:
        """What was promised here, ``None`` if nothing was (yet)."""
        try:
            raw = json.loads((self.folder / MANIFEST).read_text())
        except FileNotFoundError:
            return None
        if raw["format"] != MANIFEST_FORMAT:
            raise SetupError(
                f"{self.folder.name}/{MANIFEST} has format {raw['format']}, this version reads "
                f"{MANIFEST_FORMAT}. Finish the checkpoint with the version that staged it."
            )
        return Manifest(
            entry=LedgerEntry.from_json(raw["entry"]),
            output=StagedOutput(
                rows=self._table(raw["rows"]), dead_letters=self._table(raw["dead_letters"])
            ),
        )

    def _table(self, raw: dict[str, Any] | None) -> StagedTable | None:
        if raw is None:
            return None
        files = tuple(StagedFile(**file) for file in raw["files"])
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["schema"])))
        rows = sum(file.rows for file in files)
        return StagedTable(schema=schema, rows=rows, root=self.data, files=files)

    @property
    def is_refused(self) -> bool:
        return (self.folder / REFUSED).exists()

    def refuse(self, reason: str) -> None:
        """Mark the manifest refused, so that nobody meets it again. Deletes nothing: somebody
        else may be committing it at this moment.
        """
        if self.folder.exists():
            _write_atomically(self.folder / REFUSED, json.dumps({"reason": reason}))

    def delete(self, *, rows: bool = True) -> None:
        """Remove the attempt, manifest first: what is half-removed must not look committable.

        ``rows=False`` leaves the files where they are: in a lake they are the table now.
        """
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder, onerror=_unless_gone)
        if rows:
            shutil.rmtree(self.data, onerror=_unless_gone)


class StagingArea:
    """The staging folders of one pipeline: manifests below ``root``, and rows below ``rows``
    where the sink wants them inside its table.
    """

    def __init__(self, root: Path, pipeline: str, rows: Path | None = None) -> None:
        self._folder = root.absolute() / pipeline
        self._rows = rows.absolute() / pipeline if rows else self._folder

    def begin(self, entry_id: EntryId) -> Attempt:
        """A new, empty folder for one attempt.

        Raises:
            SetupError: the folder cannot be made (permission, disk full).
        """
        attempt = self._attempt(entry_id)
        try:
            attempt.folder.mkdir(parents=True)
        except OSError as error:
            raise SetupError(
                f"the staging folder {self._folder} cannot be used: {error.strerror}. Free space "
                "or set Pipeline.staging to a folder this process may write."
            ) from error
        return attempt

    def attempts(self) -> list[Attempt]:
        """Every attempt's folder, oldest version first."""
        return [self._attempt(entry_id) for _, entry_id in sorted(_entries(self._folder))]

    def _attempt(self, entry_id: EntryId) -> Attempt:
        name = _name(entry_id)
        return Attempt(self._folder / name, entry_id, self._rows / name)

    def witnesses(self) -> list[EntryId]:
        """Commits that were confirmed, oldest first. Each must still be in the ledger."""
        return sorted(found for _, found in _entries(self._folder / _WITNESS))

    def bear_witness(self, entry: LedgerEntry) -> None:
        """Remember that ``entry`` was committed, in place of its parent, which it stands on.

        Never removes anything else: a zombie that comes late, or a ledger that lost a version
        meanwhile, cannot take back what a faster run saw.
        """
        folder = self._folder / _WITNESS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _name(entry.id)).touch()
        if entry.parent is not None:
            self.dismiss([entry.parent])

    def dismiss(self, witnesses: Iterable[EntryId]) -> None:
        """Forget these witnesses and no others."""
        for entry_id in witnesses:
            (self._folder / _WITNESS / _name(entry_id)).unlink(missing_ok=True)


def _name(entry_id: EntryId) -> str:
    return f"{entry_id.version:0{_VERSION_DIGITS}d}-{entry_id.transaction_id}"


def _entries(folder: Path) -> Iterator[tuple[Path, EntryId]]:
    if not folder.is_dir():
        return
    for item in os.scandir(folder):
        version, dash, transaction_id = item.name.partition("-")
        if dash and version.isdigit():
            yield Path(item.path), EntryId(int(version), transaction_id)


def _table_json(table: StagedTable | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "files": [asdict(file) for file in table.files],
        "schema": table.schema.serialize().to_pybytes().hex(),
    }


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without Spark's and Parquet's own annotations, which no sink reads."""
    return pa.schema([pa.field(f.name, f.type, f.nullable) for f in schema])


def _write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, also after a power cut: write aside, flush, rename, flush the folder."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    _flush(path.parent)


def _unless_gone(_function: object, _path: object, error: Any) -> None:
    """Two runs may tidy up the same folder at once; anything but "already gone" is an error."""
    if not issubclass(error[0], FileNotFoundError):
        raise error[1]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
