"""The ``defs.yaml`` of a fork: the document of the pipeline it came from, with another name and
sink.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from pydantic import SecretStr

from eo_pipeline.dagster.requests import ForkRequest
from eo_pipeline.dagster.yaml_values import needed_variables
from eo_pipeline.pipeline import Pipeline

COMPONENT = "eo_pipeline.dagster.KafkaPipelineComponent"

#: ``${NAME}`` and ``${NAME:-default}``, as a request has them.
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")

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

    def hide(field: str) -> Callable[[str], str]:
        variable = re.sub(r"\W", "_", f"{name}_{field}").upper()
        return lambda text: text if "{{" in text else f"{{{{ env.{variable} }}}}"

    sink = dict(attributes["sink"])
    for field, value in dict(pipeline.sink).items():
        if isinstance(value, SecretStr) and field in sink:
            sink[field] = hide(field)(str(sink[field]))
    hidden = attributes | {"sink": sink}
    for part, inner in (("source", "client"), ("source", "spark_options"), ("spark", "config")):
        if inner in (attributes.get(part) or {}):
            secret = attributes[part][inner]
            values = {key: hide(key)(str(value)) for key, value in secret.items()}
            hidden[part] = hidden[part] | {inner: values}
    return hidden


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
