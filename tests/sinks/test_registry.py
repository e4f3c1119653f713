"""Sinks by name, from here and from other packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from eo_pipeline import sinks
from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks import registry
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.sinks.registry import sink_class, sink_from_config, sink_names
from eo_pipeline.sinks.session import SinkSession

_REDIS = {"type": "redis", "url": "redis://:s3cret@h", "key": "{id}"}
_POSTGRES = {"type": "postgres", "dsn": "postgresql://me:s3cret@h/d", "table": "t"}


class OtherSink(Sink):
    """As another package would bring it, with no field for its name."""

    guarantee: ClassVar[Guarantee] = Guarantee.NONE
    colour: str = "red"

    def open(self, pipeline: str) -> SinkSession:
        raise NotImplementedError

    @property
    def table_name(self) -> str:
        return "other"


class NotASink:
    """Registered by mistake."""


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package's entry points."""
    points = {
        "other": f"{__name__}:OtherSink",
        "mistake": f"{__name__}:NotASink",
        "absent": "a_package_nobody_has:Sink",
        "misspelt": f"{__name__}:NoSuchSink",
        "postgres": f"{__name__}:OtherSink",
    }
    found = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda **_: found)


def test_a_sink_is_made_from_its_name_and_fields() -> None:
    sink = sink_from_config({"type": "console", "ledger": "here", "max_rows": 5})
    assert sink == ConsoleSink(ledger=Path("here"), max_rows=5)


def test_a_sequence_in_yaml_becomes_a_key() -> None:
    settings = {"mode": "upsert", "key": ["a", "b"], "sequence_by": ["c"]}
    sink = sink_from_config(_POSTGRES | settings)
    assert sink.model_dump(include={"key", "sequence_by"}) == {
        "key": ("a", "b"),
        "sequence_by": ("c",),
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, rf"sink\.type: is required, one of {', '.join(sink_names())}"),
        ({"type": 5}, r"sink\.type: is required"),
        ({"type": "oracle"}, rf"no sink 'oracle'; there are {', '.join(sink_names())}"),
        ({"type": "postgers"}, "no sink 'postgers'; did you mean postgres\\? there are"),
        ({"type": "postgres", "table": "t"}, r"sink\.dsn: Field required"),
        (_POSTGRES | {"lock_timout": 1}, r"sink\.lock_timout: .*did you mean lock_timeout\?"),
        (_REDIS | {"ass": "json"}, r"sink\.ass: .*did you mean as\?"),
        (_REDIS | {"max_row": 1}, r"sink\.max_row: .*did you mean max_rows\?"),
        (_POSTGRES | {"mode": "upsert"}, r"sink\.key: .*columns that identify a row"),
        (_POSTGRES | {"colour": 1}, r"sink\.colour: Extra inputs[^?]*\Z"),
        (_POSTGRES | {"lock_timeout": "s3cret"}, r"sink\.lock_timeout: .*number"),
    ],
)
def test_a_wrong_field_is_named_and_no_value_shown(config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        sink_from_config(config)
    assert "s3cret" not in str(error.value)


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        sink_from_config({"type": "console", "max_rows": -1, "colour": 1})
    assert "\n  sink.max_rows: " in str(error.value)
    assert "\n  sink.colour: " in str(error.value)


def test_a_store_is_a_folder_and_a_line() -> None:
    """Whoever adds a folder with a session and forgets the line has a sink that nobody finds."""
    folders = {path.parent.name for path in Path(sinks.__path__[0]).glob("*/session.py")}
    folders -= {"lake", "sql"}  # what several stores share
    lines = {sink_class(name).__module__.split(".")[2] for name in sink_names()}
    assert lines == folders


@pytest.mark.usefixtures("others")
def test_another_package_can_add_a_sink() -> None:
    assert "other" in sink_names()
    assert sink_from_config({"type": "other", "colour": "blue"}) == OtherSink(colour="blue")


@pytest.mark.usefixtures("others")
def test_a_built_in_sink_cannot_be_replaced() -> None:
    assert type(sink_from_config(_POSTGRES)).__name__ == "PostgresSink"


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistake", "is not a Sink"),
        ("absent", "cannot be imported.*a_package_nobody_has"),
        ("misspelt", "cannot be imported.*NoSuchSink"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_said(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sink_from_config({"type": name})


@pytest.mark.usefixtures("others")
def test_a_sink_that_cannot_be_imported_does_not_hinder_the_others() -> None:
    assert "absent" in sink_names()
    assert isinstance(sink_from_config({"type": "console"}), ConsoleSink)
