"""Values of which a table's log cannot hold the bounds, and most readers cannot make a value."""

from __future__ import annotations

from collections.abc import Iterator

from eo_pipeline.arrow import pa, pq, pt
from eo_pipeline.errors import RefusedError
from eo_pipeline.places import Place, parquet_source
from eo_pipeline.sinks.arrow import has_common_years


def refuse_unbounded_rows(table: pa.Table, store: str) -> None:
    """Refuse text that is not UTF-8, and times of other years than 1 to 9999, in any column.

    Raises:
        RefusedError: names the column.
    """
    for name in table.column_names:
        for chunk in table[name].chunks:
            try:
                chunk.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _refused(name, store, str(error)) from error
            if not all(map(has_common_years, _leaves(chunk))):
                raise _refused(name, store, "years outside 1 to 9999")


def refuse_unbounded_file(path: Place, store: str) -> None:
    """The same of a staged file; see :func:`refuse_unbounded_footer`."""
    refuse_unbounded_footer(pq.read_metadata(parquet_source(path)), store)


def refuse_unbounded_footer(metadata: pq.FileMetaData, store: str) -> None:
    """The same of a staged file, as far as its footer shows it: its rows are not read.

    Raises:
        RefusedError: names the column.
    """
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            leaf = metadata.row_group(group).column(index)
            try:
                if leaf.is_stats_set and leaf.statistics.has_min_max:
                    _ = leaf.statistics.min, leaf.statistics.max
            except UnicodeDecodeError as error:
                raise _refused(leaf.path_in_schema, store, str(error)) from error
            except (OverflowError, ValueError) as error:
                named = "years outside 1 to 9999"
                raise _refused(leaf.path_in_schema, store, named) from error


def _refused(name: str, store: str, found: str) -> RefusedError:
    return RefusedError(
        f"column {name!r} holds what {store} keeps no bounds of: {found}. Nothing was written; "
        "correct it in the transform."
    )


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    """The plain arrays that nested ``values`` are made of."""
    kind = values.type
    if pt.is_struct(kind):
        for child in values.flatten():
            yield from _leaves(child)
    elif pt.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        yield from _leaves(values.flatten())
    else:
        yield values
