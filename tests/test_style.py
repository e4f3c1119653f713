"""The house rules, as a test: sizes, exported names, error tree."""

from __future__ import annotations

import ast
import inspect
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eo_pipeline
import eo_pipeline.audit
import eo_pipeline.spark
from eo_pipeline import errors

ROOT = Path(__file__).parents[1]
FOLDERS = ("eo_pipeline", "dagster_defs", "demo")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 8


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def functions() -> Iterator[tuple[str, int]]:
    """Name and body length (without the docstring) of every function."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield f"{path.relative_to(ROOT)}:{node.name}", lines


def test_no_file_is_longer_than_a_person_reads_in_one_go() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files()}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    lengths = dict(functions())
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES_MAX} == {}
    assert statistics.median(lengths.values()) <= FUNCTION_LINES_MEDIAN_MAX


def broad_excepts() -> Iterator[str]:
    """Every function outside the sinks that catches whatever comes."""
    for path in files():
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or "sinks" in path.parts:
                continue
            caught = [
                each.type for each in ast.walk(function) if isinstance(each, ast.ExceptHandler)
            ]
            names = [ast.unparse(kind) if kind else "" for kind in caught]
            if {"", "Exception", "BaseException"} & {*names}:
                yield f"{path.relative_to(ROOT)}:{function.name}"


def test_whatever_comes_is_caught_in_named_places_only() -> None:
    """At the package's edge, and of what only watches; where the transform's errors get a meaning;
    and where a job's, or a client's, are handed to the thread that waits for it.
    """
    assert list(broad_excepts()) == [
        "eo_pipeline/batch/stage.py:_calling_the_users_code",
        "eo_pipeline/boundary.py:callers",
        "eo_pipeline/boundary.py:callers_block",
        "eo_pipeline/boundary.py:boundary",
        "eo_pipeline/boundary.py:harmless",
        "eo_pipeline/boundary.py:called",
        "eo_pipeline/spark/interrupts.py:_settle",
        "eo_pipeline/storage/hdfs.py:_call",
        "eo_pipeline/storage/hdfs.py:ask",
    ]


@pytest.mark.parametrize("package", [eo_pipeline, eo_pipeline.audit, eo_pipeline.spark])
def test_exported_names_are_imported_from_their_modules_on_demand(package: Any) -> None:
    """Type checkers read the stub alone."""
    stub = Path(package.__file__).with_suffix(".pyi").read_text()
    lines = re.findall(r"^from (eo_pipeline[.\w]*) import (\w+) as \2$", stub, re.MULTILINE)
    assert len(lines) == len(stub.splitlines())
    assert sorted(name for _, name in lines) == sorted(set(package.__all__))
    for module, name in lines:
        assert getattr(package, name) is getattr(sys.modules[module], name)


def test_every_error_is_drawn_in_the_tree_exported_and_under_one_base() -> None:
    raised = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert all(issubclass(kind, errors.EoPipelineError) for kind in raised.values())
    assert all(name.endswith("Error") for name in raised)
    assert errors.__doc__ is not None
    assert [name for name in raised if name not in errors.__doc__] == []
    assert set(raised) <= {*vars(eo_pipeline)["__all__"]}
