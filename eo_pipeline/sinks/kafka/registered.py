"""Schemas that records are written with, agreed on with a registry before anything is staged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from eo_pipeline.errors import ConfigError, SchemaChangeError
from eo_pipeline.ledger.schemas import AVRO
from eo_pipeline.sinks.kafka.avro_schema import derived, misfits, record_name
from eo_pipeline.sinks.kafka.config import KafkaSink
from eo_pipeline.sinks.kafka.encoding import Agreed, Schemas, whole
from eo_pipeline.source.registry import RegistryClient

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

#: What a registry answers if a subject does not take a schema, or no subject does.
_NOT_TAKEN = frozenset({409, 422})
_NOT_ALLOWED = frozenset({401, 403})


class WritersClient(RegistryClient):
    """Asks the registry of a sink. One for a session: what was agreed on is not asked for again."""

    where: ClassVar[str] = "sink.registry"

    def __init__(self, sink: KafkaSink) -> None:
        assert sink.registry is not None
        super().__init__(sink.registry, AVRO)
        self._sink = sink
        self._key_subject = sink.registry.key_subject
        self._may_register = sink.registry.auto_register
        self._numbers: dict[tuple[str, str], int] = {}

    def schemas(self, columns: StructType) -> Schemas:
        """What records of the result ``columns`` are written with.

        Raises:
            ConfigError: a column the configuration names is absent; or see :meth:`agreed`.
            SchemaChangeError, RegistryUnavailableError: see :meth:`agreed`.
        """
        sink, layout = self._sink, self._sink.layout
        layout.check_named(columns.names)
        value = key = None
        if sink.value_format == "avro":
            subject = self._registry.subject or f"{sink.topic}-value"
            value = self.agreed("Value", subject, layout.value_type(columns))
        if sink.key_format == "avro" and sink.key is not None:
            subject = self._key_subject or f"{sink.topic}-key"
            key = self.agreed("Key", subject, columns[sink.key].dataType)
        return Schemas(value, key)

    def agreed(self, part: str, subject: str, data_type: DataType) -> Agreed:
        """What values of ``data_type`` are written with, the ``Key`` or ``Value`` of a record.

        Raises:
            SchemaChangeError: Avro has nothing for it; or the registry's schema does not fit, or
                its subject does not take one that does.
            ConfigError: it must be there, and is not.
            RegistryUnavailableError: the registry does not answer.
        """
        if self._may_register:
            text = json.dumps(derived(data_type, record_name(self._sink.topic, part)))
            if (subject, text) not in self._numbers:
                self._numbers[subject, text] = self.register(subject, text)
            return Agreed(self._numbers[subject, text], text, data_type, is_ours=True)
        latest = self.found(subject)
        if latest is None:
            raise ConfigError(
                f"The schema registry at {self._registry.url} has no subject {subject!r}, and "
                "sink.registry.auto_register is false. Nothing was read. Register the schema, or "
                "let the pipeline do it."
            )
        if faults := [*misfits(data_type, whole(latest.text))]:
            raise SchemaChangeError(
                f"The latest schema of {subject!r} (number {latest.keys[0]}) does not take the "
                f"columns: {'; '.join(faults)}. Nothing was read. Register one that does, or "
                "correct the transform."
            )
        return Agreed(int(latest.keys[0]), latest.text, data_type, is_ours=False)

    def register(self, subject: str, text: str) -> int:
        """The number of ``text``, which is registered under ``subject`` unless it is already.

        Raises:
            SchemaChangeError: the subject does not take it.
            ConfigError: this login may not register.
            RegistryUnavailableError: the registry does not answer.
        """
        errors = self._schema_registry.error
        schema = self._schema_registry.Schema(text, AVRO)

        def question(client: Any) -> int:
            try:
                return int(client.register_schema(subject, schema))
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

        number = self._asked(question)
        if number is None:
            raise self._away(f"has no place for subject {subject!r}")
        return number
