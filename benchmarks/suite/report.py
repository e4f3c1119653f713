"""The page: every figure of it comes from the results beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite import plots
from benchmarks.suite.figures import Figure
from benchmarks.suite.results import Results

OURS = "eo-pipeline"
SIZES = ("full",)
#: What a scenario tells of the run that measured it.
_OF_A_RUN = ("date", "commit")
#: Whom each of ours is compared with: Delta is Parquet with a log.
_FAMILY = {"Delta": "lake", "Parquet": "lake"}


@dataclass(frozen=True)
class Case:
    """One peer in one mode, in one scenario."""

    peer: str
    store: str
    mode: str
    records: int
    figure: Figure | None
    fault: str

    @property
    def family(self) -> str:
        return _FAMILY.get(self.store, self.store)

    @property
    def program(self) -> str:
        return self.peer.partition(" → ")[0]

    @property
    def is_ours(self) -> bool:
        return self.peer.startswith(OURS)


def cases(results: Results, scenario: str) -> Sequence[Case]:
    """All of a scenario; those that go together side by side, ours first."""
    found: dict[tuple[str, str], Case] = {}
    for each in results.measurements:
        if each.scenario != scenario or (each.peer, each.mode) in found:
            continue
        seconds = results.seconds(scenario, each.peer, each.mode)
        faults = results.faults(scenario, each.peer, each.mode)
        figure = Figure.of(seconds) if seconds else None
        found[each.peer, each.mode] = Case(
            each.peer, each.store, each.mode, each.records, figure, faults[0] if faults else ""
        )
    families = list(dict.fromkeys(case.family for case in found.values()))
    modes = ("warm", "server", "cold")
    return sorted(
        found.values(),
        key=lambda case: (
            families.index(case.family),
            not case.is_ours,
            case.peer,
            modes.index(case.mode),
        ),
    )


def ours_for(case: Case, among: Sequence[Case]) -> Case | None:
    """The one of ours that ``case`` is compared with: same kind of store, same mode."""
    fit = [
        each
        for each in among
        if each.is_ours and each.figure and (each.family, each.mode) == (case.family, case.mode)
    ]
    return fit[0] if fit and case.figure and not case.is_ours else None


def publish(page: Path) -> None:
    """Write the generated parts of ``page`` anew, and the pictures."""
    text = page.read_text()
    for size in SIZES:
        file = page.parent / f"benchmarks-{size}.json"
        if file.exists():
            results = Results.read(file)
            plots.draw(results, size, page.parent / "images", cases)
            part = "\n".join(lines(results, size))
        else:
            part = "Not measured yet."
        text = with_part(text, size, part)
    page.write_text(text)


def with_part(text: str, name: str, part: str) -> str:
    """``text`` with another part between the markers of ``name``."""
    begin, end = f"<!-- figures: {name} -->", f"<!-- end of figures: {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def lines(results: Results, size: str) -> Iterator[str]:
    """One run's part of the page, in Markdown."""
    named = (f"{name} {value}" for name, value in results.machine.items() if name not in _OF_A_RUN)
    yield f"Machine: {', '.join(named)}."
    yield ""
    yield from _table(results, size)
    if results.missing:
        yield "\nMissing here, and why:\n"
        yield from (f"- {peer}: {reason}" for peer, reason in results.missing.items())
    if size == "full":  # the peers are the same
        yield from _settings(results)


def _table(results: Results, size: str) -> Iterator[str]:
    """Return one row for each scenario, store and mode, with a column for each program."""
    programs, rows, notes = [OURS], [], []
    for scenario in ordered(results.scenarios):
        told, found = results.scenarios[scenario], cases(results, scenario)
        notes += [
            f"- {case.peer} ({case.mode}): {plain(case.fault)}" for case in found if case.fault
        ]
        limits = [case for case in found if _is_limit(case) and case.figure]
        notes += [f"- {case.peer}: {_cell(case, None)} ({told['title']})" for case in limits]
        compared = [case for case in found if not _is_limit(case)]
        programs = list(dict.fromkeys([*programs, *(case.program for case in compared)]))
        drawn = any(case.figure for case in found)
        title = (
            f"[{told['title']}](images/{plots.name(size, scenario)})" if drawn else told["title"]
        )
        title += f"; {_extent(results, scenario)}, {told['day']}, {told['commit']}"
        for family, mode in dict.fromkeys((case.family, case.mode) for case in compared):
            row = [case for case in compared if (case.family, case.mode) == (family, mode)]
            cells = {case.program: _cell(case, ours_for(case, found)) for case in row}
            rows.append((title, row[0].store, mode, cells))
            title = ""
    yield f"|| into | mode | {' | '.join(programs)} |"
    yield f"|---|---|---|{'---:|' * len(programs)}"
    for title, store, mode, cells in rows:
        yield row_of(title, store, mode, *(cells.get(program, "") for program in programs))
    if notes:
        yield ""
    yield from notes


def row_of(*cells: str) -> str:
    """Return a row of a table in Markdown."""
    return "|" + "".join(f" {cell} |" if cell else "|" for cell in cells)


def ordered(scenarios: Iterable[str]) -> Sequence[str]:
    """Return ``scenarios`` as the page has them: a transform, which is the usual case, first."""
    return sorted(scenarios, key=lambda key: not key.startswith("transform-"))


def _extent(results: Results, scenario: str) -> str:
    """Return how many records, and how many rounds at most."""
    ran = [each for each in results.measurements if each.scenario == scenario]
    records, rounds = max(each.records for each in ran), max(each.round for each in ran) + 1
    return f"{records:,} × {rounds}" if records else f"{rounds} rounds"


def _is_limit(case: Case) -> bool:
    return case.peer.startswith("limit")


def ratios(results: Results, scenarios: Iterable[str]) -> Iterator[str]:
    """A line for each peer that ours can be compared with: below 1 we are faster."""
    for scenario in scenarios:
        told, found = results.scenarios[scenario], cases(results, scenario)
        for case in found:
            ours = ours_for(case, found)
            if ours and ours.figure and case.figure:
                ratio = ours.figure.ratio(case.figure)
                pair = f"{ours.peer} {digits(ours.figure.median)} s"
                other = f"{case.peer} {digits(case.figure.median)} s"
                yield f"{ratio:6.2f}  {pair} / {other} ({case.mode}; {told['title']})"


def _cell(case: Case, ours: Case | None) -> str:
    """Seconds; in brackets our time as a share of them; the noise behind ±."""
    figure = case.figure
    if figure is None:
        return "–"
    ratio = f" ({ours.figure.ratio(figure):.2f})" if ours and ours.figure else ""
    noise = f" ±{figure.spread:.0%}" if figure.rounds > 1 else ""
    return f"{digits(figure.median)}{ratio}{noise}"


def digits(seconds: float) -> str:
    """Three that say something."""
    places = 3 if seconds < 1 else 2 if seconds < 10 else 1
    return f"{seconds:.{places}f}"


def plain(fault: str) -> str:
    """A fault in a list of Markdown: no folder of anybody's machine, no table of its own."""
    return re.sub(r"(/[\w.+-]+){2,}/?", "…", fault).replace("|", "/").replace("\n", " ")[:300]


def _settings(results: Results) -> Iterator[str]:
    yield "\n### Peers\n"
    yield "| who | guarantee | settings |"
    yield "|---|---|---|"
    programs = {told["program"]: told for told in results.peers.values()}
    for program, told in programs.items():
        who = f"{program} ({told['versions']})" if told["versions"] else program
        yield row_of(who, told["promise"], told["settings"])
