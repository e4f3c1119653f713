"""Writers who grow one subject of a real registry at the same time. No Spark, no Kafka."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from pyspark.sql import types as T

from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.kafka.encoding import Agreed
from eo_pipeline.sinks.kafka.schemas import ProtobufWriters, SchemaNegotiator, WritersClient
from tests.support.registry import QUICKLY

ID, INT, TEXT = T.StructField("id", T.LongType()), T.IntegerType(), T.StringType()

#: What each of several writers adds.
ONE_EACH: list[dict[str, T.DataType]] = [{"x": TEXT}, {"y": TEXT}, {"z": INT, "x": TEXT}]


class World:
    """A subject that nobody has written yet, and the columns of those who will."""

    def __init__(self, url: str) -> None:
        self.url, self.topic = url, f"t-{uuid.uuid4().hex[:8]}"
        self.subject = f"{self.topic}-value"
        self.client = SchemaRegistryClient({"url": url})

    def agreed(self, **columns: T.DataType) -> Agreed:
        """What a pipeline of its own writes ``id`` and ``columns`` with, as Protobuf."""
        return self.agreed_in("protobuf", **columns)

    def agreed_in(self, form: str, /, **columns: T.DataType) -> Agreed:
        """The same in that format."""
        sink = KafkaSink.model_validate(
            {
                "bootstrap_servers": "nobody:1",
                "topic": self.topic,
                "value_format": form,
                "registry": {"url": self.url, "client": QUICKLY},
            }
        )
        fields = [T.StructField(name, kind) for name, kind in columns.items()]
        made = SchemaNegotiator(sink).schemas(T.StructType([ID, *fields])).value
        assert made is not None
        return made

    def latest(self) -> dict[int, tuple[str, str]]:
        self.client.clear_latest_caches()
        text = self.client.get_latest_version(self.subject).schema.schema_str
        kind = Protobuf("Value")
        assert text is not None
        return fields_of(kind.self_contained(text, {}))


def fields_of(text: str) -> dict[int, tuple[str, str]]:
    found = Protobuf("Value").descriptor(text).fields
    return {f.number: (f.name, f.message_type.name if f.message_type else f.type) for f in found}


@pytest.fixture
def world(registry: EmbeddedRegistry) -> World:
    return World(registry.url)


@pytest.fixture
def all_look_first(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Nobody registers before so many have looked at what is there."""

    def meet(many: int) -> None:
        barrier = threading.Barrier(many)
        register, met = WritersClient.register, set[int]()

        def registered(self: WritersClient, *arguments: Any) -> int:
            if len(met) < many and id(self) not in met:
                met.add(id(self))
                barrier.wait(30)
            return register(self, *arguments)

        monkeypatch.setattr(WritersClient, "register", registered)

    return meet


def at_once(calls: Sequence[Callable[[], Agreed]]) -> list[Agreed | Exception]:
    """What each returned or raised."""

    def told(call: Callable[[], Agreed]) -> Agreed | Exception:
        try:
            return call()
        except SchemaChangeError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(told, calls))


@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("begun", [True, False], ids=["grown", "first"])
def test_whoever_grows_a_message_at_once_ends_with_one_meaning_for_each_number(
    world: World, all_look_first: Callable[[int], None], begun: bool, many: int
) -> None:
    if begun:
        world.agreed()
    columns = ONE_EACH[:many]
    all_look_first(many)
    made = at_once([partial(world.agreed, **each) for each in columns])
    if many == 3:  # one of them may have looked at what two others had not merged yet
        made += [world.agreed(**each) for each in columns]
    now = world.latest()
    assert {name for name, _ in now.values()} == {"id", *(name for c in columns for name in c)}
    for each in made:
        assert not isinstance(each, Exception)
        assert fields_of(each.text).items() <= now.items()


def test_killed_before_it_saw_the_other_it_writes_by_no_number_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            ProtobufWriters, "latest_or_none", lambda *_: None
        )  # both look at the same time
        world_of_one = world.agreed(x=TEXT)
        patched.setattr(ProtobufWriters, "between", _killed)
        with pytest.raises(KeyboardInterrupt):
            world.agreed(y=TEXT)
    assert world.latest()[2][0] == "y", "the second version has another meaning"
    after = world.agreed(y=TEXT)
    now = world.latest()
    assert fields_of(world_of_one.text).items() <= now.items()
    assert fields_of(after.text).items() <= now.items()


def test_too_late_with_nothing_to_add_it_leaves_on_top_what_the_others_grow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ProtobufWriters, "latest_or_none", lambda *_: None)
        made = [world.agreed(z=INT, x=TEXT), world.agreed(x=TEXT)]
    made.append(world.agreed(y=TEXT))
    now = world.latest()
    assert all(fields_of(each.text).items() <= now.items() for each in made)
    versions = len(world.client.get_versions(world.subject))
    world.agreed(x=TEXT)
    assert len(world.client.get_versions(world.subject)) == versions, "it is not put there again"


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_registry_that_answers_with_the_others_registration_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As Apicurio does, about once in ten times when three register in the same moment."""
    register, refused = SchemaRegistryClient.register_schema, list[Any]()

    def registered(self: SchemaRegistryClient, *arguments: Any) -> int:
        if not refused:
            refused.append(arguments)
            raise SchemaRegistryError(409, 0, "An artifact version 'null' already exists.")
        return register(self, *arguments)

    monkeypatch.setattr(SchemaRegistryClient, "register_schema", registered)
    assert world.agreed_in(form, x=TEXT).number > 0
    assert refused


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_of_two_meanings_of_one_name_one_is_refused_with_what_to_do(
    world: World, all_look_first: Callable[[int], None]
) -> None:
    world.agreed()
    all_look_first(2)
    made = at_once([lambda: world.agreed(x=TEXT), lambda: world.agreed(x=INT)])
    (refused,) = (each for each in made if isinstance(each, Exception))
    (other,) = (each for each in made if not isinstance(each, Exception))
    assert re.search("cannot grow into the columns: x is (string|int)", str(refused))
    if len(world.client.get_versions(world.subject)) > 2:  # not refused by the registry itself
        said = f"registered schema {other.number} under '{world.subject}' at the same time"
        assert said in str(refused)
        assert "delete that version" in str(refused)


@pytest.mark.parametrize("compatibility", ["NONE", "BACKWARD"])
def test_avro_of_two_at_once_is_read_by_the_schema_each_wrote_with(
    world: World, all_look_first: Callable[[int], None], compatibility: str
) -> None:
    world.agreed_in("avro")
    world.client.set_compatibility(world.subject, compatibility)
    all_look_first(2)
    one, other = at_once(
        [lambda: world.agreed_in("avro", x=TEXT), lambda: world.agreed_in("avro", y=TEXT)]
    )
    for made, name in ((one, "x"), (other, "y")):
        assert not isinstance(made, Exception)
        there = world.client.get_schema(made.number).schema_str
        assert there is not None
        assert [field["name"] for field in json.loads(there)["fields"]] == ["id", name]


def test_avro_that_does_not_go_together_is_refused_to_one_of_two(
    world: World, all_look_first: Callable[[int], None]
) -> None:
    world.agreed_in("avro")
    world.client.set_compatibility(world.subject, "BACKWARD")
    all_look_first(2)
    made = at_once(
        [lambda: world.agreed_in("avro", x=TEXT), lambda: world.agreed_in("avro", x=INT)]
    )
    (refused,) = (each for each in made if isinstance(each, Exception))
    assert "go together" in str(refused) or "does not take the columns" in str(refused)
