"""What a Delta table is, apart from its rows: what its newest metadata and protocol say.

That stays the same through thousands of commits, and delta-rs tells it only of a table whose whole
log it has looked through. So a commit of a pipeline's own names what it was when the commit was
made, by a hash, and what has that hash is kept in a small file in the ledger's folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from deltalake import DeltaTable, Schema

from eo_pipeline.arrow import pa
from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.places import Place, write_atomically
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.types import changed, own_columns

#: Writer features whose rules hold for files that are added by reference (Delta protocol, "Valid
#: Feature Names in Table Features"). Any other one asks a writer for more than this one does.
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # which delta-rs gives to tables that have no such column, when it sets their properties
        "variantType",
    }
)

#: Settings and column annotations behind which a writer must check or fill in values.
_SETTINGS_REFUSED = {"delta.columnMapping.mode": "none"}

#: A setting by which the log forgets application transactions, and so where the ledger's head is.
_FORGETS = "delta.setTransactionRetentionDuration"
_CONSTRAINT = "delta.constraints."
_FEATURE = "delta.feature."
_COLUMN_RULES = ("delta.generationExpression", "delta.identity", "delta.invariants")

#: Of a pipeline's ledger, beside its folders of thousands.
_FOLDER = "tables"


@dataclass(frozen=True)
class Described:
    """``schema`` is the JSON of the log; ``identity`` what the format knows the table by, for as
    long as it lives.
    """

    identity: str
    schema: str
    partition_by: list[str]
    configuration: dict[str, str]
    features: list[str]

    @classmethod
    def of(cls, table: DeltaTable) -> Described:
        metadata = table.metadata()
        return cls(
            identity=str(metadata.id),
            schema=table.schema().to_json(),
            partition_by=list(metadata.partition_columns),
            configuration=metadata.configuration,
            features=sorted(table.protocol().writer_features or ()),
        )

    @cached_property
    def text(self) -> str:
        """All of it; of the same table the same."""
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def key(self) -> str:
        """Of :attr:`text`, its hash."""
        return _hash(self.text)

    @property
    def required(self) -> frozenset[str]:
        """Columns that may not be null."""
        return frozenset(f["name"] for f in self.columns.values() if not f["nullable"])

    @property
    def columns(self) -> dict[str, dict[str, Any]]:
        """The schema's fields, as the log has them, by name."""
        return {field["name"]: field for field in json.loads(self.schema)["fields"]}

    @property
    def types(self) -> pa.Schema:
        """The columns, in the one form of each type."""
        return TYPES.comparable(pa.schema(Schema.from_json(self.schema).to_arrow()))

    def following(self, schema: pa.Schema) -> pa.Schema:
        """The columns once the table takes rows of ``schema``.

        Raises:
            SchemaChangeError: a column's type is not the table's.
        """
        return TYPES.following(self.types, stored_schema(schema))

    def takes(self, schema: pa.Schema) -> bool:
        """Whether rows of ``schema`` can be added to the table as it is."""
        try:
            return not changed(self.types, self.following(schema)).names
        except (RefusedError, SchemaChangeError):
            return False

    def check(self, partition_by: tuple[str, ...]) -> None:
        """Refuse a table that this sink must not write to.

        Raises:
            ConfigError: names the feature, setting or column.
        """
        if _FORGETS in self.configuration:
            raise ConfigError(
                f"sink.path: the table has {_FORGETS}={self.configuration[_FORGETS]}, by which it "
                "forgets after that time where the pipeline's ledger stands. Take it off: ALTER "
                f"TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')."
            )
        found = ", ".join(self._obstacles())
        if found:
            raise ConfigError(
                f"sink.path: the table needs what a writer of whole files cannot do: {found}. "
                "Write to a table without it."
            )
        if list(partition_by) != self.partition_by:
            raise ConfigError(
                f"sink.partition_by: the table is partitioned by "
                f"{', '.join(self.partition_by) or 'nothing'}, "
                f"not by {', '.join(partition_by) or 'nothing'}"
            )

    def _obstacles(self) -> list[str]:
        found = [f"the feature {name}" for name in self.features if name not in _FEATURES]
        settings = self.configuration
        for name, harmless in _SETTINGS_REFUSED.items():
            if settings.get(name, harmless) != harmless:
                found.append(f"{name}={settings[name]}")
        for name in settings:
            feature = name.removeprefix(_FEATURE)
            if feature != name and feature not in {*_FEATURES, *self.features}:
                found.append(f"the feature {feature}")
        found += [f"the check {name}" for name in settings if name.startswith(_CONSTRAINT)]
        for name, field in self.columns.items():
            rules = [rule for rule in field.get("metadata", {}) if rule.startswith(_COLUMN_RULES)]
            found += [f"column {name!r} with {rule}" for rule in rules]
        return found


class DescribedTables:
    """``<ledger folder>/tables/<hash>.table``: what tables of a pipeline's commits were. There are
    as many as its table had columns, settings and features over time.
    """

    def __init__(self, ledger: Place) -> None:
        self.folder = ledger / _FOLDER

    def keep(self, table: Described) -> None:
        """Before the commit that names it."""
        path = self._path(table.key)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, table.text)

    def get(self, key: str) -> Described | None:
        """``None``: the table must be opened to know."""
        try:
            text = self._path(key).read_text()
            return Described(**json.loads(text)) if _hash(text) == key else None
        except (OSError, ValueError, TypeError):
            return None

    def _path(self, key: str) -> Place:
        return self.folder / f"{key}.table"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of staged rows, in the one form of each type, all nullable."""
    return TYPES.schema(own_columns(schema))
