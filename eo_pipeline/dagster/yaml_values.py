"""From what a defs.yaml says to what the engine takes, and errors back to the line they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from jinja2 import Environment
from pydantic import ValidationError

from eo_pipeline.settings import Problem, problems


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
    resolved = context.resolve_value(value, as_type=object)
    is_template = isinstance(value, str) and "{{" in value
    if is_template and isinstance(resolved, str | int | float | tuple):
        return Environment(autoescape=False).from_string(value).render(**context.scope)  # noqa: S701
    return resolved


@contextmanager
def errors_at_their_fields(context: dg.ResolutionContext) -> Iterator[None]:
    """Turn what the engine finds wrong with a configuration into file, line and field."""
    try:
        yield
    except ValidationError as error:
        lines = [_line(context, each) for each in problems(error)]
        text = "\n".join(["the pipeline is not valid:", *lines])
        raise dg.DagsterInvalidDefinitionError(text) from None


def _line(context: dg.ResolutionContext, problem: Problem) -> str:
    path = (*context.path, *problem.location)
    located = Problem(path, problem.text)
    tree = context.source_position_tree
    if tree is None:
        return f"  {located}"
    position, _ = tree.lookup_closest_and_path(path, None)
    return f"  {position.filename}:{position.start.line} - {located}"
