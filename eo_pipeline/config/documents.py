"""Pipeline documents: YAML, paths, environment variables and templates.

Errors name the field, and the line where it is known.
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

#: The Dagster component of a pipeline; a class that extends it is told by its attributes.
COMPONENT = "KafkaPipelineComponent"
#: What is wrong, at which field.
Fault = tuple[tuple[Any, ...], str]

_OF_A_PIPELINE = frozenset({"name", "source", "sink"})


@dataclass(frozen=True)
class Document:
    """One pipeline of a file, as it was written: ``raw`` still has its templates.

    A plain document has the pipeline's fields at its top and ``${NAME}`` for the environment. A
    Dagster component document has them below ``attributes``, beside those that only Dagster reads,
    and ``{{ env.NAME }}`` or ``{{ env('NAME', 'default') }}``.
    """

    path: Path
    raw: Mapping[str, Any]
    #: the line of each value, by where it stands
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    #: keys that are given twice
    twice: Sequence[Fault] = ()

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
        return dict(with_whole_paths(self._values(known), self.path.parent))

    def faults(self, known: Collection[str]) -> list[Fault]:
        """What is wrong with the document that its values do not show; see :meth:`config`."""
        return [*self.twice, *left_behind(self._values(known), self.path.parent)]

    def line_of(self, field: Sequence[int | str]) -> int | None:
        """The line of ``field``, or of what that is missing from."""
        above = ("attributes",) if self.is_component else ()
        at = (*above, *map(str, field))
        found = (self.lines.get(at[:length]) for length in range(len(at), len(above), -1))
        return next(filter(None, found), None)

    def _values(self, known: Collection[str]) -> Mapping[str, Any]:
        chosen = self.fields
        if self.is_component:
            chosen = {k: v for k, v in self.fields.items() if k in known and v is not None}
        filled = self.filled(chosen)
        return filled if isinstance(filled, Mapping) else {}

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
        return replace(self, raw=raw)

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


#: Fields of a sink that are a file or folder of this machine, by its type.
_SINK_PATHS: Mapping[str, tuple[str, ...]] = {
    "console": ("ledger",),
    "iceberg": ("location", "warehouse"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key"),
}

#: Those where a table is, with what they are if they are left out.
_TABLES = {"path": None, "location": None, "ledger": ".eo/console", "warehouse": ".eo/warehouse"}

#: A table's name in a catalog of three levels, which could be a folder's name too.
_CATALOG_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*){2}")

#: A template, a URL.
_NO_PATH = re.compile(r"\$|\{|[A-Za-z][A-Za-z0-9+.-]*:")


def with_whole_paths(fields: Any, folder: Path) -> Any:
    """A pipeline's ``fields``, of which those that name a file or folder start at the document's
    ``folder``, and not at this process's. A path that begins with a template is left as it is.
    """
    if not isinstance(fields, Mapping):
        return fields
    made = dict(fields)
    for (section, *names), path in _paths(fields):
        whole = os.path.normpath(folder.absolute() / path)
        made[section] = _with(made.get(section), names, whole)
    return made


def begun_here(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``fields``, whose paths start at this process's folder, for a document in ``folder``."""
    made = dict(fields)
    for (section, *names), path in _paths(fields):
        if not names or names[0] in made[section]:
            made[section] = _with(made[section], names, os.path.relpath(path, folder))
    return made


def left_behind(fields: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """Tables that stand where a path of ``fields`` leads to from this process's folder, as it was
    once taken, and not where it leads to from the document's ``folder``.
    """
    sink = fields.get("sink")
    name = str(sink.get("table", "")) if isinstance(sink, Mapping) else ""
    for at, path in _paths(fields):
        if at[0] != "sink" or at[-1] not in _TABLES:
            continue
        table = Path(*name.split(".")) if at[-1] == "warehouse" else Path()
        before, now = (Path(os.path.normpath(p / path)) for p in (Path.cwd(), folder.absolute()))
        is_here, is_there = _holds_something(before / table), _holds_something(now / table)
        if before != now and is_here and not is_there:
            yield (
                at,
                f"{path} starts at the document, and at {now / table} there is no table; there is "
                f"one at {before / table}, where it began when paths started at the working "
                f"folder. Write {os.path.relpath(before, folder)}, or move it",
            )


def _holds_something(place: Path) -> bool:
    return place.is_file() or (place.is_dir() and any(place.iterdir()))


def _paths(fields: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The relative paths among ``fields``, and where they stand."""

    def found(*at: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
        value: Any = fields
        for name in at:
            value = value[name] if isinstance(value, list) else value.get(name)
            if not isinstance(value, Mapping | list | str):
                return
        if isinstance(value, list):
            for number in range(len(value)):
                yield from found(*at, number)
        elif isinstance(value, Mapping):
            for name in value:
                if str(name) == "file" or str(name).endswith(".location"):
                    yield from found(*at, name)
        elif _is_relative(at[-1], value):
            yield at, value

    sections = {name: value for name, value in fields.items() if isinstance(value, Mapping)}
    for name, value in sections.get("source", {}).items():
        if isinstance(value, Mapping) and (value.keys() == {"file"} or name == "client"):
            yield from found("source", name)
    sink = sections.get("sink", {})
    for name in _SINK_PATHS.get(str(sink.get("type")), ("path",)) if sink else ():
        yield from found("sink", name)
        if (default := _TABLES.get(name)) and sink.keys().isdisjoint((name, "catalog")):
            yield ("sink", name), default
    yield from found("sink", "client") if sink else ()
    yield from found("staging")
    yield from found("spark", "py_files") if "spark" in sections else ()


def _is_relative(name: Any, path: str) -> bool:
    if name == "path" and _CATALOG_NAME.fullmatch(path):
        return False
    if name == "ssl.ca.location" and path == "probe":  # librdkafka's word for the usual places
        return False
    return bool(path.strip()) and not Path(path).is_absolute() and not _NO_PATH.match(path)


def _with(value: Any, names: Sequence[Any], path: str) -> Any:
    """``value`` with ``path`` where ``names`` lead to."""
    if not names:
        return path
    first, *rest = names
    if isinstance(value, list):
        return [_with(v, rest, path) if n == first else v for n, v in enumerate(value)]
    return {**value, first: _with(value.get(first), rest, path)}


def one_document(path: Path | str) -> Document:
    """The one pipeline document of a file.

    Raises:
        ConfigError: no such file, not YAML, or it holds another number of documents.
    """
    found = list(_documents(Path(path)))
    if len(found) != 1:
        raise ConfigError(f"{path}: it holds {len(found)} pipelines, and one is needed")
    return found[0]


def documents_in(path: Path) -> Iterator[Document]:
    """Every pipeline document of one file, several separated by ``---``.

    Raises:
        ConfigError: no such file, or not YAML.
    """
    return (document for document in _documents(path) if document.is_a_pipeline)


def _documents(path: Path) -> list[Document]:
    try:
        loader = yaml.SafeLoader(path.read_text())
        found = []
        while loader.check_node():
            node = loader.get_node()
            lines: dict[tuple[str, ...], int] = {}
            twice = list(_placed(node, (), lines, set()))
            raw = loader.construct_document(node)
            if isinstance(raw, Mapping):
                found.append(Document(path, raw, lines, twice))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_not_yaml(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _placed(
    node: yaml.Node | None,
    at: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    seen: set[yaml.Node],
) -> Iterator[Fault]:
    """Write into ``lines`` where the values of ``node`` stand; keys that are given twice."""
    if node is None or node in seen:  # an alias
        return
    seen.add(node)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _placed(item, (*at, str(number)), lines, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
            continue
        here, line = (*at, key.value), key.start_mark.line + 1
        if first := lines.get(here):
            fields = here[1:] if here[0] == "attributes" else here
            yield (fields, f"is given twice, in line {first} and in line {line}")
            for below in [each for each in lines if each[: len(here)] == here]:
                del lines[below]  # of the one that does not count
        lines[here] = line
        yield from _placed(value, here, lines, seen)


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
