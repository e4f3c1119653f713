"""Pipelines as documents: YAML, environment variables, and errors that name their field."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import expandvars
import yaml

from eo_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment

#: The Dagster component of a pipeline; a class that extends it is told by its attributes.
COMPONENT = "KafkaPipelineComponent"
_OF_A_PIPELINE = frozenset({"name", "source", "sink"})


def read_document(path: Path | str) -> Any:
    """The values of one YAML document, with the environment filled in.

    ``${NAME}`` in a text is the environment variable, ``${NAME:-default}`` with a default.

    Raises:
        ConfigError: no such file, not YAML, or a variable is not set.
    """
    try:
        return with_whole_paths(expanded(yaml.safe_load(Path(path).read_text())), Path(path).parent)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_not_yaml(error)}") from error
    except (OSError, UnicodeDecodeError, expandvars.ExpandvarsException) as error:
        raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True)
class Document:
    """One pipeline of a file, as it was written: ``raw`` still has its templates.

    A plain document has the pipeline's fields at its top and ``${NAME}`` for the environment. A
    Dagster component document has them below ``attributes``, beside those that only Dagster reads,
    and ``{{ env.NAME }}`` or ``{{ env('NAME', 'default') }}``.
    """

    path: Path
    raw: Mapping[str, Any]

    @property
    def is_component(self) -> bool:
        """Whether it is written for Dagster."""
        return "attributes" in self.raw

    @property
    def fields(self) -> Mapping[str, Any]:
        """The pipeline's fields, as written; a component's others too."""
        attributes = self.raw.get("attributes", self.raw)
        return attributes if isinstance(attributes, Mapping) else {}

    @property
    def is_a_pipeline(self) -> bool:
        """False for a Dagster component of another kind, and for other YAML."""
        if not self.is_component:
            return not self.fields.keys().isdisjoint(_OF_A_PIPELINE)
        kind = str(self.raw.get("type", "")).rpartition(".")[2]
        return kind == COMPONENT or self.fields.keys() >= _OF_A_PIPELINE

    @property
    def name(self) -> str:
        """The pipeline's name, the environment filled in; the file's name if it has none.

        Raises:
            ConfigError: its template cannot be filled in.
        """
        return str(self.filled(self.fields.get("name", self.path.stem)))

    def config(self, known: Collection[str]) -> dict[str, Any]:
        """What ``Pipeline.from_config`` takes.

        Args:
            known: the fields of a pipeline; a component's other attributes are left out.

        Raises:
            ConfigError: a variable is not set, or a template is malformed.
        """
        chosen = dict(self.fields)
        if self.is_component:
            chosen = {k: v for k, v in self.fields.items() if k in known and v is not None}
        return dict(with_whole_paths(self.filled(chosen), self.path.parent))

    def filled(self, value: Any) -> Any:
        """``value``, written as in this document, with the environment filled in.

        Raises:
            ConfigError: a variable is not set, or a template is malformed.
        """
        if self.is_component:
            return self._rendered(value)
        try:
            return expanded(value)
        except expandvars.ExpandvarsException as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def _rendered(self, value: Any) -> Any:
        from jinja2 import TemplateError  # here, because other documents do without

        try:
            return rendered(value)
        except TemplateError as error:
            raise ConfigError(f"{self.path}: {error.message}") from error

    def changed(self, **fields: Any) -> Document:
        """The document with other ``fields``, templates and all."""
        changed = {**self.fields, **fields}
        raw = {**self.raw, "attributes": changed} if self.is_component else changed
        return Document(self.path, raw)

    def text(self) -> str:
        """As YAML, for wherever it is written to; comments are gone."""
        found = with_whole_paths(self.fields, self.path.parent.absolute())
        return yaml.safe_dump(
            dict(self.changed(**found).raw),
            sort_keys=False,
            allow_unicode=True,
            width=100,
            default_flow_style=None,
        )


def with_whole_paths(fields: Any, folder: Path) -> Any:
    """A pipeline's ``fields``, of which those of the source that name a file (``{file: PATH}``)
    name it from here, and not from the document's ``folder``. A path that begins with a template is
    left as it is.
    """
    source = fields.get("source") if isinstance(fields, Mapping) else None
    if not isinstance(source, Mapping):
        return fields
    found = {
        name: {"file": str(folder / value["file"])}
        for name, value in source.items()
        if isinstance(value, Mapping)
        and value.keys() == {"file"}
        and not str(value["file"]).startswith(("$", "{{"))
    }
    return {**fields, "source": {**source, **found}} if found else fields


def documents_in(path: Path) -> Iterator[Document]:
    """Every pipeline document of one file, several separated by ``---``.

    Raises:
        ConfigError: no such file, or not YAML.
    """
    try:
        found = list(yaml.safe_load_all(path.read_text()))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_not_yaml(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    documents = (Document(path, raw) for raw in found if isinstance(raw, Mapping))
    return (document for document in documents if document.is_a_pipeline)


def _not_yaml(error: yaml.YAMLError) -> str:
    """What is wrong, and where; without the line itself, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"not YAML{where}: {getattr(error, 'problem', None) or 'malformed'}"


def load_transform(value: Any) -> Any:
    """``package.module:function`` as the function; anything else as it is.

    Raises:
        ValueError: the module or the function does not exist (pydantic names the field).
    """
    if not isinstance(value, str):
        return value
    module_name, colon, attribute = value.partition(":")
    if not colon:
        raise ValueError(f"{value!r} is not of the form package.module:function")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{value!r} cannot be imported: {error}") from error


def expanded(value: Any) -> Any:
    """Environment variables put into every text of a document; an unset one is an error."""
    if isinstance(value, str):
        return expandvars.expand(value, nounset=True)
    if isinstance(value, Mapping):
        return {key: expanded(item) for key, item in value.items()}
    return [expanded(item) for item in value] if isinstance(value, list) else value


def rendered(value: Any) -> Any:
    """The templates of a component document filled in; an unset variable is an error.

    A template that yields text stays text, whatever it looks like: a password ``1e5`` must not
    become a number. The pipeline's own validation turns text into numbers where a field wants one.
    """
    if isinstance(value, Mapping):
        return {key: rendered(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rendered(item) for item in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    from jinja2 import Environment, StrictUndefined
    from jinja2.nativetypes import NativeEnvironment

    native = _filled_in(NativeEnvironment(undefined=StrictUndefined), value)
    if isinstance(native, str | int | float | tuple):
        # no web page: nothing to escape
        return _filled_in(Environment(undefined=StrictUndefined, autoescape=False), value)  # noqa: S701
    return native


def _filled_in(environment: Environment, text: str) -> Any:
    return environment.from_string(text).render(env=_EnvironmentVariables())


class _EnvironmentVariables:
    """``env`` in a template."""

    def __call__(self, name: str, default: str | None = None) -> str:
        value = os.environ.get(name, default)
        if value is None:
            raise ConfigError(
                f"the environment variable {name} is not set, and env({name!r}) has no default"
            )
        return value

    def __getattr__(self, name: str) -> str:
        if name.startswith(("jinja", "__")):  # looked for by jinja2 itself
            raise AttributeError(name)
        return self(name)
