"""Names of sinks and the classes behind them. The only place that knows which sinks there are.

A store of this package is a folder beside this file and a line in :data:`_BUILT_IN`. Another
package adds a sink by an entry point in the group ``eo_pipeline.sinks``::

    [project.entry-points."eo_pipeline.sinks"]
    sqlite = "my_package.sqlite_sink:SqliteSink"

and the configuration ``type: sqlite`` then means that class. A sink's module is imported only when
it is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.config import Sink

#: The entry-point group of sinks from other packages.
GROUP = "eo_pipeline.sinks"

_BUILT_IN = {
    "console": "eo_pipeline.sinks.console:ConsoleSink",
    "delta": "eo_pipeline.sinks.delta:DeltaSink",
    "iceberg": "eo_pipeline.sinks.iceberg:IcebergSink",
    "kafka": "eo_pipeline.sinks.kafka:KafkaSink",
    "mariadb": "eo_pipeline.sinks.mysql:MySqlSink",
    "mysql": "eo_pipeline.sinks.mysql:MySqlSink",
    "parquet": "eo_pipeline.sinks.parquet:ParquetSink",
    "postgres": "eo_pipeline.sinks.postgres:PostgresSink",
    "redis": "eo_pipeline.sinks.redis:RedisSink",
}

#: The field that names the sink.
_TYPE = "type"


def sink_names() -> list[str]:
    """Every name that ``type`` may have, sorted."""
    return sorted(_entry_points())


def sink_class(name: str) -> type[Sink]:
    """The class behind ``name``.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    entry_point = _entry_points().get(name)
    if entry_point is None:
        meant = _did_you_mean(name, sink_names())
        there_are = ", ".join(sink_names())
        raise ConfigError(f"sink.type: no sink {name!r};{meant} there are {there_are}")
    try:
        found = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"sink.type: the sink {name!r} ({entry_point.value}) cannot be imported: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise ConfigError(f"sink.type: {entry_point.value}, behind {name!r}, is not a Sink")
    return found


def sink_from_config(config: Mapping[str, Any]) -> Sink:
    """A sink from plain values, as a YAML document holds them: ``type`` and the sink's own fields.

    Raises:
        ConfigError: names every wrong field, and never shows a value.
    """
    name = config.get(_TYPE)
    if not isinstance(name, str):
        raise ConfigError(f"sink.type: is required, one of {', '.join(sink_names())}")
    cls = sink_class(name)
    fields = {k: v for k, v in config.items() if k != _TYPE or _TYPE in cls.model_fields}
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        raise ConfigError("\n".join([_in_words(error), *_hints(error, cls)])) from error


def _entry_points() -> dict[str, EntryPoint]:
    """By name. A built-in sink cannot be replaced by another package."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    built_in = {name: EntryPoint(name, value, GROUP) for name, value in _BUILT_IN.items()}
    return found | built_in


def _in_words(error: ValidationError) -> str:
    """One line a field. Inputs are left out: they may hold a secret."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "\n".join(
        f"{'.'.join(['sink', *map(str, problem['loc'])])}: {problem['msg']}" for problem in problems
    )


def _hints(error: ValidationError, cls: type[Sink]) -> list[str]:
    """A line for each unknown field of ``cls`` that is a slip of the pen."""
    known = [_TYPE, *(field.alias or name for name, field in cls.model_fields.items())]
    unknown = [p["loc"] for p in error.errors() if p["type"] == "extra_forbidden"]
    hints = {str(loc[0]): _did_you_mean(str(loc[0]), known) for loc in unknown if len(loc) == 1}
    return [f"sink.{name}:{hint}" for name, hint in hints.items() if hint]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Empty if nothing is like ``name``."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" did you mean {close[0]}?" if close else ""
