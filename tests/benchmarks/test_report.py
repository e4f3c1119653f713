"""What the benchmark's page says is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suite.figures import Figure
from benchmarks.suite.report import SIZES, cases, lines, plain, publish, ratios, with_part
from benchmarks.suite.results import Measurement, Results

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def run(peer: str, store: str, *seconds: float | None, mode: str = "cold") -> list[Measurement]:
    return [
        Measurement("cold", peer, store, mode, n, 1_000, each, "" if each else "not exact")
        for n, each in enumerate(seconds)
    ]


def results(*runs: list[Measurement]) -> Results:
    return Results(
        scenarios={"cold": {"title": "A whole topic", "day": "2026-01-02", "commit": "abc"}},
        measurements=[each for found in runs for each in found],
    )


def table(found: Results) -> list[list[str]]:
    """The figures' table, its heading first."""
    rows = [line for line in lines(found, "full") if line.startswith("|") and "---" not in line]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in rows]
    return [each for each in cells if len(each) == len(cells[0])]


def cell(found: Results, program: str, store: str, mode: str = "cold") -> str:
    heading, *rows = table(found)
    [figures] = [each for each in rows if each[1:3] == [store, mode]]
    return figures[heading.index(program)]


def test_the_median_of_the_rounds_and_their_spread() -> None:
    figure = Figure.of([4.0, 2.0, 3.0, 2.5])
    assert (figure.median, figure.least, figure.most, figure.rounds) == (2.75, 2.0, 4.0, 4)
    assert figure.spread == pytest.approx(2.0 / 2.75)
    assert figure.ratio(Figure.of([5.5])) == 0.5


def test_a_peer_is_compared_with_ours_of_the_same_store_and_mode() -> None:
    found = results(
        run("eo-pipeline → Delta", "Delta", 2.0, 2.0, 9.0),
        run("eo-pipeline → Delta", "Delta", 1.0, mode="warm"),
        run("eo-pipeline → PostgreSQL", "PostgreSQL", 7.0),
        run("Flink → Parquet", "Parquet", 4.0),
        run("loader → PostgreSQL", "PostgreSQL", 3.5),
    )
    assert cell(found, "Flink", "Delta") == "4.00 (0.50)"
    assert cell(found, "loader", "PostgreSQL") == "3.50 (2.00)"
    assert cell(found, "Flink", "Delta", "warm") == ""
    assert table(found)[0] == ["", "into", "mode", "eo-pipeline", "Flink", "loader"]


def test_the_ratios_that_are_printed_are_those_of_the_page() -> None:
    found = results(
        run("eo-pipeline → Delta", "Delta", 2.0, 3.0, 4.0), run("Flink → Parquet", "Parquet", 4.0)
    )
    [line] = ratios(found, ["cold"])
    assert line.split()[0] == "0.75"
    assert cell(found, "Flink", "Delta") == "4.00 (0.75)"


def test_a_round_that_failed_counts_for_nothing_and_is_told() -> None:
    found = results(
        run("eo-pipeline → Delta", "Delta", 2.0), run("Flink → Parquet", "Parquet", 4.0, None, 6.0)
    )
    assert cell(found, "Flink", "Delta") == "5.00 (0.40) ±40%"
    assert "- Flink → Parquet (cold): not exact" in list(lines(found, "full"))


def test_a_peer_without_any_figure_is_on_the_page_with_the_reason() -> None:
    found = results(run("Flink → Parquet", "Parquet", None))
    found.missing["dlt → PostgreSQL"] = "no such package"
    assert cell(found, "Flink", "Parquet") == "–"
    assert "- dlt → PostgreSQL: no such package" in list(lines(found, "full"))


def test_ours_comes_first_among_its_like() -> None:
    found = results(
        run("Flink → Parquet", "Parquet", 4.0),
        run("loader → PostgreSQL", "PostgreSQL", 4.0),
        run("eo-pipeline → Delta", "Delta", 4.0),
    )
    assert [case.peer for case in cases(found, "cold")] == [
        "eo-pipeline → Delta",
        "Flink → Parquet",
        "loader → PostgreSQL",
    ]


def test_a_scenario_measured_anew_takes_the_place_of_its_old_figures_alone() -> None:
    found = results(run("eo-pipeline → Delta", "Delta", 2.0))
    found.begin("warm", {"title": "warm"})
    kept = found.measurements
    found.begin("cold", {"title": "A whole topic, again"})
    assert (kept, found.measurements) == (results(kept).measurements, [])
    assert [told["title"] for told in found.scenarios.values()] == ["A whole topic, again", "warm"]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = results(run("Flink → Parquet", "Parquet", 4.0, None))
    found.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == found


def test_only_what_is_between_the_markers_is_written_anew() -> None:
    text = "a\n<!-- figures: full -->\nold\n<!-- end of figures: full -->\nb\n"
    again = with_part(text, "full", "new")
    assert "old" not in again
    assert again.startswith("a\n")
    assert again.endswith("\nb\n")
    assert with_part(again, "full", "new") == again


def test_no_folder_of_a_machine_gets_onto_the_page() -> None:
    assert plain("see /home/somebody/.eo/log: a|b") == "see …: a/b"


def test_every_figure_of_the_page_comes_from_the_results_beside_it(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for file in PAGE.parent.glob("benchmarks-*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    for size in SIZES:
        page.write_text(with_part(page.read_text(), size, "emptied"))
    publish(page)
    assert page.read_text() == PAGE.read_text()
