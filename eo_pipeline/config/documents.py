"""Pipeline documents: YAML, paths, environment variables and templates.

Errors name the field, and its line if known.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import expandvars
import yaml

from eo_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment

#: The Dagster component of a pipeline; a subclass is recognized by its attributes.
COMPONENT = "KafkaPipelineComponent"
#: Path of a field, and the error.
Fault = tuple[tuple[Any, ...], str]

_PIPELINE_FIELDS = frozenset({"name", "source", "sink"})


@dataclass(frozen=True)
class Document:
    """One pipeline of a file, as written: ``raw`` has unexpanded templates.

    A plain document has the pipeline's fields at the top level, and ``${NAME}`` for environment
    variables. A Dagster component document has them below ``attributes``, among Dagster's own, and
    ``{{ env.NAME }}`` or ``{{ env('NAME', 'default') }}``.
    """

    path: Path
    raw: Mapping[str, Any]
    #: the line of each value, by its path
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    #: duplicate keys
    twice: Sequence[Fault] = ()

    @property
    def is_component(self) -> bool:
        """Return whether it is a Dagster component."""
        return "attributes" in self.raw

    @property
    def fields(self) -> Mapping[str, Any]:
        """The pipeline's fields as written, with a component's other attributes."""
        attributes = self.raw.get("attributes", self.raw)
        return attributes if isinstance(attributes, Mapping) else {}

    @property
    def is_a_pipeline(self) -> bool:
        """Return False for a Dagster component of another type, and for other YAML."""
        if not self.is_component:
            return not self.fields.keys().isdisjoint(_PIPELINE_FIELDS)
        kind = str(self.raw.get("type", "")).rpartition(".")[2]
        return kind == COMPONENT or self.fields.keys() >= _PIPELINE_FIELDS

    @property
    def name(self) -> str:
        """The pipeline's name, expanded; by default the file's name.

        Raises:
            ConfigError: its template cannot be expanded.
        """
        return str(self.filled(self.fields.get("name", self.path.stem)))

    def config(self, names: Collection[str]) -> dict[str, Any]:
        """Return the arguments of ``Pipeline.from_config``.

        Args:
            names: the fields of a pipeline; a component's other attributes are omitted.

        Raises:
            ConfigError: a variable is not set, or a template is malformed.
        """
        return dict(with_absolute_paths(self._values(names), self.path.parent))

    def faults(self, names: Collection[str]) -> list[Fault]:
        """Return errors that validation of the values cannot find; see :meth:`config`."""
        return [*self.twice, *left_behind(self._values(names), self.path.parent)]

    def line_of(self, field: Sequence[int | str]) -> int | None:
        """Return the line of ``field``, or of the nearest parent that exists."""
        prefix = ("attributes",) if self.is_component else ()
        path = (*prefix, *map(str, field))
        lines = (self.lines.get(path[:length]) for length in range(len(path), len(prefix), -1))
        return next(filter(None, lines), None)

    def _values(self, names: Collection[str]) -> Mapping[str, Any]:
        fields = self.fields
        if self.is_component:
            fields = {
                name: value
                for name, value in self.fields.items()
                if name in names and value is not None
            }
        filled = self.filled(fields)
        return filled if isinstance(filled, Mapping) else {}

    def filled(self, value: Any) -> Any:
        """Expand environment variables in ``value``, in this document's syntax.

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
        from jinja2 import TemplateError  # imported here: other documents do not need it

        try:
            return rendered(value)
        except TemplateError as error:
            raise ConfigError(f"{self.path}: {error.message}") from error

    def changed(self, **fields: Any) -> Document:
        """Return the document with changed ``fields``, which may contain templates."""
        attributes = {**self.fields, **fields}
        raw = {**self.raw, "attributes": attributes} if self.is_component else attributes
        return replace(self, raw=raw)

    def text(self) -> str:
        """Return it as YAML with absolute paths, for any folder; without comments."""
        fields = with_absolute_paths(self.fields, self.path.parent.absolute())
        return yaml.safe_dump(
            dict(self.changed(**fields).raw),
            sort_keys=False,
            allow_unicode=True,
            width=100,
            default_flow_style=None,
        )


#: Fields of a sink with a local path, by its type.
_SINK_PATHS: Mapping[str, tuple[str, ...]] = {
    "console": ("ledger",),
    "iceberg": ("location", "warehouse"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key"),
}

#: Fields with a table's path, and their defaults.
_TABLES = {"path": None, "location": None, "ledger": ".eo/console", "warehouse": ".eo/warehouse"}

#: A table's name in a catalog of three levels; it could be a folder's name, too.
_CATALOG_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*){2}")

#: Start of a template or URL.
_TEMPLATE_OR_URL = re.compile(r"\$|\{|[A-Za-z][A-Za-z0-9+.-]*:")


def with_absolute_paths(fields: Any, folder: Path) -> Any:
    """Return a pipeline's ``fields`` with absolute paths, resolved from the document's ``folder``.
    A path that begins with a template is unchanged.
    """
    if not isinstance(fields, Mapping):
        return fields
    result = dict(fields)
    for (section, *names), path in _paths(fields):
        absolute = os.path.normpath(folder.absolute() / path)
        result[section] = _replaced(result.get(section), names, absolute)
    return result


def rebased_paths(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``fields`` with paths relative to the working directory rebased to ``folder``, that of
    a document.
    """
    result = dict(fields)
    for (section, *names), path in _paths(fields):
        if not names or names[0] in result[section]:
            result[section] = _replaced(result[section], names, os.path.relpath(path, folder))
    return result


def left_behind(fields: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """Find tables that exist only if a path of ``fields`` is resolved from the working directory,
    as in earlier releases, and not from the document's ``folder``.
    """
    sink = fields.get("sink")
    name = str(sink.get("table", "")) if isinstance(sink, Mapping) else ""
    for at, path in _paths(fields):
        if at[0] != "sink" or at[-1] not in _TABLES:
            continue
        table = Path(*name.split(".")) if at[-1] == "warehouse" else Path()
        former, current = (
            Path(os.path.normpath(p / path)) for p in (Path.cwd(), folder.absolute())
        )
        is_here, is_there = _has_content(former / table), _has_content(current / table)
        if former != current and is_here and not is_there:
            yield (
                at,
                f"{path} is relative to the document, and there is no table at {current / table}; "
                f"one is at {former / table}: earlier releases resolved paths from the working "
                f"folder. Write {os.path.relpath(former, folder)}, or move the table",
            )


def _has_content(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _paths(fields: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """List the relative paths in ``fields``, with their field names."""

    def paths_at(*at: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
        value: Any = fields
        for name in at:
            value = value[name] if isinstance(value, list) else value.get(name)
            if not isinstance(value, Mapping | list | str):
                return
        if isinstance(value, list):
            for number in range(len(value)):
                yield from paths_at(*at, number)
        elif isinstance(value, Mapping):
            for name in value:
                if str(name) == "file" or str(name).endswith(".location"):
                    yield from paths_at(*at, name)
        elif _is_relative(at[-1], value):
            yield at, value

    sections = {name: value for name, value in fields.items() if isinstance(value, Mapping)}
    for name, value in sections.get("source", {}).items():
        if isinstance(value, Mapping) and (value.keys() == {"file"} or name == "client"):
            yield from paths_at("source", name)
    tables = fields.get("tables")
    listed = enumerate(tables if isinstance(tables, list) else ())
    places: list[tuple[tuple[str | int, ...], Any]] = [(("tables", at), t) for at, t in listed]
    for place, table in [*places, (("tables",), tables)]:
        for name, value in table.items() if isinstance(table, Mapping) else ():
            if isinstance(value, Mapping) and value.keys() == {"file"}:
                yield from paths_at(*place, name)
    sink = sections.get("sink", {})
    for name in _SINK_PATHS.get(str(sink.get("type")), ("path",)) if sink else ():
        yield from paths_at("sink", name)
        if (default := _TABLES.get(name)) and sink.keys().isdisjoint((name, "catalog")):
            yield ("sink", name), default
    yield from paths_at("sink", "client") if sink else ()
    yield from paths_at("staging")
    yield from paths_at("spark", "py_files") if "spark" in sections else ()


def _is_relative(name: Any, path: str) -> bool:
    if name == "path" and _CATALOG_NAME.fullmatch(path):
        return False
    if name == "ssl.ca.location" and path == "probe":  # librdkafka's default locations
        return False
    return bool(path.strip()) and not Path(path).is_absolute() and not _TEMPLATE_OR_URL.match(path)


def _replaced(value: Any, names: Sequence[Any], path: str) -> Any:
    """Return ``value`` with ``path`` at the field ``names``."""
    if not names:
        return path
    name, *rest = names
    if isinstance(value, list):
        return [_replaced(v, rest, path) if n == name else v for n, v in enumerate(value)]
    return {**value, name: _replaced(value.get(name), rest, path)}


def one_document(path: Path | str) -> Document:
    """Read the only pipeline document of a file.

    Raises:
        ConfigError: no such file, not YAML, or not exactly one document.
    """
    documents = list(_documents(Path(path)))
    if len(documents) != 1:
        raise ConfigError(f"{path}: it holds {len(documents)} pipelines, and one is needed")
    return documents[0]


def documents_in(path: Path) -> Iterator[Document]:
    """Read all pipeline documents of a file, separated by ``---``.

    Raises:
        ConfigError: no such file, or not YAML.
    """
    return (document for document in _documents(path) if document.is_a_pipeline)


def _documents(path: Path) -> list[Document]:
    try:
        loader = yaml.SafeLoader(path.read_text())
        documents = []
        while loader.check_node():
            node = loader.get_node()
            lines: dict[tuple[str, ...], int] = {}
            duplicates = list(_index_lines(node, (), lines, set()))
            raw = loader.construct_document(node)
            if isinstance(raw, Mapping):
                documents.append(Document(path, raw, lines, duplicates))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_not_yaml(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return documents


def _index_lines(
    node: yaml.Node | None,
    parent: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    visited: set[yaml.Node],
) -> Iterator[Fault]:
    """Enter the lines of the values of ``node`` in ``lines``; yield duplicate keys."""
    if node is None or node in visited:  # an alias
        return
    visited.add(node)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _index_lines(item, (*parent, str(number)), lines, visited)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
            continue
        path, line = (*parent, key.value), key.start_mark.line + 1
        if first := lines.get(path):
            fields = path[1:] if path[0] == "attributes" else path
            yield (fields, f"is given twice, in line {first} and in line {line}")
            for inner in [other for other in lines if other[: len(path)] == path]:
                del lines[inner]  # values of the first key, which YAML ignores
        lines[path] = line
        yield from _index_lines(value, path, lines, visited)


def _not_yaml(error: yaml.YAMLError) -> str:
    """Return error and position, without the line's text, which may contain a secret."""
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"not YAML{where}: {getattr(error, 'problem', None) or 'malformed'}"


def load_transform(value: Any) -> Any:
    """Import the function named by ``package.module:function``; return other values unchanged.

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
    """Expand environment variables in all texts of a document; an unset one is an error."""
    if isinstance(value, str):
        return expandvars.expand(value, nounset=True)
    if isinstance(value, Mapping):
        return {key: expanded(item) for key, item in value.items()}
    return [expanded(item) for item in value] if isinstance(value, list) else value


def rendered(value: Any) -> Any:
    """Render the templates of a component document; an unset variable is an error.

    A template that yields text stays text, even if it looks like a number: a password ``1e5`` must
    not become one. The pipeline's validation converts text to numbers where a field requires it.
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
        # no HTML: nothing to escape
        return _filled_in(Environment(undefined=StrictUndefined, autoescape=False), value)  # noqa: S701
    return native


def _filled_in(environment: Environment, text: str) -> Any:
    return environment.from_string(text).render(env=_EnvironmentVariables())


class _EnvironmentVariables:
    """The object ``env`` of templates."""

    def __call__(self, name: str, default: str | None = None) -> str:
        value = os.environ.get(name, default)
        if value is None:
            raise ConfigError(
                f"the environment variable {name} is not set, and env({name!r}) has no default"
            )
        return value

    def __getattr__(self, name: str) -> str:
        if name.startswith(("jinja", "__")):  # looked up by jinja2 itself
            raise AttributeError(name)
        return self(name)
