"""An Iceberg table as it is at one moment: what it says of the ledger, and what it can take."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io.pyarrow import compute_statistics_plan
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import parse_transform

from eo_pipeline.errors import ConfigError, SinkError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.iceberg.partitioning import Partitioning
from eo_pipeline.sinks.iceberg.sink import TYPES, IcebergSink
from eo_pipeline.sinks.lake.ledger import Pointer

#: The table's property that names the head of a pipeline's ledger.
HEAD_PROPERTY = "eo.head."

#: With retries on, PyIceberg puts a stale commit on top of whatever came in between.
NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "0"}

#: Of tables made here: a commit must not cost more because there were many before it.
_NEW_TABLE = {
    **NO_RETRIES,
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}

_MODES_WITHOUT_BOUNDS = frozenset({"NONE", "COUNTS"})

#: The columns of a table that is made before there are rows.
NO_ROWS = pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


def new_properties(partitioning: tuple[Partitioning, ...]) -> dict[str, str]:
    """Of a table made here. Bounds are kept of the columns that the sink goes by, however many
    columns precede them: PyIceberg keeps those of the first hundred.
    """
    prefix = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
    columns = [CHECKPOINT_COLUMN, *(p.source for p in partitioning)]
    return _NEW_TABLE | {f"{prefix}.{name}": "full" for name in columns}


def pointer_of(table: Table, pipeline: str) -> Pointer | None:
    """The head of ``pipeline``'s ledger, None if no commit of it is in the table.

    Raises:
        SinkError: somebody changed the property.
    """
    text = table.properties.get(HEAD_PROPERTY + pipeline)
    if text is None:
        return None
    pointer = Pointer.of_file(text)
    if pointer is None or pointer.stem != text:
        raise SinkError(f"{table.name()}: the property {HEAD_PROPERTY}{pipeline} is {text!r}")
    return pointer


def has_retries(table: Table) -> bool:
    return table.properties.get(TableProperties.COMMIT_NUM_RETRIES) != "0"


def forget_old_snapshots(table: Table) -> None:
    """From this handle only, which a commit needs for its updates and its requirements.

    PyIceberg copies the handle's metadata some twenty times a commit, snapshots and all; the
    catalog applies the updates to the metadata it holds itself.
    """
    metadata = table.metadata
    kept = {reference.snapshot_id for reference in metadata.refs.values()}
    snapshots = [each for each in metadata.snapshots if each.snapshot_id in kept]
    table.metadata = metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": []})


def columns_of(table: Table) -> pa.Schema:
    """The table's columns in the form in which results are compared."""
    return TYPES.comparable(table.schema().as_arrow())


def layout_of(table: Table) -> list[tuple[str, str]]:
    """Source column and transform of each partition field."""
    schema = table.schema()
    return [
        (schema.find_column_name(field.source_id) or "", str(field.transform))
        for field in table.spec().fields
    ]


def lacks_layout(table: Table, sink: IcebergSink) -> bool:
    """True for a table made before there were rows: its columns are not known yet."""
    known = table.schema().column_names
    return not layout_of(table) and any(p.source not in known for p in sink.partitioning)


def check(table: Table, sink: IcebergSink) -> None:
    """Refuse a table that this sink must not write to.

    Raises:
        ConfigError: names the field.
    """
    location = Path(urlsplit(table.location()).path)
    if location.resolve() != sink.root.resolve():
        raise ConfigError(
            f"sink.location: the table {sink.table} lies at {table.location()}, not at {sink.root}"
        )
    wanted = [(p.source, str(parse_transform(p.transform))) for p in sink.partitioning]
    if layout_of(table) != wanted and not lacks_layout(table, sink):
        raise ConfigError(
            f"sink.partition_by: the table is partitioned by {_in_words(layout_of(table))}, not "
            f"by {_in_words(wanted)}. Only columns and year, month, day or hour of one are possible"
        )
    _check_bounds(table)


def _check_bounds(table: Table) -> None:
    """PyIceberg takes a partition's value from the bounds it keeps, and null if it keeps none."""
    plan = compute_statistics_plan(table.schema(), table.properties)
    for field in table.spec().fields:
        mode = plan[field.source_id].mode.type.name
        if mode in _MODES_WITHOUT_BOUNDS:
            name = table.schema().find_column_name(field.source_id)
            prefix = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
            raise ConfigError(
                f"sink.table: {table.name()} keeps no bounds of {name!r}, by which it is "
                f"partitioned. Set the table's property {prefix}.{name} to full."
            )


def _in_words(layout: list[tuple[str, str]]) -> str:
    return ", ".join(str(Partitioning(*field)) for field in layout) or "nothing"
