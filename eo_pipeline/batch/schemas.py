"""Schemas that a checkpoint's records are read with: the registry's, or those in the ledger.

A run asks the registry: its latest schema gives the columns, and the writers are those of the entry
before. Records of another one are found by the job that stages them; if the registry knows it, the
batch is staged once more. What was read with is in the ledger, texts and all, so that a replay
reads as the checkpoint was read, whatever has become of the registry since; but for the redrive of
records that a policy of change kept out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from eo_pipeline.batch.counting import ReadCounts
from eo_pipeline.errors import RegistryUnavailableError, SchemaChangeError, SourceError
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.history import NextReader
from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.registry import Registry, RegistryClient, SchemaVersion
from eo_pipeline.formats.schema_diff import (
    ChangeKind,
    Decisions,
    SchemaChanges,
    changes,
    unreadable,
)
from eo_pipeline.formats.wire_format import ReadSchemas, WriterSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import READ_AS, REDRIVE, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.schemas import KnownSchemas, ReadWith, digest, made_key
from eo_pipeline.progress import phase
from eo_pipeline.spark import interruptible


@dataclass(frozen=True)
class ReaderSchema:
    """The reader's schema, and what was decided about the changes that led to it."""

    key: str
    text: str
    decided: Decisions


#: The schemas of the checkpoint of a version; of all together for None.
AuditSchemas = Callable[[int | None], WriterSchemas]


@dataclass(frozen=True)
class SchemaResolver:
    """The schemas of one pipeline's values, or keys, for one run: all its checkpoints have one
    reader.

    ``entry_at`` looks an entry of the ledger up by its version.
    """

    pipeline: str
    source: KafkaSource
    registry: Registry
    entry_at: Callable[[int], LedgerEntry | None]
    part: Part = VALUE
    #: what was found for an unknown writer, by transaction: a batch staged twice is read alike
    _answers: dict[tuple[str, str], str | None] = field(default_factory=dict, init=False)

    def of(self, entry: LedgerEntry) -> WriterSchemas:
        """Return the schemas to read the records of ``entry`` with.

        Raises:
            RegistryUnavailableError: the registry was needed and did not answer.
            ConfigError: its latest schema cannot become columns, or there is none.
            SourceError: it has another schema under a key that the ledger knows.
            LedgerDamagedError: the ledger does not hold what it says it holds.
        """
        schemas, then = self._known_below(entry), self._as_first_read(entry)
        return self._from_registry(schemas) if then is None else self.as_read(schemas, then)

    def as_read(self, schemas: KnownSchemas, read: ReadWith, *others: str) -> WriterSchemas:
        """The schemas of an entry that was ``read``, and ``others``, as the ledger holds them.

        Raises:
            LedgerDamagedError: the ledger does not hold what it says it holds.
        """
        writers = tuple(dict.fromkeys([*(read.writers or (read.reader,)), *others]))
        texts = {key: self._held(schemas, key) for key in {read.reader, *writers}}
        schema_type = schemas.held[read.reader].type
        return WriterSchemas(
            *(read.reader, writers, texts, (), schema_type, read.message),
            part=self.part,
            quarantined=read.quarantined,
        )

    def for_audit(self, head: LedgerEntry, selected: Sequence[Checkpoint]) -> AuditSchemas:
        """Return the schemas to read the records of the checkpoints ``selected`` with: each as it
        was read; all of them at once as the newest was, by every schema that the ledger holds at
        ``head``.

        Raises:
            LedgerDamagedError: the ledger does not hold what it says it holds.
            RegistryUnavailableError: nothing was read with a registry so far, and it is away.
        """
        ledger_schemas = self._known_at(head)
        read = {checkpoint.version: self._read(checkpoint.counts) for checkpoint in selected}
        newest = next((read[n] for n in sorted(read, reverse=True) if read[n]), None)
        whole = (
            self.as_read(ledger_schemas, newest, *self._alike(ledger_schemas, newest))
            if newest
            else self._from_registry(ledger_schemas)
        )

        def schemas(version: int | None) -> WriterSchemas:
            then = read.get(version) if version is not None else None
            return self.as_read(ledger_schemas, then) if then else whole

        return schemas

    def _alike(self, schemas: KnownSchemas, read: ReadWith) -> Iterator[str]:
        """Keys of all schemas of the type of those that were ``read``."""
        schema_type = schemas.held[read.reader].type
        return (key for key, held in schemas.held.items() if held.type == schema_type)

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> ReadWith | None:
        """All that is known at ``entry``, for a ledger that begins there; ``head`` knows where the
        texts are now.
        """
        schemas, newest = self._known_at(entry), self._known_at(head)
        return schemas.with_texts({key: self._held(newest, key) for key in schemas.held})

    def next_reader(self, head: LedgerEntry | None) -> NextReader:
        """Return the schema of the next run's columns.

        Raises:
            RegistryUnavailableError: the registry does not answer.
            ConfigError: its latest schema cannot become columns, or there is none.
            SourceError: it has another schema under a key that the ledger knows.
        """
        schemas = (self._known_at(head) if head else KnownSchemas()).only(self._type)
        number, text = self._latest.keys[0], self._latest.text
        self._refuse_changed_registry(schemas, number, text)
        left_out = kind_of(self._type, self._message).left_out
        before = self._held(schemas, schemas.reader) if schemas.reader else text
        return NextReader(
            subject=self._subject,
            schema=number,
            before=schemas.reader or None,
            new=tuple(left_out(text, before)),
            gone=tuple(left_out(before, text)),
            decided=self._chosen(schemas).decided.all,
            part=self.part,
        )

    def with_unknown_writers(
        self,
        entry: LedgerEntry,
        read: ReadSchemas,
        seen: ReadCounts,
        records: Callable[[], DataFrame],
    ) -> WriterSchemas:
        """Return the schemas that records were ``read`` with; with others besides, if there were
        records of such and a schema was found for them. ``records``: all, as ``Decoded.all``.

        Raises:
            RegistryUnavailableError: the registry was needed and did not answer.
            SourceError: it has another schema under a key that the ledger knows.
        """
        schemas = read.key if self.part == KEY else read.value
        assert schemas is not None
        bad_max = self.source.dead_letter_limit if self.source.on_bad_record != "fail" else 0
        texts, unknown = dict[str, str](), list[str]()
        for key in self._unknown_writers(records, schemas, seen):
            cache_key = (entry.transaction_id, key)
            if cache_key not in self._answers:
                self._answers[cache_key] = self._text_of_unknown_writer(entry, key)
            text = self._answers[cache_key]
            if text is None:
                unknown.append(key)
            else:
                texts[key] = text
            if len(unknown) > bad_max:
                break  # whatever the others are, this checkpoint fails
        return schemas.also(texts, unknown)

    def _unknown_writers(
        self, records: Callable[[], DataFrame], schemas: WriterSchemas, seen: ReadCounts
    ) -> list[str]:
        """Keys that the metrics name; if there may be more of them, those that a second look at
        the records finds.
        """
        keys = wire_format.unknown_keys(schemas, seen.metrics)
        if len(keys) > 1:
            most = self.source.dead_letter_limit + 1
            listed = wire_format.all_unknown_keys(records(), schemas, most)
            rows = interruptible(listed.sparkSession, listed.toArrow).to_pylist()
            keys = {wire_format.key_of(bytes.fromhex(row["key"])) for row in rows}
        return sorted(keys)

    def _text_of_unknown_writer(self, entry: LedgerEntry, key: str) -> str | None:
        """A replay asks what the ledger holds, and the registry for the rest: what it lacked then
        it may have now. If it is gone, what it lacked then it lacks.
        """
        schemas, then = self._known_below(entry), self._as_first_read(entry)
        if then is None:
            return self._text(schemas, key)
        if key in self._alike(schemas, then):
            return self._held(schemas, key)
        try:
            return self._client.text(key)
        except RegistryUnavailableError:
            if key in then.unknown:
                return None
            raise

    def _as_first_read(self, entry: LedgerEntry) -> ReadWith | None:
        """Return the schemas of the checkpoint that ``entry`` reads again. None: read as now, as a
        redrive reads records that a policy kept out.
        """
        if entry.operation is not Operation.REPLAY or entry.target is None:
            return None
        then = self._read_at(entry.details.get(READ_AS, entry.target))
        schemas = self._known_below(entry)
        return (
            None if then and entry.details.get(REDRIVE) and self._kept_out(schemas, then) else then
        )

    def _kept_out(self, ledger_schemas: KnownSchemas, read: ReadWith) -> bool:
        """Return whether records may have been bad for a change that the columns did not follow."""
        if read.quarantined:
            return True
        schemas = self.as_read(ledger_schemas, read)
        shape_of = schemas.kind.shape_of
        read_as = shape_of(schemas.reader_text)
        return any(unreadable(shape_of(schemas.texts[key]), read_as) for key in schemas.writers)

    def _read(self, counts: Counts) -> ReadWith | None:
        return counts.key_schemas if self.part == KEY else counts.schemas

    def _known_at(self, entry: LedgerEntry) -> KnownSchemas:
        return entry.known_key_schemas if self.part == KEY else entry.known_schemas

    def _known_below(self, entry: LedgerEntry) -> KnownSchemas:
        identity = entry.identity
        return identity.key_schemas if self.part == KEY else identity.schemas

    @property
    def _type(self) -> str:
        return self.source.schema_type_of(self.part)

    @property
    def _message(self) -> str:
        return self.source.message_of(self.part)

    @property
    def _policies(self) -> SchemaChanges:
        """The configuration's are for values; a key's columns follow its schema."""
        return SchemaChanges() if self.part == KEY else self.source.schema_changes

    @property
    def _subject(self) -> str:
        return self.source.subject_of(self.part)

    def _from_registry(self, schemas: KnownSchemas) -> WriterSchemas:
        schemas = schemas.only(self._type)
        latest = self._latest
        number = latest.keys[0]
        self._refuse_changed_registry(schemas, number, latest.text)
        texts = {number: latest.text}
        if schemas.last:
            guids = any(not key.isdigit() for key in schemas.last)
            for key in dict.fromkeys([*schemas.last, *(latest.keys if guids else ())]):
                if key != number and (text := self._text(schemas, key)) is not None:
                    texts[key] = text
        else:
            newest = self._client.newest(self._subject)
            texts |= {key: version.text for version in newest for key in version.keys}
        chosen = self._chosen(schemas)
        self._refuse_frozen(schemas, chosen.decided)
        return WriterSchemas(
            chosen.key,
            tuple(texts),
            {**texts, chosen.key: chosen.text},
            type=self._type,
            message=self._message,
            part=self.part,
            quarantined=chosen.decided.quarantined,
        )

    def _chosen(self, schemas: KnownSchemas) -> ReaderSchema:
        """Return the schema of the columns: the latest one, as far as policies let them follow it.

        Raises:
            SchemaChangeError: they let a part of it, and that cannot be a schema.
        """
        number, text = self._latest.keys[0], self._latest.text
        if schemas.reader in ("", number):
            return ReaderSchema(number, text, Decisions({}))
        kind = kind_of(self._type, self._message)
        before = self._held(schemas, schemas.reader)
        changed = changes(kind.shape_of(before), kind.shape_of(text))
        decided = self._policies.decide(changed)
        if not decided.unchanged:
            return ReaderSchema(number, text, decided)
        if decided.frozen:
            return ReaderSchema(schemas.reader, before, decided)
        try:
            derived = kind.evolve_except(before, text, decided.unchanged)
        except ValueError as error:
            raise SchemaChangeError(
                f"Pipeline {self.pipeline!r}: of the changes in schema {number} of "
                f"{self._subject} some are followed and some are not "
                f"({'; '.join(map(str, decided.all))}), and both need {error}, each in another "
                "form. Nothing was read. Give these kinds of changes one policy in "
                "source.schema_changes."
            ) from error
        if kind.shape_of(derived) == kind.shape_of(before) and not decided.enums:
            return ReaderSchema(schemas.reader, before, decided)
        return ReaderSchema(made_key(number, derived), derived, decided)

    def _refuse_frozen(self, schemas: KnownSchemas, decided: Decisions) -> None:
        if decided.frozen:
            kinds = sorted({decision.change.kind.value for decision in decided.frozen})
            changes = "; ".join(str(decision.change) for decision in decided.frozen)
            others = "evolve" if ChangeKind.DROPPED_FIELD in kinds else "evolve, rescue"
            raise SchemaChangeError(
                f"Pipeline {self.pipeline!r}: schema {self._latest.keys[0]} of "
                f"{self._subject} changes what source.schema_changes freezes since schema "
                f"{schemas.reader}: {changes}. "
                f"Nothing was read or written. If the change is meant, say {others} or "
                f"quarantine for {', '.join(kinds)} there; if not, correct the subject in the "
                "registry."
            )

    def _text(self, schemas: KnownSchemas, key: str) -> str | None:
        """By the registry; by the ledger, if the registry has forgotten it."""
        text = self._client.text(key)
        if text is None:
            held = schemas.held.get(key)
            return self._held(schemas, key) if held and held.type == self._type else None
        self._refuse_changed_registry(schemas, key, text)
        return text

    def _refuse_changed_registry(self, schemas: KnownSchemas, key: str, text: str) -> None:
        held = schemas.held.get(key)
        if held is not None and held.digest != digest(text):
            raise SourceError(
                f"Pipeline {self.pipeline!r}: schema {key} of the registry at {self.registry.url} "
                f"differs from the one that version {held.version} was read with. The registry "
                "was replaced or re-created, so that the schema ids in records no longer mean "
                "the same. Nothing was read. Point source.registry.url to the registry that "
                "the topic's producers use; if they use this one, read into a new pipeline."
            )

    def _held(self, schemas: KnownSchemas, key: str) -> str:
        """The text that the ledger holds."""
        return schemas.text(self.pipeline, key, self._read_at)

    def _read_at(self, version: int) -> ReadWith | None:
        entry = self.entry_at(version)
        return self._read(entry.counts) if entry else None

    @cached_property
    def _client(self) -> RegistryClient:
        return RegistryClient(self.registry, self._type, self._message, self.part)

    @cached_property
    def _latest(self) -> SchemaVersion:
        message = f"{self.pipeline}: asking the schema registry at {self.registry.url}"
        with phase(message, usually_short=True):
            return self._client.latest_reader(self._subject)


@dataclass(frozen=True)
class SchemaResolvers:
    """The answers of :class:`SchemaResolver` for both parts of a record, and its errors."""

    value: SchemaResolver | None = None
    key: SchemaResolver | None = None

    @classmethod
    def of_source(
        cls, pipeline: str, source: KafkaSource, entry_at: Callable[[int], LedgerEntry | None]
    ) -> SchemaResolvers | None:
        """None if no registry has the schemas of either."""
        if source.registry is None:
            return None
        books = {
            part.name: SchemaResolver(pipeline, source, source.registry, entry_at, part)
            for part in (VALUE, KEY)
            if source.by_registry(part)
        }
        return cls(**books)

    def of(self, entry: LedgerEntry) -> ReadSchemas:
        """Return the schemas to read the records of ``entry`` with."""
        return ReadSchemas(
            self.value.of(entry) if self.value else None, self.key.of(entry) if self.key else None
        )

    def with_unknown_writers(
        self,
        entry: LedgerEntry,
        read: ReadSchemas,
        seen: ReadCounts,
        records: Callable[[], DataFrame],
    ) -> ReadSchemas:
        """Return the schemas that ``records`` were ``read`` with, and the unknown ones of them; see
        :meth:`SchemaResolver.with_unknown_writers`.
        """
        arguments = (entry, read, seen, records)
        return ReadSchemas(
            self.value.with_unknown_writers(*arguments) if self.value else None,
            self.key.with_unknown_writers(*arguments) if self.key else None,
        )

    def for_audit(
        self, head: LedgerEntry, selected: Sequence[Checkpoint]
    ) -> Callable[[int | None], ReadSchemas]:
        """Return the schemas to read the records of the checkpoints ``selected`` with."""
        value = self.value.for_audit(head, selected) if self.value else None
        key = self.key.for_audit(head, selected) if self.key else None
        return lambda n: ReadSchemas(value(n) if value else None, key(n) if key else None)

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> Counts:
        """All that is known at ``entry``, for a ledger that begins there; ``head`` is that of its
        own ledger.
        """
        return Counts(
            schemas=self.value.carried(entry, head) if self.value else None,
            key_schemas=self.key.carried(entry, head) if self.key else None,
        )

    def next_readers(self, head: LedgerEntry | None) -> tuple[NextReader, ...]:
        """Return the schemas of the next run's columns, the value's before the key's."""
        return tuple(book.next_reader(head) for book in (self.value, self.key) if book)


def read_with(
    read: ReadSchemas | None, seen: Mapping[str, Any], entry: LedgerEntry
) -> dict[str, Any]:
    """The used schemas of ``read``, in the form of the counts."""
    identity = entry.identity
    value = read.value.read_with(seen, identity.schemas.held) if read and read.value else None
    key = read.key.read_with(seen, identity.key_schemas.held) if read and read.key else None
    return {"schemas": value, "key_schemas": key}
