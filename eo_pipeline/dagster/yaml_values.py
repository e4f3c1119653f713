"""From what a defs.yaml says to what the engine takes, and errors back to the line they are on."""

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

#: ``{{ env.NAME }}`` and ``{{ env("NAME") }}``: a variable that must be there.
_VARIABLE = re.compile(r"""\{\{-?\s*env(?:\.(\w+)|\(\s*['"](\w+)['"]\s*\))\s*-?\}\}""")

#: What Jinja takes for more than text, and line ends that it rewrites.
_SYNTAX = re.compile(r"\{[{%#]|\r")


def resolve_texts(context: dg.ResolutionContext, value: Any) -> Any:
    """Fill in the templates of a nested value, leaving what they yield as it was written.

    Dagster reads a filled-in template as a Python literal: a password ``1e5`` would arrive as
    100000.0, and ``'x'`` without its quotes. The engine's own validation turns text into numbers
    where a field wants one, so texts stay texts here.
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
    """What Jinja makes of a text that is no template; None of one that may be. Compiling each text
    of each document was a tenth of the time that loading many takes.
    """
    return None if _SYNTAX.search(text) else text.removesuffix("\n")


def unset_variables(path: Path, value: Any) -> Iterator[Problem]:
    """Templates that are to come from the environment, without a default, and are not there.

    Dagster takes them for nothing, and in the middle of a text for the word None.
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
    """The environment, with something in the place of what is not there."""

    def __getattr__(self, name: str) -> str:
        return self(name)

    def __call__(self, name: str, default: str = "not-set") -> str:
        return os.environ.get(name, default)


def needed_variables(text: str) -> list[str]:
    """The variables of the environment that a text needs, in its order."""
    return [found[1] or found[2] for found in _VARIABLE.finditer(text)]


def told_with_places(context: dg.ResolutionContext, found: Sequence[Problem]) -> list[str]:
    """A line for each, with file and line. Where a variable is not set, nothing that follows from
    that is told.
    """
    unset = {each.location for each in found if each.text.startswith("the variable ")}
    told = [
        each
        for each in found
        if (each.location in unset and each.text.startswith("the variable "))
        or not any(each.location[: len(at)] == at for at in unset)
    ]
    return [line for _, line in sorted({_placed(context, each) for each in told})]


def _placed(context: dg.ResolutionContext, problem: Problem) -> tuple[int, str]:
    """In which line of its file it is, and the whole line of the message."""
    path = (*context.path, *problem.location)
    located = Problem(path, problem.text)
    tree = context.source_position_tree
    if tree is None:
        return 0, f"  {located}"
    position, _ = tree.lookup_closest_and_path(path, None)
    return position.start.line, f"  {position.filename}:{position.start.line} - {located}"


@contextmanager
def all_told_at_once() -> Iterator[None]:
    """Whatever is wrong in documents that are loaded within is told at the end, all of it."""
    told: list[str] = []
    token = _GATHERED.set(told)
    try:
        yield
    finally:
        _GATHERED.reset(token)
    if told:
        raise _invalid(told)


def tell(lines: Sequence[str]) -> None:
    """Lines of :func:`told_with_places`: kept for the end, or raised where nobody gathers.

    Raises:
        DagsterInvalidDefinitionError: nobody gathers.
    """
    gathered = _GATHERED.get()
    if gathered is None:
        raise _invalid(lines)
    gathered.extend(lines)


_GATHERED: ContextVar[list[str] | None] = ContextVar("gathered", default=None)


def _invalid(lines: Sequence[str]) -> dg.DagsterInvalidDefinitionError:
    return dg.DagsterInvalidDefinitionError("\n".join(["the pipeline is not valid:", *lines]))
