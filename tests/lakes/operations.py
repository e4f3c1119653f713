"""What a pipeline does to its table, step by step: what is drawn, done, and to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from eo_pipeline.errors import (
    ConfigError,
    NothingToDoError,
    RefusedError,
    SchemaChangeError,
    UnknownCheckpointError,
)
from tests.lakes.columns import PLAIN, WIDER, Column, Columns, has_struct, with_field
from tests.lakes.life import FoundError, Life


@dataclass(frozen=True)
class Operation:
    name: str
    weight: int
    do: Callable[[Life], None]
    able: Callable[[Life], bool]


def always(_: Life) -> bool:
    return True


def has_table(life: Life) -> bool:
    return life.model.columns is not None


def has_rows(life: Life) -> bool:
    return has_table(life) and bool(life.model.rows)


def some(life: Life) -> int:
    return life.chance.choice([1, 1, 2, 3, 6])


def run(life: Life) -> None:
    """New records, read at once, in parts or by files; or nothing new."""
    count = life.chance.choice([0, some(life), some(life)]) if life.model.records else 2
    life.write(count)
    forward(life)


def forward(life: Life) -> None:
    """A run of the pipeline, whatever is pending."""
    files = life.chance.random() < (0.12 if life.driver.is_whole else 0.3)
    most = life.chance.choice([None, None, 2]) if life.model.partitions == 1 else None
    life.say(f"run, {len(life.model.pending())} records{', by files' * files}, most {most}")
    head = life.driver.run(files=files, most=most)
    life.model.run(most)
    if head != life.model.head:
        raise FoundError(f"WRONG VERSION: {head} after a run, expected {life.model.head}")


def rewind(life: Life) -> None:
    """To one of the last live versions; or to the head, or to a dead one, which is refused."""
    live = [entry.version for entry in life.model.live]
    if life.driver.is_whole and life.model.dead and life.chance.random() < 0.1:
        to = life.chance.choice(life.model.dead)
        life.say(f"rewind to {to}, which is dead")
        life.refused((UnknownCheckpointError,), lambda: life.driver.rewind(to))
        return
    to = life.chance.choice(live[-6:] if life.driver.is_whole else live[-7:-1])
    life.say(f"rewind to {to} of {live}")
    if not any(entry.reads for entry in life.model.live if entry.version > to):
        if life.driver.is_whole:  # the sink alone would do it
            life.refused((NothingToDoError,), lambda: life.driver.rewind(to))
    elif life.upserts and any(head >= to for head in life.others):
        life.refused((RefusedError,), lambda: life.driver.rewind(to))
    elif life.upserts and any(head > to for head in life.vacuumed):
        if life.may_be_refused((RefusedError,), lambda: life.driver.rewind(to)):
            life.model.rewind(to)
    elif life.go_back(lambda: life.driver.rewind(to)):
        life.model.rewind(to)


def replay(life: Life) -> None:
    """One checkpoint, or several."""
    among = life.model.replayable()
    wanted = sorted(life.chance.sample(among, min(len(among), life.chance.choice([1, 1, 2]))))
    life.say(f"replay of {wanted}")
    if life.upserts:
        life.refused((RefusedError,), lambda: life.driver.replay(wanted))
        return
    for version in wanted:
        if life.go_back(partial(life.driver.replay, [version])):
            life.model.replay(version)


def redrive(life: Life) -> None:
    """What lacked a value is good once it need not have one."""
    model = life.model
    lenient = life.chance.random() < 0.5
    if lenient:
        model.source["need"] = model.source["need"].of(required=False)
    with_letters = sorted({checkpoint for checkpoint, _, _ in model.letters})
    life.say(f"redrive of {with_letters}, lenient {lenient}")
    if not with_letters and not life.driver.is_whole:
        return
    if not with_letters:
        life.refused((NothingToDoError,), life.driver.redrive)
    elif life.upserts:
        life.refused((RefusedError,), life.driver.redrive)
    elif life.may_not_go_back:
        life.say("  which may be refused: not tried")
    else:
        life.driver.redrive()
        for version in with_letters:
            model.replay(version)
    if life.chance.random() < 0.5:
        model.source["need"] = model.source["need"].of(required=True)


def maintain(life: Life) -> None:
    life.say("maintain")
    life.model.traits.add("mixed")
    life.driver.maintain()
    life.driver.maintain()


def reset(life: Life) -> None:
    is_shared = any(row.checkpoint is None for row in life.model.rows.values())
    life.say(f"reset, rows of others {is_shared}")
    if is_shared:
        life.refused((RefusedError,), life.driver.reset)
        return
    life.driver.reset()
    life.model.reset()
    life.states.clear()
    life.others.clear()
    life.vacuumed.clear()
    forward(life)


# the source's schema


def free(life: Life) -> list[str]:
    """Columns that a schema may lose or change."""
    return [name for name in life.model.source if name.startswith("c")]


def add_column(life: Life) -> None:
    name = f"c{life.next() + 100}"
    life.model.source[name] = Column(life.draw_kind())
    life.say(f"column {name} {life.model.source[name].kind.ddl} comes")
    life.write(some(life))
    forward(life)


def drop_column(life: Life) -> None:
    name = life.chance.choice(free(life))
    life.say(f"column {name} goes")
    del life.model.source[name]
    life.write(some(life))
    forward(life)


def lost(life: Life) -> list[str]:
    """Columns that the table has and the source has not."""
    return [n for n in life.model.columns or () if n.startswith("c") and n not in life.model.source]


def column_again(life: Life) -> None:
    name = life.chance.choice(lost(life))
    life.say(f"column {name} comes back")
    life.model.source[name] = Column((life.model.columns or {})[name])
    life.write(some(life))
    forward(life)


def add_field(life: Life) -> None:
    names = [name for name in free(life) if has_struct(life.model.source[name].kind)]
    name, field = life.chance.choice(names), f"f{life.next()}"
    more = life.chance.choice([*PLAIN.values()])
    kind = with_field(life.model.source[name].kind, field, more)
    life.model.source[name] = Column(kind)
    life.say(f"{name}.{field} {more.ddl} comes")
    life.write(some(life))
    forward(life)


def has_struct_column(life: Life) -> bool:
    return any(has_struct(life.model.source[name].kind) for name in free(life))


def wider(life: Life) -> list[str]:
    known = life.model.columns or {}
    return [n for n in free(life) if n in known and life.model.source[n].kind.name in WIDER]


def widen(life: Life) -> None:
    """Where the store can, with values that the narrow type has not; elsewhere it is refused."""
    name = life.chance.choice(wider(life))
    kind = WIDER[life.model.source[name].kind.name]
    life.say(f"column {name} {life.model.source[name].kind.ddl} becomes {kind.ddl}")
    if life.store == "iceberg":
        life.model.source[name] = Column(kind)
        life.write(some(life))
        forward(life)
    else:
        run_refused(life, SchemaChangeError, {**life.model.source, name: Column(kind)})


def change_type(life: Life) -> None:
    known = life.model.columns or {}
    name = life.chance.choice([n for n in free(life) if n in known])
    other = PLAIN["date" if known[name].name == "boolean" else "boolean"]
    life.say(f"column {name} {known[name].ddl} becomes {other.ddl}")
    run_refused(life, SchemaChangeError, {**life.model.source, name: Column(other)})


def other_case(life: Life) -> None:
    known = life.model.columns or {}
    name = life.chance.choice([n for n in free(life) if n in known])
    columns = {n.upper() if n == name else n: c for n, c in life.model.source.items()}
    life.say(f"column {name} becomes {name.upper()}")
    run_refused(life, SchemaChangeError, columns)


def known_free(life: Life) -> bool:
    return any(name in (life.model.columns or {}) for name in free(life))


def lose_partition(life: Life) -> None:
    name = life.chance.choice(life.model.partition_by)
    life.say(f"partition column {name} goes")
    columns = {n: c for n, c in life.model.source.items() if n != name}
    run_refused(life, ConfigError, columns)


def run_refused(life: Life, error: type[Exception], columns: Columns) -> None:
    """Records of the old columns are there, and a run with other ones; then one with the old."""
    life.write(some(life))
    old, life.model.source = life.model.source, columns
    life.refused((error,), life.driver.run)  # type: ignore[arg-type]
    life.model.source = old
    life.check()
    forward(life)


def can_drop(life: Life) -> bool:
    return len(free(life)) > 1


def may_lose_partition(life: Life) -> bool:
    return life.driver.is_whole and bool(life.model.partition_by)


OF_PIPELINES = (
    Operation("run", 26, run, always),
    Operation("rewind", 8, rewind, lambda life: len(life.model.live) > 1 and has_table(life)),
    Operation("replay", 9, replay, lambda life: bool(life.model.replayable()) and has_table(life)),
    Operation("redrive", 4, redrive, has_table),
    Operation("maintain", 7, maintain, has_table),
    Operation("reset", 1, reset, has_table),
    Operation("add a column", 5, add_column, always),
    Operation("drop a column", 3, drop_column, can_drop),
    Operation("a column again", 4, column_again, lambda life: bool(lost(life))),
    Operation("add a field", 3, add_field, has_struct_column),
    Operation("widen", 3, widen, lambda life: bool(wider(life))),
    Operation(
        "change a type", 1, change_type, lambda life: life.driver.is_whole and known_free(life)
    ),
    Operation("another case", 1, other_case, known_free),
    Operation("lose a partition", 1, lose_partition, may_lose_partition),
)
