"""The ``defs.yaml`` of a fork: the document of the pipeline it came from, with another name and
sink.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr

from eo_pipeline.dagster.requests import ForkRequest
from eo_pipeline.dagster.yaml_values import needed_variables
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.registry import sink_class, sink_names

COMPONENT = "eo_pipeline.dagster.KafkaPipelineComponent"

#: ``${NAME}`` and ``${NAME:-default}``, as a request has them.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

#: Where in a document something stands.
_Path = tuple[str, ...]

#: Not in the names of variables: part and field where nothing else has such settings.
_UNNAMED = {("source", "client"), ("source", "spark_options"), ("spark", "config")}

#: Spark's own settings, of which nobody knows which are.
_MAY_BE_SECRET = ("spark", "config")

#: How long the path of a part's own field is.
_AT_THE_TOP = 2

#: What only this pipeline can have: two of one name would be two of one thing.
_NOT_TAKEN_OVER = ("pool", "group", "translation")


def fork_document(document: Mapping[str, Any], pipeline: Pipeline, request: ForkRequest) -> str:
    """The fork's document, ready to be put beside this pipeline's.

    Args:
        document: the attributes of this pipeline's, templates and all.
        pipeline: what became of them; it tells which of them are secrets.
    """
    given = _rewritten(dict(request.sink), _template)
    own = {} if "type" in given else dict(document["sink"])
    attributes = {k: v for k, v in document.items() if k not in _NOT_TAKEN_OVER}
    attributes |= {"name": request.name, "sink": own | given}
    hidden = _without_secrets(attributes, pipeline, request.name)
    whole: dict[str, Any] = {"type": COMPONENT, "attributes": hidden}
    if names := sorted(_needed(hidden)):
        whole["requirements"] = {"env": names}
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=100)


def _without_secrets(attributes: dict[str, Any], pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Where a secret stands in clear, a variable of the environment takes its place."""

    def hide(path: _Path, text: str) -> str:
        named = path[2:] if path[:2] in _UNNAMED else path[1:] if len(path) == _AT_THE_TOP else path
        variable = re.sub(r"\W", "_", "_".join((name, *named))).upper()
        return text if "{{" in text else f"{{{{ env.{variable} }}}}"

    types = {part: each.annotation for part, each in Pipeline.model_fields.items()}
    types |= {"sink": _sink_class(attributes["sink"], pipeline)}
    hidden = {
        part: _hidden(value, types[part], (part,), hide)
        for part, value in attributes.items()
        if part in types
    }
    return attributes | hidden


def _sink_class(sink: Mapping[str, Any], pipeline: Pipeline) -> type[BaseModel]:
    """Of the fork's sink; of this pipeline's where a template says which it is."""
    kind = str(sink.get("type", ""))
    return sink_class(kind) if kind in sink_names() else type(pipeline.sink)


def _hidden(value: Any, kind: Any, path: _Path, hide: Callable[[_Path, str], str]) -> Any:
    """``value``, at ``path`` of a document, without what the type ``kind`` calls secrets."""
    if path == _MAY_BE_SECRET:
        kind = Mapping[str, SecretStr]
    inner = get_args(kind)
    if kind is SecretStr and value is not None:
        return hide(path, str(value))
    if get_origin(kind) in (Union, UnionType, Annotated):
        made = (_hidden(value, each, path, hide) for each in inner)
        return next((each for each in made if each != value), value)
    if not isinstance(value, Mapping):
        return value
    if get_origin(kind) is not None:
        of_each = inner[-1] if inner else None
        return {key: _hidden(each, of_each, (*path, key), hide) for key, each in value.items()}
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return value
    types = {key: each.annotation for key, each in kind.model_fields.items()}
    return {key: _hidden(each, types.get(key), (*path, key), hide) for key, each in value.items()}


def _template(text: str) -> str:
    def written(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        return (
            f"{{{{ env.{name} }}}}" if default is None else f"{{{{ env('{name}', '{default}') }}}}"
        )

    return _VARIABLE.sub(written, text)


def _rewritten(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _rewritten(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rewritten(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _needed(value: Any) -> set[str]:
    names: set[str] = set()

    def look(text: str) -> str:
        names.update(needed_variables(text))
        return text

    _rewritten(value, look)
    return names
