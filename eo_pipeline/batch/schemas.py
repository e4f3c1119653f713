"""Which schemas a checkpoint's records are read with: the registry's, or those the ledger holds.

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

from eo_pipeline.batch.counting import Seen
from eo_pipeline.batch.decode import Decoded
from eo_pipeline.errors import RegistryUnavailableError, SchemaChangeError, SourceError
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.history import NextReader
from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.registry import Registered, Registry, RegistryClient
from eo_pipeline.formats.schema_diff import (
    ChangeKind,
    Decisions,
    SchemaChanges,
    changes,
    unreadable,
)
from eo_pipeline.formats.wire_format import ReadBy, WireSchemas
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import READ_AS, REDRIVE, Counts, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.schemas import KnownSchemas, ReadWith, digest, made_key
from eo_pipeline.progress import phase
from eo_pipeline.spark import interruptible


@dataclass(frozen=True)
class Chosen:
    """The reader's schema, and what was decided about the changes that led to it."""

    key: str
    text: str
    decided: Decisions


#: The schemas of the checkpoint of a version; of all together for None.
AuditSchemas = Callable[[int | None], WireSchemas]


@dataclass(frozen=True)
class SchemaBook:
    """The schemas of one pipeline's values, or keys, for one run: all its checkpoints have one
    reader.

    ``entry_at`` looks an entry of the ledger up by its version.
    """

    pipeline: str
    source: KafkaSource
    registry: Registry
    entry_at: Callable[[int], LedgerEntry | None]
    part: Part = VALUE
    #: what was found for a stranger, by transaction: a batch that is staged twice is read alike
    _answers: dict[tuple[str, str], str | None] = field(default_factory=dict, init=False)

    def of(self, entry: LedgerEntry) -> WireSchemas:
        """What to read the records of ``entry`` with.

        Raises:
            RegistryUnavailableError: the registry was needed and did not answer.
            ConfigError: its latest schema cannot become columns, or there is none.
            SourceError: it has another schema under a key that the ledger knows.
            LedgerDamagedError: the ledger does not hold what it says it holds.
        """
        known, then = self._known_below(entry), self._then(entry)
        return self._now(known) if then is None else self.as_read(known, then)

    def as_read(self, known: KnownSchemas, read: ReadWith, *others: str) -> WireSchemas:
        """The schemas of an entry that was ``read``, and ``others``, as the ledger holds them.

        Raises:
            LedgerDamagedError: the ledger does not hold what it says it holds.
        """
        writers = tuple(dict.fromkeys([*(read.writers or (read.reader,)), *others]))
        texts = {key: self._held(known, key) for key in {read.reader, *writers}}
        schema_type = known.held[read.reader].type
        return WireSchemas(
            *(read.reader, writers, texts, (), schema_type, read.message),
            part=self.part,
            quarantined=read.quarantined,
        )

    def for_audit(self, head: LedgerEntry, found: Sequence[Checkpoint]) -> AuditSchemas:
        """What to read the records of the checkpoints ``found`` with: each as it was read; all of
        them at once as the newest was, by every schema that the ledger holds at ``head``.

        Raises:
            LedgerDamagedError: the ledger does not hold what it says it holds.
            RegistryUnavailableError: nothing was read with a registry so far, and it is away.
        """
        known = self._known_at(head)
        read = {each.version: self._read(each.counts) for each in found}
        newest = next((read[n] for n in sorted(read, reverse=True) if read[n]), None)
        whole = (
            self.as_read(known, newest, *self._alike(known, newest)) if newest else self._now(known)
        )

        def schemas(version: int | None) -> WireSchemas:
            then = read.get(version) if version is not None else None
            return self.as_read(known, then) if then else whole

        return schemas

    def _alike(self, known: KnownSchemas, read: ReadWith) -> Iterator[str]:
        """Keys of all schemas of the type of those that were ``read``."""
        schema_type = known.held[read.reader].type
        return (key for key, held in known.held.items() if held.type == schema_type)

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> ReadWith | None:
        """All that is known at ``entry``, for a ledger that begins there; ``head`` knows where the
        texts are now.
        """
        known, newest = self._known_at(entry), self._known_at(head)
        return known.with_texts({key: self._held(newest, key) for key in known.held})

    def next_reader(self, head: LedgerEntry | None) -> NextReader:
        """Which schema the next run's columns are of.

        Raises:
            RegistryUnavailableError: the registry does not answer.
            ConfigError: its latest schema cannot become columns, or there is none.
            SourceError: it has another schema under a key that the ledger knows.
        """
        known = (self._known_at(head) if head else KnownSchemas()).only(self._type)
        number, text = self._latest.keys[0], self._latest.text
        self._refuse_another(known, number, text)
        left_out = kind_of(self._type, self._message).left_out
        before = self._held(known, known.reader) if known.reader else text
        return NextReader(
            subject=self._subject,
            schema=number,
            before=known.reader or None,
            new=tuple(left_out(text, before)),
            gone=tuple(left_out(before, text)),
            decided=self._chosen(known).decided.all,
            part=self.part,
        )

    def met(self, entry: LedgerEntry, decoded: Decoded, seen: Seen) -> WireSchemas:
        """The schemas that ``decoded`` was read with; with others besides, if there were records
        of such and a schema was found for them.

        Raises:
            RegistryUnavailableError: the registry was needed and did not answer.
            SourceError: it has another schema under a key that the ledger knows.
        """
        schemas = decoded.schemas.key if self.part == KEY else decoded.schemas.value
        assert schemas is not None
        bad_max = self.source.dead_letter_limit if self.source.on_bad_record != "fail" else 0
        found, unknown = dict[str, str](), list[str]()
        for key in self._strangers(decoded, schemas, seen):
            asked = (entry.transaction_id, key)
            if asked not in self._answers:
                self._answers[asked] = self._text_of_stranger(entry, key)
            text = self._answers[asked]
            if text is None:
                unknown.append(key)
            else:
                found[key] = text
            if len(unknown) > bad_max:
                break  # whatever the others are, this checkpoint fails
        return schemas.also(found, unknown)

    def _strangers(self, decoded: Decoded, schemas: WireSchemas, seen: Seen) -> list[str]:
        """Keys that the metrics name; if there may be more of them, those that a second look at
        the records finds.
        """
        keys = wire_format.unknown_keys(schemas, seen.metrics)
        if len(keys) > 1:
            most = self.source.dead_letter_limit + 1
            listed = wire_format.all_unknown_keys(decoded.all, schemas, most)
            rows = interruptible(listed.sparkSession, listed.toArrow).to_pylist()
            keys = {wire_format.key_of(bytes.fromhex(row["key"])) for row in rows}
        return sorted(keys)

    def _text_of_stranger(self, entry: LedgerEntry, key: str) -> str | None:
        """A replay asks what the ledger holds, and the registry for the rest: what it lacked then
        it may have now. If it is gone, what it lacked then it lacks.
        """
        known, then = self._known_below(entry), self._then(entry)
        if then is None:
            return self._text(known, key)
        if key in self._alike(known, then):
            return self._held(known, key)
        try:
            return self._client.text(key)
        except RegistryUnavailableError:
            if key in then.unknown:
                return None
            raise

    def _then(self, entry: LedgerEntry) -> ReadWith | None:
        """What the checkpoint was read with that ``entry`` reads again; None: it reads as now, as
        a redrive does of records that a policy kept out.
        """
        if entry.operation is not Operation.REPLAY or entry.target is None:
            return None
        then = self._read_at(entry.details.get(READ_AS, entry.target))
        known = self._known_below(entry)
        return None if then and entry.details.get(REDRIVE) and self._kept_out(known, then) else then

    def _kept_out(self, known: KnownSchemas, read: ReadWith) -> bool:
        """Whether records may have been bad for a change that the columns did not follow."""
        if read.quarantined:
            return True
        schemas = self.as_read(known, read)
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

    def _now(self, known: KnownSchemas) -> WireSchemas:
        known = known.only(self._type)
        latest = self._latest
        number = latest.keys[0]
        self._refuse_another(known, number, latest.text)
        texts = {number: latest.text}
        if known.last:
            guids = any(not key.isdigit() for key in known.last)
            for key in dict.fromkeys([*known.last, *(latest.keys if guids else ())]):
                if key != number and (text := self._text(known, key)) is not None:
                    texts[key] = text
        else:
            newest = self._client.newest(self._subject)
            texts |= {key: each.text for each in newest for key in each.keys}
        chosen = self._chosen(known)
        self._refuse_frozen(known, chosen.decided)
        return WireSchemas(
            chosen.key,
            tuple(texts),
            {**texts, chosen.key: chosen.text},
            type=self._type,
            message=self._message,
            part=self.part,
            quarantined=chosen.decided.quarantined,
        )

    def _chosen(self, known: KnownSchemas) -> Chosen:
        """Whose fields are the columns: the latest schema, as far as policies let them follow it.

        Raises:
            SchemaChangeError: they let a part of it, and that cannot be a schema.
        """
        number, text = self._latest.keys[0], self._latest.text
        if known.reader in ("", number):
            return Chosen(number, text, Decisions({}))
        kind = kind_of(self._type, self._message)
        before = self._held(known, known.reader)
        changed = changes(kind.shape_of(before), kind.shape_of(text))
        decided = self._policies.decide(changed)
        if not decided.as_before:
            return Chosen(number, text, decided)
        if decided.frozen:
            return Chosen(known.reader, before, decided)
        try:
            made = kind.partly(before, text, decided.as_before)
        except ValueError as error:
            raise SchemaChangeError(
                f"Pipeline {self.pipeline!r}: of the changes in schema {number} of "
                f"{self._subject} some are followed and some are not "
                f"({'; '.join(map(str, decided.all))}), and both need {error}, each in another "
                "form. Nothing was read. Give these kinds of changes one policy in "
                "source.schema_changes."
            ) from error
        if kind.shape_of(made) == kind.shape_of(before) and not decided.enums:
            return Chosen(known.reader, before, decided)
        return Chosen(made_key(number, made), made, decided)

    def _refuse_frozen(self, known: KnownSchemas, decided: Decisions) -> None:
        if decided.frozen:
            kinds = sorted({each.change.kind.value for each in decided.frozen})
            others = "evolve" if ChangeKind.DROPPED_FIELD in kinds else "evolve, rescue"
            raise SchemaChangeError(
                f"Pipeline {self.pipeline!r}: schema {self._latest.keys[0]} of "
                f"{self._subject} changes what source.schema_changes freezes since schema "
                f"{known.reader}: {'; '.join(str(each.change) for each in decided.frozen)}. "
                f"Nothing was read or written. If the change is meant, say {others} or "
                f"quarantine for {', '.join(kinds)} there; if not, correct the subject in the "
                "registry."
            )

    def _text(self, known: KnownSchemas, key: str) -> str | None:
        """By the registry; by the ledger, if the registry has forgotten it."""
        text = self._client.text(key)
        if text is None:
            held = known.held.get(key)
            return self._held(known, key) if held and held.type == self._type else None
        self._refuse_another(known, key, text)
        return text

    def _refuse_another(self, known: KnownSchemas, key: str, text: str) -> None:
        held = known.held.get(key)
        if held is not None and held.digest != digest(text):
            raise SourceError(
                f"Pipeline {self.pipeline!r}: schema {key} of the registry at {self.registry.url} "
                f"is another one than when version {held.version} was read with it. That registry "
                "is not the one it was, or was filled anew, so that no number in a record means "
                "what it did. Nothing was read. Let source.registry.url lead to the registry that "
                "the topic's producers use; if they use this one, read into a new pipeline."
            )

    def _held(self, known: KnownSchemas, key: str) -> str:
        """The text that the ledger holds."""
        return known.text(self.pipeline, key, self._read_at)

    def _read_at(self, version: int) -> ReadWith | None:
        entry = self.entry_at(version)
        return self._read(entry.counts) if entry else None

    @cached_property
    def _client(self) -> RegistryClient:
        return RegistryClient(self.registry, self._type, self._message, self.part)

    @cached_property
    def _latest(self) -> Registered:
        said = f"{self.pipeline}: asking the schema registry at {self.registry.url}"
        with phase(said, usually_short=True):
            return self._client.latest_reader(self._subject)


@dataclass(frozen=True)
class SchemaBooks:
    """What :class:`SchemaBook` tells, of both parts; its errors too."""

    value: SchemaBook | None = None
    key: SchemaBook | None = None

    @classmethod
    def of_source(
        cls, pipeline: str, source: KafkaSource, entry_at: Callable[[int], LedgerEntry | None]
    ) -> SchemaBooks | None:
        """None if no registry has the schemas of either."""
        if source.registry is None:
            return None
        books = {
            part.name: SchemaBook(pipeline, source, source.registry, entry_at, part)
            for part in (VALUE, KEY)
            if source.by_registry(part)
        }
        return cls(**books)

    def of(self, entry: LedgerEntry) -> ReadBy:
        """What to read the records of ``entry`` with."""
        return ReadBy(
            self.value.of(entry) if self.value else None, self.key.of(entry) if self.key else None
        )

    def met(self, entry: LedgerEntry, decoded: Decoded, seen: Seen) -> ReadBy:
        """What ``decoded`` was read with, and what was found besides."""
        return ReadBy(
            self.value.met(entry, decoded, seen) if self.value else None,
            self.key.met(entry, decoded, seen) if self.key else None,
        )

    def for_audit(
        self, head: LedgerEntry, found: Sequence[Checkpoint]
    ) -> Callable[[int | None], ReadBy]:
        """What to read the records of the checkpoints ``found`` with."""
        value = self.value.for_audit(head, found) if self.value else None
        key = self.key.for_audit(head, found) if self.key else None
        return lambda n: ReadBy(value(n) if value else None, key(n) if key else None)

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> Counts:
        """All that is known at ``entry``, for a ledger that begins there; ``head`` is that of its
        own ledger.
        """
        return Counts(
            schemas=self.value.carried(entry, head) if self.value else None,
            key_schemas=self.key.carried(entry, head) if self.key else None,
        )

    def next_readers(self, head: LedgerEntry | None) -> tuple[NextReader, ...]:
        """Which schemas the next run's columns are of, the value's before the key's."""
        return tuple(book.next_reader(head) for book in (self.value, self.key) if book)


def read_with(read: ReadBy | None, seen: Mapping[str, Any], entry: LedgerEntry) -> dict[str, Any]:
    """What of ``read`` was used, as counts have it."""
    known = entry.identity
    value = read.value.read_with(seen, known.schemas.held) if read and read.value else None
    key = read.key.read_with(seen, known.key_schemas.held) if read and read.key else None
    return {"schemas": value, "key_schemas": key}
