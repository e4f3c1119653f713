"""``python -m tests.lakes``: drawn sequences, one after the other. 1: something was found."""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.lakes.drivers import ByHand, Driver, Whole
from tests.lakes.lakes import Delta, Iceberg, Lake
from tests.lakes.life import FoundError, Life, drawn_table
from tests.lakes.operations import OF_PIPELINES, Operation
from tests.lakes.others import OF_OTHERS, OF_SPARK
from tests.lakes.readers import duckdb, in_process, spark, versions
from tests.lakes.world import World

STEPS = 10
#: How many sequences are of a whole pipeline, from Kafka on; the others give rows to the sink.
WHOLE = 0.1
#: In how many of the others Spark works on the table. It reads all of them, at their end.
_WORKED_ON = 0.15
#: In how many of these it writes times as INT96.
_OLD_TIMES = 0.25
#: How often the last operation is done once more.
_AGAIN = 0.12


def main() -> None:
    """See the module."""
    faulthandler.enable()  # libraries of four readers share this process
    parser = argparse.ArgumentParser(prog="python -m tests.lakes", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=20, help="of each store")
    parser.add_argument("--store", choices=["delta", "iceberg"], help="this one alone")
    parser.add_argument("--minutes", type=float, default=90.0, help="no more begin after this")
    parser.add_argument("--only", type=int, help="this sequence alone: as it was drawn")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--whole", type=float, default=WHOLE, help="share of sequences that are whole pipelines"
    )
    parser.add_argument("--verbose", action="store_true", help="say each step")
    asked = parser.parse_args()
    total = Total()
    with World() as world:
        say(f"readers: {dict(versions('1.5.5' if world.duck else None, world.spark.version))}")
        try:
            _sequences(world, asked, total)
        except KeyboardInterrupt:
            say("ended early")
    for line in total.lines():
        say(line)
    sys.exit(1 if total.found else 0)


@dataclass
class Total:
    """What was done, and what was found: by the first words of it."""

    sequences: int = 0
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        lines = [f"{self.sequences} sequences, {self.done.total()} steps: {done}"]
        for what, where in sorted(self.found.items()):
            lines.append(f"{len(where):3d} x {what}   first: {where[0]}")
        return lines


def _sequences(world: World, asked: argparse.Namespace, total: Total) -> None:
    until = time.monotonic() + asked.minutes * 60
    stores = [asked.store] if asked.store else ["delta", "iceberg"]
    numbers = range(asked.sequences) if asked.only is None else [asked.only]
    for number in numbers:
        for store in stores:
            if time.monotonic() > until:
                return
            began = time.monotonic()
            life = _begun(world, store, asked, number)
            wrong = live(life, world, asked.steps)
            total.sequences += 1
            total.done.update(life.done)
            seconds = time.monotonic() - began
            if wrong is None:
                say(f"{store} {number}: {sum(life.done.values())} steps, {seconds:.1f} s")
            else:
                what = f"{store}: {wrong.splitlines()[0]}"
                total.found.setdefault(what[:160], []).append(str(number))
                say(f"{store} {number}: {wrong}")
            if wrong is not None or asked.verbose:
                for line in life.log:
                    say(f"    {line}")
            if wrong is not None:
                say(
                    f"    again: python -m tests.lakes --seed {asked.seed} --store {store} "
                    f"--only {number}"
                )


def _begun(world: World, store: str, asked: argparse.Namespace, number: int) -> Life:
    name = f"t_{asked.seed}_{number}_{store}"
    lake: Lake = Delta(name, world.root) if store == "delta" else Iceberg(name, world.root)
    chance = random.Random(f"{asked.seed}/{store}/{number}")
    is_whole, is_worked_on, old_times = (chance.random() for _ in range(3))
    model, settings = drawn_table(chance, store)
    driver: Driver
    if is_whole < asked.whole:
        driver = Whole(world, lake, model, settings, world.folder)
    else:
        driver = ByHand(lake, model, settings)
    life = Life(
        chance,
        lake,
        model,
        driver,
        readers=[*in_process(store), *([duckdb(world.duck)] if world.duck else [])],
        spark=world.spark if driver.is_whole or is_worked_on < _WORKED_ON else None,
        old_times=old_times < _OLD_TIMES,
        by_time="(" in str(settings.get("partition_by")),
    )
    columns = ", ".join(f"{n} {c.kind.ddl}" for n, c in model.source.items())
    life.say(
        f"{settings}: {columns}, {model.partitions} Kafka partitions; "
        f"{'whole' if driver.is_whole else 'by hand'}"
    )
    return life


def live(life: Life, world: World | None, steps: int) -> str | None:
    """What was found, None if all was as it must be."""
    among = [*OF_PIPELINES, *OF_OTHERS[life.store]]
    among += OF_SPARK[life.store] if life.spark is not None else []
    last: Operation | None = None
    try:
        for number in range(steps):
            operation = _drawn(life, among, last) if number else OF_PIPELINES[0]
            with life.step(operation.name):
                operation.do(life)
            life.check()
            life.keep_state()
            last = operation
        life.check_letters()
        if world is not None and life.model.columns is not None:
            life.check([spark(world.spark)])
    except FoundError as found:
        return str(found)
    except Exception:  # noqa: BLE001 - the other sequences go on
        return f"ERROR of the program: {traceback.format_exc()[-3000:]}"
    return None


def _drawn(life: Life, among: Sequence[Operation], last: Operation | None) -> Operation:
    if last is not None and life.chance.random() < _AGAIN and last.able(life):
        return last
    able = [each for each in among if each.able(life)]
    return life.chance.choices(able, [each.weight for each in able])[0]


def say(line: str) -> None:
    """On standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
