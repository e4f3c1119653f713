"""docs/troubleshooting.md, for those on call: whatever class an error names is on the page."""

from __future__ import annotations

import inspect
from pathlib import Path

from eo_pipeline import errors

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def test_every_class_of_error_has_its_place_on_the_page() -> None:
    classes = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.EoPipelineError)
    }
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    on_the_page = [line.removeprefix("### ") for line in headings]
    assert sorted(on_the_page) == sorted(classes)


def test_the_page_says_of_each_that_needs_nobody_that_it_does_not() -> None:
    sections = PAGE.read_text().split("\n### ")[1:]
    said = {
        text.partition("\n")[0] for text in sections if "etryable" in text.partition("\n## ")[0]
    }
    assert {name for name in said if not getattr(errors, name).retryable} <= {"EoPipelineError"}
    passing = {
        n for n, k in vars(errors).items() if inspect.isclass(k) and getattr(k, "retryable", False)
    }
    assert passing <= said
