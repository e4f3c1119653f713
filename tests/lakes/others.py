"""What others do to the table: delta-rs, PyIceberg and Spark, between a pipeline's runs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.table import Table
from pyiceberg.types import LongType

from eo_pipeline.errors import RefusedError, SchemaChangeError, TableRolledBackError
from tests.lakes.columns import PLAIN, WIDER, Kind
from tests.lakes.life import Life
from tests.lakes.model import Row
from tests.lakes.operations import Operation, has_rows, has_table


def ids(rows: Collection[Row]) -> str:
    return ", ".join(str(row.values["id"]) for row in rows)


def _delta(life: Life) -> DeltaTable:
    table = life.lake.open()
    assert isinstance(table, DeltaTable)
    return table


def _iceberg(life: Life) -> Table:
    table = life.lake.open()
    assert isinstance(table, Table)
    return table


# delta-rs


def optimize(life: Life) -> None:
    by_order = life.chance.random() < 0.3
    life.say(f"delta-rs OPTIMIZE, z-order {by_order}")
    optimizer = _delta(life).optimize
    if by_order:
        optimizer.z_order(["id"])
    else:
        optimizer.compact()


def vacuum(life: Life) -> None:
    life.say("delta-rs VACUUM")
    _delta(life).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    vacuumed(life)


def vacuumed(life: Life) -> None:
    life.vacuumed.append(life.model.head)
    life.states.clear()


def checkpoint(life: Life) -> None:
    life.say("delta-rs checkpoint of the log, clean-up")
    _delta(life).create_checkpoint()
    _delta(life).cleanup_metadata()


def restore(life: Life) -> None:
    version = life.chance.choice(_earlier(life))
    life.say(f"delta-rs RESTORE to {version}")
    before = life.lake.state()
    _delta(life).restore(version)
    restored(life, version, before)


def restored(life: Life, version: int, before: int) -> None:
    """Runs are refused until the table is set forward again, or the ledger goes back too."""
    state, now = life.states[version], life.model.state()
    life.model.put_back(state, columns=True)
    others, life.others = life.others, [*life.others_at[version]]
    if state.head == life.model.head or _goes_back_too(life, state.head):
        return
    life.say("  set forward again")
    _delta(life).restore(before)
    life.model.put_back(now, columns=True)
    life.others = others


def update(life: Life) -> None:
    chosen, mark = life.some_rows(), f"u{life.next()}"
    life.say(f"delta-rs UPDATE of {ids(chosen.values())}")
    found = _delta(life).update({"mark": f"'{mark}'"}, predicate=f"id IN ({ids(chosen.values())})")
    assert found["num_updated_rows"] == len(chosen), found
    life.model.update(chosen, mark=mark)
    life.commit()


def delete(life: Life) -> None:
    chosen = life.some_rows()
    life.say(f"delta-rs DELETE of {ids(chosen.values())}")
    _delta(life).delete(f"id IN ({ids(chosen.values())})")
    life.model.delete(chosen)
    life.commit()


def append(life: Life) -> None:
    key, row = life.foreign_row()
    if life.upserts:
        held = {tuple(r.values.get(n) for n in life.model.key) for r in life.model.rows.values()}
        key = tuple(row.values.get(name) for name in life.model.key)
        if key in held:
            life.say("no append: the key is there")
            return
    life.say(f"an append of somebody else's row {row.values['id']}")
    if life.store == "delta":
        table = _delta(life)
        rows = _as_arrow(life, row, pa.schema(table.schema().to_arrow()))
        write_deltalake(table, rows, mode="append")
        life.commit()
    else:
        held_there = _iceberg(life)
        held_there.append(_as_arrow(life, row, held_there.schema().as_arrow()))
    life.model.rows[key] = row


def _as_arrow(life: Life, row: Row, schema: pa.Schema) -> pa.Table:
    kinds = life.model.columns or {}
    values = {
        f.name: [kinds[f.name].as_arrow(row.values[f.name]) if f.name in kinds else None]
        for f in schema
    }
    return pa.table({f.name: pa.array(values[f.name], f.type) for f in schema}, schema=schema)


def add_column(life: Life) -> None:
    name = f"o{life.next()}"
    life.say(f"somebody else adds the column {name}")
    if life.store == "delta":
        _delta(life).alter.add_columns([Field(name, PrimitiveType("long"))])
        life.commit()
    else:
        with _iceberg(life).update_schema() as change:
            change.add_column(name, LongType())
    assert life.model.columns is not None
    life.model.columns[name] = PLAIN["bigint"]


def properties(life: Life) -> None:
    life.say("somebody else sets a property of the table")
    if life.store == "delta":
        known = {"delta.logRetentionDuration": "interval 30 days"}
        _delta(life).alter.set_table_properties(known)
        life.commit()
    else:
        with _iceberg(life).transaction() as change:
            change.set_properties({"owner": f"someone {life.next()}"})


# PyIceberg


def delete_rows(life: Life) -> None:
    chosen = life.some_rows()
    life.say(f"PyIceberg delete of {ids(chosen.values())}")
    _iceberg(life).delete(f"id in ({ids(chosen.values())})")
    life.model.delete(chosen)


def expire(life: Life) -> None:
    life.say("PyIceberg expire_snapshots")
    _iceberg(life).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    _expired(life)


def _expired(life: Life) -> None:
    life.expired = True
    life.states = {s: held for s, held in life.states.items() if s == life.lake.state()}


def roll_back(life: Life) -> None:
    snapshot = _ancestor(life)
    life.say(f"PyIceberg rollback to {snapshot}")
    before = life.lake.state()
    with _iceberg(life).manage_snapshots() as change:
        change.rollback_to_snapshot(snapshot)
    rolled_back(life, snapshot, before)


def rolled_back(life: Life, snapshot: int, before: int) -> None:
    """Runs are refused until the table is set forward again, or the ledger goes back too."""
    state = life.states[snapshot]
    now = life.model.state()
    life.model.put_back(state, columns=False)
    if state.head == life.model.head:
        return
    if _goes_back_too(life, state.head):
        return
    life.say("  set forward again")
    with _iceberg(life).manage_snapshots() as change:
        change.set_current_snapshot(before)
    life.model.put_back(now, columns=False)


def _goes_back_too(life: Life, version: int) -> bool:
    """Whether the ledger was set back to ``version``, too, after a run that was refused."""
    if life.driver.is_whole:
        # Iceberg tells by its snapshots
        told = life.refused if not life.expired else life.may_be_refused
        told((TableRolledBackError,), life.driver.run)
    later = [entry for entry in life.model.live if entry.version > version]
    stands = any(entry.version == version for entry in life.model.live)
    if not stands or not any(entry.reads for entry in later) or life.chance.random() > 0.6:
        return False
    life.check()
    life.say(f"  rewind to {version}")
    if life.upserts and any(head >= version for head in life.others):
        life.refused((RefusedError,), lambda: life.driver.rewind(version))
        return False
    if life.go_back(lambda: life.driver.rewind(version)):
        life.model.rewind(version)
        return True
    return False


def _ancestor(life: Life) -> int:
    """Of the table's present snapshot, one of which is known what it held."""
    table = _iceberg(life)
    parents = {each.snapshot_id: each.parent_snapshot_id for each in table.metadata.snapshots}
    held, at = [], table.metadata.current_snapshot_id
    while at in parents:
        held.append(at)
        at = parents[at]
    known = [each for each in reversed(held) if each in life.states]
    number = life.chance.randrange(1_000)
    return known[number % len(known)]


def widen(life: Life) -> None:
    name = life.chance.choice(_widenable(life))
    kind = WIDER[_kinds(life)[name].name]
    life.say(f"PyIceberg widens {name} to {kind.ddl}")
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    made = pyarrow_to_schema(
        pa.schema([pa.field(name, kind.arrow, metadata={"PARQUET:field_id": "1"})])
    )
    with _iceberg(life).update_schema() as change:
        change.update_column(name, made.find_type(name))
    _kinds(life)[name] = kind


def _kinds(life: Life) -> dict[str, Kind]:
    assert life.model.columns is not None
    return life.model.columns


def _widenable(life: Life) -> list[str]:
    return [n for n, k in (life.model.columns or {}).items() if n[0] == "c" and k.name in WIDER]


def rename(life: Life) -> None:
    name, to = life.chance.choice(_own(life)), f"c{life.next() + 200}"
    life.say(f"PyIceberg renames {name} to {to}")
    with _iceberg(life).update_schema() as change:
        change.rename_column(name, to)
    renamed(life, name, to)


def drop(life: Life) -> None:
    name = life.chance.choice(_own(life))
    life.say(f"PyIceberg drops {name}")
    with _iceberg(life).update_schema() as change:
        change.delete_column(name)
    renamed(life, name, None)


def renamed(life: Life, name: str, to: str | None) -> None:
    """The source's column of that name is refused until it follows."""
    life.model.rename(name, to)
    life.states = {at: state.renamed(name, to) for at, state in life.states.items()}
    column = life.model.source.get(name)
    if column is None:
        return
    follows = {n: c for n, c in life.model.source.items() if n != name}
    if to is not None and life.chance.random() < 0.7:
        follows[to] = column
    if life.chance.random() < 0.5:
        life.write(1)
        if any(life.model.row(record, 0) for record in life.model.pending()):
            life.refused((SchemaChangeError,), life.driver.run)
    life.model.source = follows


def _own(life: Life) -> list[str]:
    return [name for name in life.model.columns or () if name[0] == "c"]


# Spark


def _sql(life: Life, text: str) -> list[Any]:
    life.model.traits.add("mixed")
    if life.old_times:
        life.model.traits.add("INT96")
    kind = "INT96" if life.old_times else "TIMESTAMP_MICROS"
    life.spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    found: list[Any] = life.spark.sql(text.replace("<t>", life.lake.in_spark)).collect()
    return found


def spark_update(life: Life) -> None:
    chosen, mark = life.some_rows(), f"u{life.next()}"
    life.say(f"Spark UPDATE of {ids(chosen.values())}")
    _sql(life, f"UPDATE <t> SET mark = '{mark}' WHERE id IN ({ids(chosen.values())})")
    life.model.update(chosen, mark=mark)
    life.commit()


def spark_delete(life: Life) -> None:
    chosen = life.some_rows()
    life.say(f"Spark DELETE of {ids(chosen.values())}")
    _sql(life, f"DELETE FROM <t> WHERE id IN ({ids(chosen.values())})")
    life.model.delete(chosen)
    life.commit()


def spark_optimize(life: Life) -> None:
    life.say("Spark OPTIMIZE")
    _sql(life, "OPTIMIZE <t>")


def spark_vacuum(life: Life) -> None:
    life.say("Spark VACUUM")
    _sql(life, "VACUUM <t> RETAIN 0 HOURS")
    vacuumed(life)


def spark_restore(life: Life) -> None:
    version = life.chance.choice(_earlier(life))
    life.say(f"Spark RESTORE to {version}")
    before = life.lake.state()
    _sql(life, f"RESTORE TABLE <t> TO VERSION AS OF {version}")
    restored(life, version, before)


def _call(life: Life, procedure: str, more: str = "") -> None:
    catalog, _, table = life.lake.in_spark.partition(".")
    _sql(life, f"CALL {catalog}.system.{procedure}(table => '{table}'{more})")


def spark_rewrite(life: Life) -> None:
    life.say("Spark rewrite_data_files")
    _call(life, "rewrite_data_files", ", options => map('rewrite-all', 'true')")


def spark_manifests(life: Life) -> None:
    life.say("Spark rewrite_manifests")
    _call(life, "rewrite_manifests")


def spark_expire(life: Life) -> None:
    life.say("Spark expire_snapshots")
    _call(life, "expire_snapshots", ", older_than => TIMESTAMP '9000-01-01', retain_last => 1")
    _expired(life)


def spark_roll_back(life: Life) -> None:
    snapshot, before = _ancestor(life), life.lake.state()
    life.say(f"Spark rollback to {snapshot}")
    _call(life, "rollback_to_snapshot", f", snapshot_id => {snapshot}L")
    rolled_back(life, snapshot, before)


def spark_rename(life: Life) -> None:
    name, to = life.chance.choice(_own(life)), f"c{life.next() + 200}"
    life.say(f"Spark renames {name} to {to}")
    _sql(life, f"ALTER TABLE <t> RENAME COLUMN {name} TO {to}")
    renamed(life, name, to)


def _earlier(life: Life) -> list[int]:
    """Versions of the table before its newest."""
    return sorted(life.states)[:-1]


def may_restore(life: Life) -> bool:
    return has_table(life) and bool(_earlier(life))


def may_roll_back(life: Life) -> bool:
    return has_table(life) and bool(life.states) and life.lake.state() in life.states


def may_rename(life: Life) -> bool:
    return has_table(life) and bool(_own(life))


def may_append(life: Life) -> bool:
    """PyIceberg: it can, and changes no value by it."""
    return has_table(life) and not life.by_time and not life.is_odd


def may_delete(life: Life) -> bool:
    return has_rows(life) and may_append(life)


def plain_paths(life: Life) -> bool:
    """Spark makes no folder that delta-rs removes under another name."""
    return has_table(life) and all(
        str(row.values.get(name)).isascii()
        for row in life.model.rows.values()
        for name in life.model.partition_by
    )


def plain_rows(life: Life) -> bool:
    return plain_paths(life) and bool(life.model.rows)


OF_OTHERS = {
    "delta": (
        Operation("delta-rs optimize", 4, optimize, has_table),
        Operation("delta-rs vacuum", 2, vacuum, has_table),
        Operation("delta-rs checkpoint", 2, checkpoint, has_table),
        Operation("delta-rs restore", 3, restore, may_restore),
        Operation("delta-rs update", 4, update, has_rows),
        Operation("delta-rs delete", 3, delete, has_rows),
        Operation("append of others", 2, append, has_table),
        Operation("column of others", 1, add_column, has_table),
        Operation("property of others", 1, properties, has_table),
    ),
    "iceberg": (
        Operation("PyIceberg delete", 4, delete_rows, may_delete),
        Operation("PyIceberg expire", 3, expire, has_table),
        Operation("PyIceberg rollback", 3, roll_back, may_roll_back),
        Operation("PyIceberg widen", 1, widen, lambda life: bool(_widenable(life))),
        Operation("PyIceberg rename", 3, rename, may_rename),
        Operation("PyIceberg drop", 3, drop, may_rename),
        Operation("append of others", 2, append, may_append),
        Operation("column of others", 1, add_column, has_table),
        Operation("property of others", 1, properties, has_table),
    ),
}
OF_SPARK = {
    "delta": (
        Operation("Spark optimize", 2, spark_optimize, plain_paths),
        Operation("Spark vacuum", 1, spark_vacuum, has_table),
        Operation("Spark restore", 1, spark_restore, may_restore),
        Operation("Spark update", 2, spark_update, plain_rows),
        Operation("Spark delete", 2, spark_delete, plain_rows),
    ),
    "iceberg": (
        Operation("Spark rewrite_data_files", 2, spark_rewrite, has_table),
        Operation("Spark rewrite_manifests", 1, spark_manifests, has_table),
        Operation("Spark expire", 1, spark_expire, has_table),
        Operation("Spark rollback", 1, spark_roll_back, may_roll_back),
        Operation("Spark update", 2, spark_update, has_rows),
        Operation("Spark delete", 2, spark_delete, has_rows),
        Operation("Spark rename", 1, spark_rename, may_rename),
    ),
}
