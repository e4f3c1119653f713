"""The registry of sinks, and the only list of them: names, and the classes that they stand for.

A store of this package is a folder beside this file and a line in :data:`_BUILT_IN`. Another
package adds a sink by an entry point in the group ``eo_pipeline.sinks``::

    [project.entry-points."eo_pipeline.sinks"]
    sqlite = "my_package.sqlite_sink:SqliteSink"

and the configuration ``type: sqlite`` then means that class. A sink's module is imported only when
it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from eo_pipeline.config.settings import as_config_error, did_you_mean
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
    try:
        return _class(name)
    except ValueError as error:
        raise ConfigError(f"sink.{_TYPE}: {error}") from error


def sink_from_config(config: Mapping[str, Any]) -> Sink:
    """A sink from plain values, as a YAML document holds them: ``type`` and the sink's own fields.

    Raises:
        ConfigError: names every wrong field, and never shows a value.
    """
    with as_config_error("the sink", below=("sink",)):
        return validate_sink(config)


def as_sink(value: Any) -> Any:
    """For a field: a sink as it is, and what a document says of one through its class."""
    return validate_sink(value) if isinstance(value, Mapping) else value


def _reached(sink: Sink, info: ValidationInfo) -> Sink:
    """Pass the storage settings of the model's field ``storage`` to the sink."""
    storage = info.data.get("storage")
    return sink.reached_by(storage) if storage else sink


#: A field for a sink, below a field ``storage`` of the same model.
SinkField = Annotated[Sink, BeforeValidator(as_sink), AfterValidator(_reached)]


def validate_sink(config: Mapping[str, Any]) -> Sink:
    """:func:`sink_from_config` for a validator of what the sink is part of.

    Raises:
        ValidationError: pydantic's, which that validator's own takes in.
    """
    try:
        cls = _class(config.get(_TYPE))
    except ValueError as error:
        raise _wrong_type(str(error)) from error
    fields = {k: v for k, v in config.items() if k != _TYPE or _TYPE in cls.model_fields}
    return cls.model_validate(fields)


def _class(name: object) -> type[Sink]:
    """The class behind ``name``; a ValueError says why there is none."""
    if not isinstance(name, str):
        raise ValueError(f"is required, one of {', '.join(sink_names())}")
    entry_point = _entry_points().get(name)
    if entry_point is None:
        meant = did_you_mean(name, sink_names())
        raise ValueError(f"no sink {name!r};{meant} there are {', '.join(sink_names())}")
    try:
        sink = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the sink {name!r} ({entry_point.value}) cannot be imported: {error}"
        ) from error
    if not (isinstance(sink, type) and issubclass(sink, Sink)):
        raise ValueError(f"{entry_point.value}, behind {name!r}, is not a Sink")
    return sink


def _wrong_type(text: str) -> ValidationError:
    problem = PydanticCustomError("sink_type", "{text}", {"text": text})
    detail = InitErrorDetails(type=problem, loc=(_TYPE,), input=None)
    return ValidationError.from_exception_data("sink", [detail])


def _entry_points() -> dict[str, EntryPoint]:
    """By name. A built-in sink cannot be replaced by another package."""
    installed = {point.name: point for point in _installed(entry_points, (*sys.path,))}
    built_in = {name: EntryPoint(name, value, GROUP) for name, value in _BUILT_IN.items()}
    return installed | built_in


@cache
def _installed(
    look_up: Callable[..., Iterable[EntryPoint]],
    where: tuple[str, ...],  # noqa: ARG001
) -> tuple[EntryPoint, ...]:
    """Of other packages ``where`` Python looks. Asked once: ``look_up`` reads what every installed
    package says of itself, and a sink is validated for each document.
    """
    return tuple(look_up(group=GROUP))
