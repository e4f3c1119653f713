"""Schemas of the records, negotiated with a schema registry before rows are staged."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tenacity

from eo_pipeline.errors import ConfigError, SchemaChangeError
from eo_pipeline.formats.kinds import type_of_format
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.protobuf import Protobuf
from eo_pipeline.formats.registry import RegistryClient, SchemaVersion
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF
from eo_pipeline.sinks.kafka import avro, protobuf
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.encoding import Agreed, AgreedAvro, AgreedProtobuf, Schemas, whole

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

#: What a registry answers if a subject does not take a schema, or no subject does.
_NOT_TAKEN = frozenset({409, 422})
_NOT_ALLOWED = frozenset({401, 403})

#: What it also answers to one of two who register in the same moment, whatever they register.
_COLLISION = 409
#: How often it is asked before it is believed, and the longest pause between, in seconds.
_TRIES, _WAIT_MAX = 4, 0.2

#: How often a schema is grown because others register theirs at the same time.
_GROWTHS_MAX = 20


class SchemaNegotiator:
    """Asks the registry of a sink. One for a session: what was agreed on is not asked for again."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._clients: dict[str, WritersClient] = {}

    def schemas(self, columns: StructType) -> Schemas:
        """Schemas that records of the result ``columns`` are written with.

        Raises:
            ConfigError: a column the configuration names is absent; or see
                :meth:`WritersClient.agreed`.
            SchemaChangeError, RegistryUnavailableError: see :meth:`WritersClient.agreed`.
        """
        sink, layout = self._sink, self._sink.layout
        layout.check_named(columns.names)
        value = key = None
        if "value" in layout.encoded:
            value = self._of(VALUE).agreed(layout.value_type(columns))
        if "key" in layout.encoded and sink.key is not None:
            key = self._of(KEY).agreed(columns[sink.key].dataType)
        return Schemas(value, key)

    def _of(self, part: Part) -> WritersClient:
        if part.name not in self._clients:
            make = {"avro": AvroWriters, "protobuf": ProtobufWriters}[self._sink.format_of(part)]
            self._clients[part.name] = make(self._sink, part)
        return self._clients[part.name]


class WritersClient(RegistryClient):
    """Client of the registry for one part of each record."""

    where: ClassVar[str] = "sink.registry"

    def __init__(self, sink: KafkaSink, part: Part) -> None:
        assert sink.registry is not None
        message = sink.message_of(part)
        super().__init__(sink.registry, type_of_format(sink.format_of(part)), message)
        named = sink.registry.key_subject if part == KEY else sink.registry.subject
        self.subject = named or part.subject(sink.topic)
        #: of the column that is it, if one is
        self.column = sink.key if part == KEY else sink.value
        self.topic = sink.topic
        self.name = part.name.capitalize()
        self.may_register = sink.registry.auto_register

    def agreed(self, data_type: DataType) -> Agreed:
        """Return the schema that values of ``data_type`` are written with.

        Raises:
            SchemaChangeError: the kind of schema has nothing for it; or the registry's does not
                fit, or its subject does not take one that does.
            ConfigError: it must be there, and is not.
            RegistryUnavailableError: the registry does not answer.
        """
        raise NotImplementedError

    def there(self) -> SchemaVersion:
        """The subject's latest schema, which is not ours to change.

        Raises:
            ConfigError: there is none.
            RegistryUnavailableError: the registry does not answer.
        """
        latest = self.latest_or_none(self.subject)
        if latest is None:
            raise ConfigError(
                f"The schema registry at {self._registry.url} has no subject {self.subject!r}, and "
                "sink.registry.auto_register is false. Nothing was read. Register the schema, or "
                "let the pipeline do it."
            )
        return latest

    def refuse(self, latest: SchemaVersion, faults: Sequence[str]) -> None:
        """Return if there are no ``faults``.

        Raises:
            SchemaChangeError: there are.
        """
        if faults:
            raise SchemaChangeError(
                f"The latest schema of {self.subject!r} (number {latest.keys[0]}) does not take "
                f"the columns: {'; '.join(faults)}. Nothing was read. Register one that does, or "
                "correct the transform."
            )

    def since(self, after: int, ours: Collection[int] = ()) -> list[SchemaVersion]:
        """The subject's versions later than ``after``, the oldest first; without those with numbers
        that are ``ours``.

        Raises:
            RegistryUnavailableError: the registry does not answer.
        """
        versions = self._ask(lambda client: client.get_versions(self.subject)) or []
        later = sorted(version for version in versions if version > after)
        candidates = (self._ask(lambda c, n=n: c.get_version(self.subject, n)) for n in later)
        return [
            self._registered(version)
            for version in candidates
            if version is not None and version.schema_id not in ours
        ]

    def between(self, after: int, number: int, ours: Collection[int] = ()) -> list[SchemaVersion]:
        """Those of :meth:`since` before the schema with that ``number``; none if that was there
        before.
        """
        there = self.since(after, ours)
        places = [place for place, version in enumerate(there) if version.keys[0] == str(number)]
        return there[: places[0]] if places else []

    def overtaken(self, fault: str, other: SchemaVersion, number: int) -> SchemaChangeError:
        """Of a schema that was registered under that ``number``, after the ``other`` one."""
        return SchemaChangeError(
            f"{fault} Somebody else registered schema {other.keys[0]} under {self.subject!r} at "
            f"the same time as we registered {number} for these columns. Nothing was written with "
            f"schema {number}: delete that version from the subject."
        )

    def register(self, text: str, references: Sequence[Any] = ()) -> int:
        """The number of ``text``, which is registered unless it is already.

        Raises:
            SchemaChangeError: the subject does not take it.
            ConfigError: this login may not register.
            RegistryUnavailableError: the registry does not answer.
        """
        errors, subject = self._schema_registry.error, self.subject
        schema = self._schema_registry.Schema(text, self._type, list(references))

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: getattr(error, "http_status_code", None) == _COLLISION
            ),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random(0, _WAIT_MAX),
            reraise=True,
        )

        def question(client: Any) -> int:
            try:
                return int(again(client.register_schema, subject, schema))
            except errors.SchemaRegistryError as error:
                if error.http_status_code in _NOT_TAKEN:
                    raise SchemaChangeError(
                        f"{subject!r} in the schema registry at {self._registry.url} does not take "
                        f"the columns' schema: {error}. Nothing was read. Change the columns in "
                        "the transform, or the subject's compatibility in the registry."
                    ) from error
                if error.http_status_code in _NOT_ALLOWED:
                    raise ConfigError(
                        f"The schema registry at {self._registry.url} does not let us register "
                        f"under {subject!r}: {error}. Nothing was read. Register the schema "
                        "beforehand and set sink.registry.auto_register: false, or correct the "
                        "login in sink.registry.client."
                    ) from error
                raise

        number = self._ask(question)
        if number is None:
            raise self._unavailable(f"has no place for subject {subject!r}")
        return number


class AvroWriters(WritersClient):
    """Avro: the schema of the columns is registered as it is."""

    def __init__(self, sink: KafkaSink, part: Part) -> None:
        super().__init__(sink, part)
        assert self._type == AVRO
        self._numbers: dict[str, int] = {}

    def agreed(self, data_type: DataType) -> Agreed:
        """See :meth:`WritersClient.agreed`."""
        if self.may_register:
            name = avro.record_name(self.topic, self.name)
            text = json.dumps(avro.derived(data_type, name))
            if text not in self._numbers:
                self._numbers[text] = self._registered_as(text)
            return AgreedAvro(self._numbers[text], text, data_type, is_ours=True)
        latest = self.there()
        self.refuse(latest, [*avro.misfits(data_type, whole(latest.text))])
        return AgreedAvro(int(latest.keys[0]), latest.text, data_type, is_ours=False)

    def _registered_as(self, text: str) -> int:
        """Its number. Some registries let two at once in that do not go together.

        Raises:
            SchemaChangeError: the subject does not take it.
            ConfigError: this login may not register.
            RegistryUnavailableError: the registry does not answer.
        """
        before = self.latest_or_none(self.subject)
        try:
            number = self.register(text)
        except SchemaChangeError:
            now = self.latest_or_none(self.subject)
            if now == before:
                raise
            number = self.register(text)  # what came between was in the way, not what it says
        schema = self._schema_registry.Schema(text, self._type)
        for other in self.between(_version(before), number):
            if not self._ask(
                lambda client, n=other.version: client.test_compatibility(self.subject, schema, n)
            ):
                fault = "The columns' schema does not go together with another one."
                raise self.overtaken(fault, other, number)
        return number


class ProtobufWriters(WritersClient):
    """Protobuf: what is registered is the subject's latest schema, grown where columns are new,
    since a field is its number.
    """

    def __init__(self, sink: KafkaSink, part: Part) -> None:
        super().__init__(sink, part)
        assert self._type == PROTOBUF
        self._agreed: dict[str, AgreedProtobuf] = {}

    def agreed(self, data_type: DataType) -> Agreed:
        """See :meth:`WritersClient.agreed`."""
        columns = protobuf.as_message(data_type, self.column)
        if not self.may_register:
            latest = self.there()
            self.refuse(latest, self._faults(latest, columns))
            return self._made(int(latest.keys[0]), latest.text, data_type)
        cache_key = data_type.json()
        if cache_key not in self._agreed:
            self._agreed[cache_key] = self._made(*self._registered_for(columns), data_type)
        return self._agreed[cache_key]

    def _registered_for(self, columns: StructType) -> tuple[int, str]:
        """The number and the text of a schema that takes ``columns``.

        A registry has no compare-and-swap, but its versions have an order: of two that grew the
        same version the later one sees the earlier, and grows that, before a record is written.
        Where it has nothing to add, it puts that on top again: others grow what is on top.
        """
        first = protobuf.derived(columns, self.topic, self.name)
        base, ours = self._base(first)
        for _ in range(_GROWTHS_MAX):
            if base and not self._faults(base, columns):
                if not ours:
                    return int(base.keys[0]), base.text
                text = protobuf.instead_of(ours[-1], base.text, self._protobuf)
            else:
                text = self._grown(base, columns, ours) if base else first
            try:
                number = self.register(protobuf.own_content(text), _references(base))
            except SchemaChangeError:
                beside = self._to_grow(base, self.since(_version(base), ours))
                if beside is None:
                    raise
                base = beside  # what came between was in the way, or is what ours does not follow
                continue
            beside = self._to_grow(base, self.between(_version(base), number, ours))
            if beside is None:
                return number, text
            ours.append(number)
            base = beside
        raise self._unavailable(f"gets other schemas for {self.subject!r} whenever we register one")

    def _base(self, first: str) -> tuple[SchemaVersion | None, list[int]]:
        """Return the schema to grow: the latest; but not the ``first`` of ours that somebody
        else's was before, which we were killed before we saw. That is then the only number of
        the list.
        """
        latest = self.latest_or_none(self.subject)
        own_content = protobuf.own_content
        if latest and latest.version > 1 and own_content(latest.text) == own_content(first):
            number = int(latest.keys[0])
            if before := self._to_grow(None, self.between(0, number)):
                return before, [number]
        return latest, []

    def _to_grow(
        self, base: SchemaVersion | None, others: list[SchemaVersion]
    ) -> SchemaVersion | None:
        """Of ``others``, the versions after ``base``, the newest that has all of it; where nothing
        was, the first of all: the rest are of those who were too late, as we were.
        """
        if base is None:
            return others[0] if others else None
        fields = protobuf.meanings(base.text, self._protobuf)
        grown = (
            version
            for version in reversed(others)
            if fields <= protobuf.meanings(version.text, self._protobuf)
        )
        return next(grown, None)

    def _grown(self, base: SchemaVersion, columns: StructType, ours: Sequence[int]) -> str:
        try:
            return protobuf.grown(base.text, columns, self._protobuf)
        except SchemaChangeError as error:
            if not ours:
                raise
            raise self.overtaken(str(error), base, ours[-1]) from error

    def _faults(self, latest: SchemaVersion, columns: StructType) -> list[str]:
        if fault := self._protobuf.fault_of(latest.text):  # no columns can mend that
            self.refuse(latest, [f"it {fault}"])
        return [*protobuf.misfits(columns, self._protobuf.descriptor(latest.text))]

    def _made(self, number: int, text: str, data_type: DataType) -> AgreedProtobuf:
        return AgreedProtobuf(number, text, data_type, self._protobuf)

    @property
    def _protobuf(self) -> Protobuf:
        assert isinstance(self._kind, Protobuf)
        return self._kind


def _version(base: SchemaVersion | None) -> int:
    """0 where there is none."""
    return base.version if base else 0


def _references(base: SchemaVersion | None) -> Sequence[Any]:
    return base.references if base else ()
