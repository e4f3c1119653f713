"""Rows that replace their predecessors by key: one merge, and what it goes by."""

from __future__ import annotations

from deltalake import DeltaTable, QueryBuilder

from eo_pipeline.arrow import pa, pc
from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.delta.commit import Arguments, commit_files
from eo_pipeline.sinks.upsert import ORIGIN, UpsertRule


def merge(table: DeltaTable, source: pa.Table, rule: UpsertRule, arguments: Arguments) -> None:
    """One commit on this handle: ``source``, one row a key, replaces and adds rows. The table has
    all of its columns.
    """
    before = table.version()
    merger = table.merge(
        source,
        _same_key(rule, "old", "new"),
        source_alias="new",
        target_alias="old",
        streamed_exec=False,
        **arguments,
    )
    merger = merger.when_matched_update_all(_may_replace(rule, "old", "new"))
    merger.when_not_matched_insert_all().execute()
    if table.version() == before:
        # a merge that changes nothing makes no commit, and says nothing
        commit_files(table, [], arguments)


def newest_rows(table: pa.Table, rule: UpsertRule) -> pa.Table:
    """One row for each key: the newest.

    Raises:
        ConfigError: a column is absent.
        RefusedError: a row has no key, or nothing to be sequenced by; or nothing tells which of two
            rows is the newer; a name cannot be used.
    """
    rule.check_columns(table.schema.names)
    _refuse_names(table.schema.names)
    rule.check_nulls(table[name].null_count for name in rule.never_null)
    by_key = [(name, "ascending") for name in rule.key]
    newest_first = [(name, "descending") for name in rule.age_columns(table.schema.names)]
    ordered = table.sort_by([*by_key, *newest_first]).combine_chunks()
    is_first = _first_of_each_key(ordered, rule.key)
    if not rule.sequence_by:
        _refuse_mixed_keys(ordered, is_first, rule)
    return ordered.filter(is_first)


def refuse_moved_keys(table: DeltaTable, source: pa.Table, rule: UpsertRule) -> None:
    """Refuse a row of ``source`` whose predecessor in ``table`` came from another Kafka partition,
    where offsets alone would have to tell which is the newer. A batch of the table at a time.

    Raises:
        RefusedError: names the key and both places.
    """
    columns = [*rule.key, *ORIGIN]
    if rule.sequence_by or not {field.name for field in table.schema().fields} >= set(columns):
        return  # rows that do not say where they came from give way
    fresh = source.select(columns).rename_columns([*rule.key, *map("new {}".format, ORIGIN)])
    names = ", ".join(map(_quoted, columns))
    held = QueryBuilder().register("held", table).execute(f"SELECT {names} FROM held")
    for batch in pa.RecordBatchReader.from_stream(held):
        old = pa.table(batch).cast(pa.schema([source.schema.field(name) for name in columns]))
        both = old.join(fresh, keys=list(rule.key), join_type="inner")
        for row in both.to_pylist():
            before = tuple(row[name] for name in ORIGIN)
            after = tuple(row[f"new {name}"] for name in ORIGIN)
            if before != after and None not in before:
                raise rule.refuse_order([row[name] for name in rule.key], before, after)


def _refuse_mixed_keys(ordered: pa.Table, is_first: pa.Array, rule: UpsertRule) -> None:
    """Raise RefusedError if two rows of one key, which stand together, came from two places."""
    moved = None
    for name in ORIGIN:
        column = pc.not_equal(ordered[name].slice(1), ordered[name].slice(0, ordered.num_rows - 1))
        moved = column if moved is None else pc.or_(moved, column)
    if ordered.num_rows < 2 or moved is None:
        return
    found = pc.index(pc.and_not(moved, is_first.slice(1)), True).as_py()
    if found >= 0:
        one, other = ordered.slice(found, 2).to_pylist()
        key = [one[name] for name in rule.key]
        raise rule.refuse_order(key, [one[n] for n in ORIGIN], [other[n] for n in ORIGIN])


def _refuse_names(names: list[str]) -> None:
    """delta-rs's merge quotes names with backticks and does not see one in a name."""
    bad = [name for name in names if "`" in name]
    if bad:
        raise RefusedError(
            f"column {bad[0]!r}: a Delta table is not upserted by a name with a backtick. Nothing "
            "was written; rename it in the transform."
        )


def _first_of_each_key(ordered: pa.Table, key: tuple[str, ...]) -> pa.Array:
    if ordered.num_rows < 2:
        return pa.array([True] * ordered.num_rows, pa.bool_())
    above, below = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
    differs = None
    for name in key:
        column = pc.not_equal(above[name], below[name])
        differs = column if differs is None else pc.or_(differs, column)
    assert differs is not None, "an upsert has a key"
    return pa.concat_arrays([pa.array([True]), *differs.chunks])


def _same_key(rule: UpsertRule, old: str, new: str) -> str:
    """SQL: two rows have one key."""
    return " AND ".join(f"{old}.{_quoted(n)} = {new}.{_quoted(n)}" for n in rule.key)


def _may_replace(rule: UpsertRule, old: str, new: str) -> str | None:
    """SQL: the new row may replace the old one. ``None``: it always may."""
    if not rule.sequence_by:
        return None
    pairs = [(f"{old}.{_quoted(n)}", f"{new}.{_quoted(n)}") for n in rule.sequence_by]
    within = "true"
    for mine, other in reversed(pairs):
        within = f"({mine} < {other} OR ({mine} = {other} AND {within}))"
    # a row that came from elsewhere may have nothing to be sequenced by: it gives way
    return " OR ".join([within, *(f"{mine} IS NULL" for mine, _ in pairs)])


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
