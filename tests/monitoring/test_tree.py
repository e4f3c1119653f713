"""The ledger as a tree: which versions stand on the trunk, and where branches leave it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.monitoring import report
from eo_pipeline.monitoring.report import tree


def ledger(*steps: int | None) -> list[LedgerEntry]:
    """A start, and then a rewind to each number, a run for each None."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    first = LedgerEntry("p", "l", 0, "0", None, Operation.START, {}, started_at=at)
    entries = [first]
    for target in steps:
        operation = Operation.FORWARD if target is None else Operation.REWIND
        child = entries[-1].child(operation, "", {})
        object.__setattr__(child, "target", target)
        entries.append(child)
    return entries


def drawn(entries: list[LedgerEntry]) -> list[tuple[int, int, bool, int | None]]:
    return [(n.entry.version, n.lane, n.live, n.grew_from) for n in tree(entries)]


def test_what_was_never_rewound_is_one_line() -> None:
    assert drawn(ledger(None, None)) == [(0, 0, True, None), (1, 0, True, 0), (2, 0, True, 1)]


def test_a_rewind_grows_from_its_target_and_leaves_a_branch() -> None:
    found = drawn(ledger(None, None, None, 1, None))
    assert found[2:] == [(2, 1, False, 1), (3, 1, False, 2), (4, 0, True, 1), (5, 0, True, 4)]


def test_branches_whose_lines_would_cross_have_lanes_of_their_own() -> None:
    # 4 goes back to 1 and leaves 2, 3; 7 goes back to 1 too, and leaves 4, 5, 6
    found = {v: lane for v, lane, _, _ in drawn(ledger(None, None, None, 1, None, None, 1))}
    assert (found[2], found[3]) == (1, 1)
    assert (found[4], found[5], found[6]) == (2, 2, 2)
    assert (found[1], found[7]) == (0, 0)


def test_a_lane_is_used_again_where_nothing_is_in_the_way() -> None:
    # 3 leaves 2, and 6 goes back to 4: its branch begins to the right of all that
    found = {v: lane for v, lane, _, _ in drawn(ledger(None, None, 1, None, None, 4))}
    assert (found[2], found[5]) == (1, 1)


def test_a_part_of_a_ledger_is_drawn_without_what_came_before() -> None:
    whole = ledger(None, None, None, 1, None)
    assert drawn(whole[3:]) == [(3, 1, False, None), (4, 0, True, None), (5, 0, True, 4)]


def test_no_two_series_have_one_colour_in_light_or_in_dark() -> None:
    page = Path(report.__file__).with_name("page.html.jinja").read_text()
    light, dark = page.split("} }")[0].split("@media (prefers")
    for theme in (light, dark):
        colours = re.findall(r"--(\w+): (#\w+)", theme)
        shown = [
            colour
            for name, colour in colours
            if name not in ("page", "card", "ink", "soft", "line")
        ]
        assert len(shown) == len(set(shown)) == 14
