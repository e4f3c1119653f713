"""Values of a defs.yaml for the engine, and errors with the line that they refer to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dagster as dg
from jinja2 import Environment
from jinja2.nativetypes import native_concat

from eo_pipeline.config.settings import Problem

Path = tuple[int | str, ...]

#: ``{{ env.NAME }}`` and ``{{ env("NAME") }}``: a variable that must be set.
_VARIABLE = re.compile(r"""\{\{-?\s*env(?:\.(\w+)|\(\s*['"](\w+)['"]\s*\))\s*-?\}\}""")

#: Jinja's syntax, and line ends that Jinja rewrites.
_SYNTAX = re.compile(r"\{[{%#]|\r")


def resolve_texts(context: dg.ResolutionContext, value: Any) -> Any:
    """Fill in the templates of a nested value, and keep the resulting texts as texts.

    Dagster reads a filled-in template as a Python literal: a password ``1e5`` would arrive as
    100000.0, and ``'x'`` without its quotes. The engine's own validation turns text into numbers
    where a field requires one.
    """
    if isinstance(value, Mapping):
        return {k: resolve_texts(context.at_path(k), item) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve_texts(context.at_path(i), item) for i, item in enumerate(value)]
    if isinstance(value, str) and (plain := _plain(value)):
        return native_concat([plain])
    resolved = context.resolve_value(value, as_type=object)
    is_template = isinstance(value, str) and "{{" in value
    if is_template and isinstance(resolved, str | int | float | tuple):
        return Environment(autoescape=False).from_string(value).render(**context.scope)  # noqa: S701
    return resolved


def _plain(text: str) -> str | None:
    """Return Jinja's result for a text without templates; None for a possible template. Compiling
    each text of each document was a tenth of the time that loading many takes.
    """
    return None if _SYNTAX.search(text) else text.removesuffix("\n")


def unset_variables(path: Path, value: Any) -> Iterator[Problem]:
    """Yield a problem per template without a default whose environment variable is not set.

    Dagster replaces such a template by nothing, and within a text by the word None.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from unset_variables((*path, key), item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from unset_variables((*path, number), item)
    elif isinstance(value, str):
        for name in needed_variables(value):
            if name not in os.environ:
                yield Problem(path, f"the variable {name} is not set in the environment")


class Placeholders:
    """The environment, with placeholders for variables that are not set."""

    def __getattr__(self, name: str) -> str:
        return self(name)

    def __call__(self, name: str, default: str = "not-set") -> str:
        return os.environ.get(name, default)


def needed_variables(text: str) -> list[str]:
    """Return the environment variables that a text needs, in its order."""
    return [match[1] or match[2] for match in _VARIABLE.finditer(text)]


def located_messages(context: dg.ResolutionContext, problems: Sequence[Problem]) -> list[str]:
    """Return a line for each problem, with file and line. A variable that is not set hides the
    problems that follow from it.
    """
    unset = {problem.location for problem in problems if problem.text.startswith("the variable ")}
    shown = [
        problem
        for problem in problems
        if (problem.location in unset and problem.text.startswith("the variable "))
        or not any(problem.location[: len(prefix)] == prefix for prefix in unset)
    ]
    return [line for _, line in sorted({_placed(context, problem) for problem in shown})]


def _placed(context: dg.ResolutionContext, problem: Problem) -> tuple[int, str]:
    """Return the problem's line number and its message."""
    located = Problem((*context.path, *problem.location), problem.text)
    place = place_of(context, problem.location)
    return (place[0], f"  {place[1]} - {located}") if place else (0, f"  {located}")


def place_of(
    context: dg.ResolutionContext, location: Sequence[str | int]
) -> tuple[int, str] | None:
    """Return the line of the document's field at ``location``, and ``file:line``; None if the
    document came from no file.
    """
    tree = context.source_position_tree
    if tree is None:
        return None
    position, _ = tree.lookup_closest_and_path((*context.path, *location), None)
    return position.start.line, f"{position.filename}:{position.start.line}"


@contextmanager
def collecting_problems() -> Iterator[None]:
    """Collect the problems of all documents loaded within, and raise them together at the end."""
    lines: list[str] = []
    token = _COLLECTED.set(lines)
    try:
        yield
    finally:
        _COLLECTED.reset(token)
    if lines:
        raise _invalid(lines)


def report_problems(lines: Sequence[str]) -> None:
    """Collect lines of :func:`located_messages`, or raise them outside of
    :func:`collecting_problems`.

    Raises:
        DagsterInvalidDefinitionError: no collection is active.
    """
    collected = _COLLECTED.get()
    if collected is None:
        raise _invalid(lines)
    collected.extend(lines)


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected", default=None)


def _invalid(lines: Sequence[str]) -> dg.DagsterInvalidDefinitionError:
    return dg.DagsterInvalidDefinitionError("\n".join(["the pipeline is not valid:", *lines]))
