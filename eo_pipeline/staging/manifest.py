"""The manifest of an attempt, ``manifest.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from eo_pipeline._lazy import pa
from eo_pipeline.errors import SetupError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.staging.rows import StagedFile, StagedOutput, StagedTable
from eo_pipeline.storage.paths import Place

#: The second has rows in a form of the sink's own, which a release that knows the first alone would
#: take for columns; the third has several tables.
MANIFEST_FORMAT, PACKED_FORMAT, TABLES_FORMAT = 1, 2, 3


@dataclass(frozen=True)
class Manifest:
    """Everything needed to commit an attempt: the ledger entry and the files with their sizes."""

    entry: LedgerEntry
    output: StagedOutput

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values that :meth:`from_json` reads back; with a hash of the rest,
        since half a promise can look whole.
        """
        rows, dead_letters, tables = self.output.rows, self.output.dead_letters, self.output.tables
        written_as = PACKED_FORMAT if rows and rows.form else MANIFEST_FORMAT
        stored = _Stored(
            TABLES_FORMAT if tables else written_as,
            self.entry,
            _stored(rows),
            _stored(dead_letters),
            {
                name: _StoredOutput(_stored(output.rows), _stored(output.dead_letters))
                for name, output in tables.items()
            },
        )
        written: dict[str, Any] = _format().dump_python(stored, mode="json")
        if not tables:
            del written["tables"]
        for table in (written["rows"], written["dead_letters"]):
            if table and table["form"] is None:  # the first format is, byte for byte, what it was
                del table["form"]
        return {**written, _HASH: _hash(written)}

    @classmethod
    def from_json(
        cls, raw: Mapping[str, Any], root: Place, roots: Mapping[str, Place] = MappingProxyType({})
    ) -> Manifest:
        """The inverse of :meth:`to_json`; the files lie below ``root``, those of a table that is in
        ``roots`` below that.

        Raises:
            SetupError: another version of this package wrote it, in another format.
            ValueError, KeyError, TypeError, ArrowException: it is no manifest, or not the one that
                was written.
        """
        if raw["format"] not in (MANIFEST_FORMAT, PACKED_FORMAT, TABLES_FORMAT):
            raise SetupError(
                f"the manifest of {root.name} has format {raw['format']}, this version reads "
                f"{MANIFEST_FORMAT} to {TABLES_FORMAT}. Finish the checkpoint with the version "
                "that staged it."
            )
        if raw.get(_HASH, _hash(raw)) != _hash(raw):
            raise ValueError("its content does not fit its hash")
        stored = _format().validate_python(raw)
        tables = {
            name: StagedOutput(
                _staged(output.rows, roots.get(name, root)),
                _staged(output.dead_letters, roots.get(name, root)),
            )
            for name, output in stored.tables.items()
        }
        return cls(
            stored.entry,
            StagedOutput(_staged(stored.rows, root), _staged(stored.dead_letters, root), tables),
        )


#: Key of the hash, which manifests of earlier releases lack.
_HASH = "hash"


def _hash(raw: Mapping[str, Any]) -> str:
    content = {name: value for name, value in raw.items() if name != _HASH}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _schema_from_hex(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def _schema_to_hex(schema: pa.Schema) -> str:
    return str(schema.serialize().to_pybytes().hex())


@dataclass(frozen=True)
class _StoredTable:
    """Staged rows as the manifest has them; the reader knows where the files lie."""

    files: tuple[StagedFile, ...]
    schema: Annotated[pa.Schema, PlainValidator(_schema_from_hex), PlainSerializer(_schema_to_hex)]
    form: str | None = None


@dataclass(frozen=True)
class _StoredOutput:
    """One of several tables."""

    rows: _StoredTable | None
    dead_letters: _StoredTable | None


@dataclass(frozen=True)
class _Stored:
    """The file's fields, in their order."""

    format: int
    entry: Annotated[
        LedgerEntry, PlainValidator(LedgerEntry.from_json), PlainSerializer(LedgerEntry.to_json)
    ]
    rows: _StoredTable | None
    dead_letters: _StoredTable | None
    tables: Mapping[str, _StoredOutput] = field(default_factory=dict)


@cache
def _format() -> TypeAdapter[_Stored]:
    return TypeAdapter(_Stored)


def _stored(table: StagedTable | None) -> _StoredTable | None:
    return None if table is None else _StoredTable(table.files, table.schema, table.form)


def _staged(table: _StoredTable | None, root: Place) -> StagedTable | None:
    if table is None:
        return None
    return StagedTable(schema=table.schema, root=root, files=table.files, form=table.form)
