"""Every error this package raises on purpose.

    EoPipelineError
    ├── ConfigError                 a setting is wrong; the message names the field
    ├── SetupError                  Java, a jar, a port or disk space is missing on this machine
    ├── SourceError
    │   ├── SourceUnavailableError  the Kafka cluster did not answer
    │   │   └── RegistryUnavailableError  ... or the schema registry did not
    │   ├── DataLossError           Kafka no longer holds what the ledger says comes next
    │   └── BadRecordError          a record does not fit the value format
    ├── TransformError              the transform failed or returned what cannot be written
    ├── SparkUnavailableError       the Spark Connect server or JVM did not answer, or is lost
    ├── SparkJobError               the Spark job that reads and stages failed
    ├── GoingBackError              a rewind, replay or fork is not possible as asked
    │   ├── UnknownCheckpointError  ... because that version is unknown, or no longer stands
    │   │   └── PrunedError         ... or is not kept any more
    │   ├── RangesGoneError         ... because Kafka no longer holds what would be read again
    │   ├── CompactedError          ... because compaction may have taken some of it
    │   └── OpenTransactionError    ... until a producer's transaction ends
    ├── PastGoneError               the table as it once was cannot be had back, or not all of it
    ├── ManifestDamagedError        a promise in staging cannot be read, so it cannot be kept
    ├── UnexpectedError             a fault of this package, or of a library it uses
    ├── NothingToDoError            a change was asked for that is not needed
    └── SinkError
        ├── SinkUnavailableError    the store could not be used just now; nothing landed
        ├── RefusedError            the store will never take these rows; nothing landed
        │   └── SchemaChangeError   ... because a column's type does not fit the table
        ├── FencedError             another run moved the ledger first; nothing landed
        │   └── StalePlanError      ... after a plan was made, and before it was applied
        ├── DamagedError            what was committed is not all there any more
        ├── CommitUnknownError      the connection died after COMMIT was sent; it may have landed
        ├── LedgerBehindError       the ledger is older than what was seen committed before
        ├── LedgerDamagedError      the ledger is not what was committed: changed, or not whole
        ├── TableReplacedError      the table is not the one that the ledger speaks for
        └── TableRolledBackError    somebody set the table back to before what the ledger says

``retryable`` says whether the same run, started again with nothing changed, may succeed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

#: ``[Errno 30] Read-only file system: '/srv'``: the number helps nobody.
_ERRNO = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")

#: ``'utf-8' codec can't decode byte 0xff in position 3: invalid start byte``
_DECODE = re.compile(
    r"'(?P<codec>[\w-]+)' codec can't decode bytes? (?:(?P<byte>0x[0-9a-f]{2}) )?"
    r"in position (?P<at>[\d-]+): (?P<why>\w+(?: \w+)*)"
)
_ENCODE = re.compile(
    r"'(?P<codec>[\w-]+)' codec can't encode characters? (?:(?P<what>'[^']+') )?"
    r"in position (?P<at>[\d-]+): ordinal not in range\(\d+\)"
)


def in_words(text: str) -> str:
    """``text`` without error numbers, and with sentences where Python speaks of codecs."""
    text = _ERRNO.sub("", text)
    text = _DECODE.sub(_decoded, text)
    return _ENCODE.sub(_encoded, text)


def to_install(extra: str) -> str:
    """The command that brings what an ``extra`` of this package takes."""
    return f"pip install 'eo-pipeline[{extra}]'"


def some_of(things: Sequence[object], most: int, between: str = ", ", last: str = " and ") -> str:
    """``1, 2 and 3 more``: no more than ``most`` of them by name."""
    named = between.join(map(str, things[:most]))
    more = len(things) - most
    return f"{named}{last}{more} more" if more > 0 else named


def _decoded(match: re.Match[str]) -> str:
    byte = f"byte {match['byte']} " if match["byte"] else "a byte "
    return f"{byte}at position {match['at']} is not {match['codec'].upper()} text"


def _encoded(match: re.Match[str]) -> str:
    what = f"the character {match['what']} " if match["what"] else "a character "
    return f"{what}at position {match['at']} cannot be written as {match['codec'].upper()}"


#: What stands where something was taken out.
HIDDEN = "***"

#: Words in a setting's name that make its value a secret.
_WORDS = r"password|passwd|pwd|passphrase|secret|token|credential|access.?key|api.?key|account.?key"

_NAME = rf"""[\w.\-]*(?:{_WORDS})[\w.\-]*"""
_QUOTED = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""

_PATTERNS = (
    # scheme://user:password@host; of several @ the last one ends a password that was not encoded
    (re.compile(r"(\w[\w+.\-]*://[^\s/:@\"']*:)[^\s/\"']+(@)"), rf"\g<1>{HIDDEN}\g<2>"),
    # a JAAS entry is a sentence of its own, ended by a semicolon
    (
        re.compile(rf"(sasl\.jaas\.config[\"']?\s*[=:]\s*)(?:{_QUOTED}|[^;\"'])*;?", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    (
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL),
        rf"\g<1>{HIDDEN}\g<2>",
    ),
    # name=value, as in settings, addresses and connection strings
    (
        re.compile(rf"({_NAME}[\"']?\s*=>?\s*)(?:{_QUOTED}|[^\s,;&}}\])\"']+)", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    # "name": value, as in JSON and in Python's dictionaries
    (
        re.compile(rf"([\"']{_NAME}[\"']\s*:\s*)(?:{_QUOTED}|[^\s,;}}\])\"']+)", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    # a token that is signed (RFC 7519): three parts, the first an object as JSON
    (re.compile(r"()\beyJ[\w-]+\.[\w-]+\.[\w-]*"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\b(?:Bearer|Basic)\s+)[\w.~+/=\-]{8,}"), rf"\g<1>{HIDDEN}"),
)

#: Colours and cursor moves (ECMA-48), for terminals only.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

#: The lines of tables that libraries draw in their errors.
_DRAWN = re.compile("[\u2500-\u257f]+")
_BLANKS = re.compile("[ \\t]{2,}")

#: What a terminal obeys or turns around, and what UTF-8 has nothing for; line ends and tabs are not
#: among it.
_OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""``text`` as it may be shown to a person: ``\x1b`` for an escape character, and the like."""
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_json(text: str) -> str:
    """Escape what a terminal would obey in JSON, by its own escapes: its values stay what they
    are.
    """
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def scrubbed(text: str) -> str:
    """``text`` without what may be a secret, without terminal codes and drawn lines."""
    text = _TERMINAL.sub("", text)
    if _DRAWN.search(text):
        text = _BLANKS.sub(" ", _DRAWN.sub(" ", text))
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


class EoPipelineError(Exception):
    """Base of every error raised on purpose. Its text says what happened and what to do.

    The text may quote other programs, so secrets are taken out of it here, once for all, and error
    numbers and codecs become words.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        super().__init__(
            *(in_words(scrubbed(arg)) if isinstance(arg, str) else arg for arg in args)
        )


class ConfigError(EoPipelineError):
    """A setting is missing, malformed or contradicts another one."""


class SetupError(EoPipelineError):
    """Something this machine must have is missing: Java, a jar, a free port, disk space."""


class SourceError(EoPipelineError):
    """Reading from Kafka is not possible as asked."""


class SourceUnavailableError(SourceError):
    """The Kafka cluster did not answer, or did not let us in."""

    retryable = True


class RegistryUnavailableError(SourceUnavailableError):
    """The schema registry did not answer, or did not let us in. Nothing was read."""


@dataclass(frozen=True)
class Loss:
    """Records the ledger expects next and Kafka no longer has, in one partition.

    ``expected`` is the offset the ledger would read next; ``beginning`` and ``end`` are the bounds
    the broker has now (``None`` where the partition or topic is gone).
    """

    topic: str
    partition: int
    expected: int
    beginning: int | None
    end: int | None
    cause: str

    def __str__(self) -> str:
        bounds = (
            "the partition no longer exists"
            if self.beginning is None or self.end is None
            else f"the broker now holds [{self.beginning}, {self.end})"
        )
        return (
            f"{self.topic}[{self.partition}]: {self.cause}; "
            f"next offset in the ledger {self.expected}, {bounds}"
        )


#: How many partitions a message names before it only counts them.
LOSSES_NAMED = 10


def _named(losses: Sequence[Loss]) -> str:
    named = "\n  ".join(str(loss) for loss in losses[:LOSSES_NAMED])
    more = len(losses) - LOSSES_NAMED
    return f"{named}\n  ... and {more} more partitions" if more > 0 else named


class DataLossError(SourceError):
    """Kafka no longer holds what comes next: retention passed, topic recreated, partition gone."""

    def __init__(self, pipeline: str, losses: Sequence[Loss]) -> None:
        self.pipeline = pipeline
        self.losses = tuple(losses)
        super().__init__(
            f"Pipeline {pipeline!r} stopped before reading: Kafka no longer holds every record "
            f"it has yet to read.\n  {_named(losses)}\n"
            "Nothing was read or written. Restore the records (a mirror, tiered storage) and run "
            "again; or go on past the hole, knowingly: `eo accept-loss`, Pipeline.accept_loss(), "
            "or the source policies on_retention, on_recreated and on_vanished. The ledger "
            "records it."
        )


@dataclass(frozen=True)
class BadRecord:
    """One record that does not fit, and why."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


class BadRecordError(SourceError):
    """A record does not fit the value format, or too many did not.

    ``count`` is how many records or rows, and ``example`` one of them; None where nobody said.
    """

    def __init__(
        self, text: str, *, count: int | None = None, example: BadRecord | None = None
    ) -> None:
        self.count = count
        self.example = example
        super().__init__(text)


class TransformError(EoPipelineError):
    """The transform failed or returned something that cannot be written."""


class SparkUnavailableError(EoPipelineError):
    """Spark, a Connect server or this process's JVM, did not answer, or was lost in the middle."""

    retryable = True


class SparkJobError(EoPipelineError):
    """The Spark job that reads, transforms and stages failed. Nothing was committed."""

    retryable = True


class GoingBackError(EoPipelineError):
    """A rewind, a replay or a fork is not possible as asked. Nothing was changed."""


class UnknownCheckpointError(GoingBackError):
    """The version asked for is not in the ledger, or a rewind left it behind."""


class RangesGoneError(GoingBackError):
    """Kafka no longer holds, or will soon not hold, what would have to be read again."""

    def __init__(self, pipeline: str, operation: str, losses: Sequence[Loss]) -> None:
        self.pipeline = pipeline
        self.losses = tuple(losses)
        super().__init__(
            f"Pipeline {pipeline!r}: {operation} is not possible: Kafka no longer holds all "
            f"records that it would re-read.\n  {_named(losses)}\n"
            "Nothing was changed. Choose a later checkpoint, or restore the records (a mirror, "
            "tiered storage)."
        )


class PrunedError(UnknownCheckpointError):
    """``version`` is below the ``floor`` of the ledger: its entry was removed, as asked for."""

    def __init__(self, pipeline: str, version: int | str, floor: int, since: int) -> None:
        self.pipeline, self.version, self.floor = pipeline, version, floor
        super().__init__(
            f"Pipeline {pipeline!r}: version {version} is not kept any more: the ledger was pruned "
            f"below version {floor}, by version {since}, as `maintenance: {{ledger: ...}}` asks "
            f"for. Nothing was changed. Choose version {floor} or a later one; to re-read older "
            "records, start a new pipeline into a new table."
        )


class CompactedError(GoingBackError):
    """Compaction may have taken records that would have to be read again."""


class OpenTransactionError(GoingBackError):
    """Records to be read again belong to a producer's transaction that is still open."""

    retryable = True

    def __init__(
        self, pipeline: str, operation: str, topic: str, partition: int, end: int, stable: int
    ) -> None:
        self.pipeline = pipeline
        super().__init__(
            f"Pipeline {pipeline!r}: {operation} would read {topic}[{partition}] up to offset "
            f"{end}, and a producer's transaction is open there since offset {stable}. Nothing was "
            "changed. Try again once it has ended: the producer ends it, or the broker after the "
            "producer's transaction.timeout.ms. To find the producer: `kafka-transactions.sh "
            f"describe-producers --topic {topic} --partition {partition}`."
        )


class PastGoneError(EoPipelineError):
    """The table as it stood at ``version`` cannot be shown: its rows were taken out, replaced or
    overwritten since, and the store keeps no earlier states, or not that one.
    """

    def __init__(self, pipeline: str, version: int, found: str, remedy: str) -> None:
        self.pipeline = pipeline
        self.version = version
        super().__init__(
            f"Pipeline {pipeline!r}: the table as it stood at version {version} cannot be shown: "
            f"{found.removesuffix('.')}. {remedy}"
        )


class ManifestDamagedError(EoPipelineError):
    """The manifest of a staged batch was cut, emptied or changed, and cannot be trusted.

    ``path`` is the manifest of an attempt at ``version``.
    """

    def __init__(self, path: str, version: int, found: str) -> None:
        self.path = path
        self.version = version
        super().__init__(
            f"{path}: the manifest of version {version} cannot be read: {found}. Nothing was "
            "committed. Restore the file, or set it aside: `eo set-aside`, "
            "Pipeline.plan_set_aside(). The next run then reads the same offsets again, unless the "
            "ledger shows that the staged batch was committed meanwhile."
        )


class NothingToDoError(EoPipelineError):
    """A change was asked for that is not needed. Nothing was changed."""


class UnexpectedError(EoPipelineError):
    """An exception of a kind that is not met on purpose; its own traceback is in ``__cause__``."""


class SinkError(EoPipelineError):
    """Writing to the sink is not possible as asked."""


class SinkUnavailableError(SinkError):
    """The store could not be used just now (down, full, locked). Nothing landed; try again."""

    retryable = True


class RefusedError(SinkError):
    """The store will never take these rows as they are. Nothing landed; the rows must change."""


class SchemaChangeError(RefusedError):
    """A column of the result does not fit the type the table has."""


class FencedError(SinkError):
    """Another run moved the ledger first. This run left nothing visible."""

    retryable = True

    def __init__(self, pipeline: str, version: int, winner: str | None) -> None:
        self.pipeline = pipeline
        self.version = version
        self.winner = winner
        held = f"is held by transaction {winner}" if winner else "does not follow the ledger's head"
        super().__init__(
            f"Pipeline {pipeline!r}: version {version} {held}; another run was faster. "
            "This run left nothing visible. The next run continues from the new head."
        )


class StalePlanError(FencedError):
    """The ledger has moved on since the plan was made. Nothing of the plan was done.

    ``planned`` and ``found`` are versions, ``None`` for an empty ledger.
    """

    def __init__(
        self, pipeline: str, planned: int | None, found: int | None, winner: str | None
    ) -> None:
        self.pipeline = pipeline
        self.version = 0 if planned is None else planned + 1
        self.winner = winner
        was, now = ("empty" if v is None else f"at version {v}" for v in (planned, found))
        other = ", of another transaction" if planned == found else ""
        SinkError.__init__(
            self,
            f"Pipeline {pipeline!r}: when the plan was made the ledger was {was}; now it is {now}"
            f"{other}. Another run was faster, or the staged batch of a dead run was committed "
            "first. Nothing of the plan was done. Make a new plan and check it.",
        )


class DamagedError(SinkError):
    """The store lost some of what was committed to it; it does not come back by itself."""


class CommitUnknownError(SinkError):
    """The connection died after COMMIT was sent: the transaction may or may not have landed.

    Only the same transaction id may be tried again; nothing of it may be deleted.
    """

    retryable = True


class LedgerBehindError(SinkError):
    """The ledger is older than what this pipeline saw committed: restored backup, failover."""


class LedgerDamagedError(SinkError, ValueError):
    """The ledger is not what was committed: an entry was changed, or is missing, by other hands.

    ``version`` is the entry that is not as it was, ``found`` says why. Nothing was read or
    written, and nothing will be until a person has put it right.
    """

    def __init__(self, pipeline: str, version: int, found: str) -> None:
        self.pipeline = pipeline
        self.version = version
        self.found = found
        super().__init__(
            f"Pipeline {pipeline!r}: the ledger is damaged: version {version} {found}. Nothing was "
            "read or written. Bring the ledger back as it was committed, from a backup of the "
            "same moment as the table (`eo audit` looks at all of it); or go on with a new "
            "pipeline into a new table."
        )


class TableRolledBackError(SinkError):
    """Somebody set the table back: the rows of the ledger's newest versions are not in it."""

    def __init__(self, pipeline: str, version: int, stands: int, forward: str) -> None:
        self.pipeline = pipeline
        self.stands = stands
        state = f"what was committed up to version {stands}" if stands else "an older state"
        super().__init__(
            f"Pipeline {pipeline!r}: somebody set the table back. The ledger is at version "
            f"{version}, and the table holds {state}. Nothing "
            f"was read or written. {forward}; or rewind the ledger too: `eo rewind {stands}`; the "
            "next run then re-reads the records of the versions in between."
        )


class TableReplacedError(SinkError):
    """The table is not the one that the ledger speaks for: dropped, made anew, or another."""

    def __init__(self, pipeline: str, written: int, found: str) -> None:
        self.pipeline = pipeline
        super().__init__(
            f"Pipeline {pipeline!r}: the ledger says that {written} rows were written into the "
            f"table, and {found}. Nothing was read or written. Bring the table back (was it "
            "renamed, or restored without its ledger?), or start anew with another pipeline name "
            "and table."
        )
