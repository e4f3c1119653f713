"""From what a defs.yaml says to what the engine takes, and errors back to the line they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from jinja2 import Environment
from pydantic import BaseModel, ValidationError

from eo_pipeline.errors import ConfigError

Location = Sequence[str | int]


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """The field names as JSON schema, so that editors complete them and `dg check yaml` finds a
    misspelt one. Types are left to the engine: any value may also be a ``{{ template }}``.
    """
    return {"properties": {name: {} for name in model.model_fields}, "additionalProperties": False}


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
        raise _located(context, error, prefix=()) from None
    except ConfigError as error:
        # the registry of sinks validates by itself, below the field `sink`
        if not isinstance(error.__cause__, ValidationError):
            raise dg.DagsterInvalidDefinitionError(str(error)) from error
        raise _located(context, error.__cause__, prefix=("sink",)) from None


def _located(
    context: dg.ResolutionContext, error: ValidationError, prefix: Location
) -> dg.DagsterInvalidDefinitionError:
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [_line(context, [*prefix, *problem["loc"]], problem["msg"]) for problem in problems]
    return dg.DagsterInvalidDefinitionError("the pipeline is not valid:\n" + "\n".join(lines))


def _line(context: dg.ResolutionContext, location: Location, message: str) -> str:
    path = [*context.path, *location]
    field = ".".join(str(part) for part in path)
    tree = context.source_position_tree
    if tree is None:
        return f"  {field}: {message}"
    position, _ = tree.lookup_closest_and_path(path, None)
    return f"  {position.filename}:{position.start.line} - {field}: {message}"
