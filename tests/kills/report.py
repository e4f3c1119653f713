"""The page: its figures are the sums of the runs beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.kills.figures import FOUND, Run, Scenario, read, together

BEGIN, END = "<!-- figures: kills -->", "<!-- end of figures: kills -->"
KILLS = ("run", "Spark", "broker", "store")


def publish(page: Path) -> None:
    """Write the figures of ``page`` anew, from the file beside it."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    part = "\n".join(lines(read(page.with_suffix(".json"))))
    page.write_text(f"{before}{BEGIN}\n\n{part}\n\n{END}{after}")


def summary(runs: Sequence[Run]) -> Iterator[str]:
    """For a terminal: a line a scenario."""
    for name, each in together(runs).items():
        found = ", ".join(f"{what} {each.found[what]}" for what in FOUND)
        kills = sum(each.kills.values())
        yield f"{name:28} {each.lives:3} lives {kills:4} kills  {found}"
        yield from (f"    not tried: {why}" for why in dict.fromkeys(each.not_tried))


def lines(runs: Sequence[Run]) -> Iterator[str]:
    """In Markdown."""
    from tests.kills.world import CONTROLS

    if not runs:
        yield "Not measured yet."
        return
    total = together(runs)
    promised = {name: each for name, each in total.items() if name not in CONTROLS}
    whole = Scenario()
    for each in promised.values():
        whole.add(each)
    yield (
        f"**{sum(whole.kills.values()):,} kills** in {whole.lives} lives of {whole.operations:,} "
        f"operations on {whole.records:,} records; {whole.looks:,} looks from outside at "
        f"{whole.rows:,} rows. {sum(run.minutes for run in runs):.0f} minutes."
    )
    yield ""
    yield from _table({name: total[name] for name in sorted(promised)})
    controls = {name: total[name] for name in sorted(total) if name in CONTROLS}
    if controls:
        yield "\nThe control, which promises less and has to be caught:\n"
        yield from _table(controls)
    yield "\n### Faults that met their operation\n"
    yield from _faults(promised)
    yield from _rest(promised)
    yield "\n### Runs of the program\n"
    yield from _runs(runs)


def _table(scenarios: dict[str, Scenario]) -> Iterator[str]:
    heads = ["store and mode", "lives", *(f"kills: {who}" for who in KILLS), "other faults"]
    yield f"| {' | '.join([*heads, *(what.upper() for what in FOUND)])} |"
    yield f"|---|{'---:|' * (len(heads) - 1 + len(FOUND))}"
    for name, each in scenarios.items():
        kills = [each.kills[who] for who in KILLS]
        cells = [name, each.lives, *kills, sum(each.faults.values())]
        found = [each.found[what] for what in FOUND]
        yield f"| {' | '.join(map(str, [*cells, *found]))} |"


def _faults(scenarios: dict[str, Scenario]) -> Iterator[str]:
    kills = _sum(each.kills for each in scenarios.values())
    other = _sum(each.faults for each in scenarios.values())
    yield "| fault | times |"
    yield "|---|---:|"
    yield from (f"| SIGKILL: {who} | {kills[who]} |" for who in KILLS)
    yield from (f"| {what} | {other[what]} |" for what in sorted(other))


def _rest(scenarios: dict[str, Scenario]) -> Iterator[str]:
    odd = _sum(each.odd for each in scenarios.values())
    if odd:
        yield "\nErrors beside those that a fault explains: " + ", ".join(
            f"`{name}` {count}" for name, count in sorted(odd.items())
        )
    not_tried = Counter(why for each in scenarios.values() for why in each.not_tried)
    if not_tried:
        yield "\nCould not be tried, or not to the end; counted neither as good nor as bad:\n"
        yield from (f"- {why} ({count} times)" for why, count in not_tried.items())


def _runs(runs: Sequence[Run]) -> Iterator[str]:
    yield "| date | commit | seed | minutes | kills | cores |"
    yield "|---|---|---:|---:|---:|---:|"
    for run in runs:
        kills = sum(sum(each.kills.values()) for each in run.scenarios.values())
        told = run.machine
        yield (
            f"| {told['date']} | {told['commit']} | {run.seed} | {run.minutes:.0f} | {kills} | "
            f"{told['cores']} |"
        )


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
