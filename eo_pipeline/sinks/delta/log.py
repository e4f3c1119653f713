"""Delta log files, read and appended to directly: checkpoints, ledger commits, table metadata."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.ledger import Pointer
from eo_pipeline.sinks.lake.types import changed, own_columns
from eo_pipeline.sinks.session import CommitConflictError
from eo_pipeline.storage.paths import Place, RemotePath, fingerprint, hard_link, write_atomically

log = logging.getLogger(__name__)

#: Of a table, and below its folder.
LOG_FOLDER = "_delta_log"

#: In the line of every application transaction; one that spells it otherwise is left to the search.
_TRANSACTION = b'"txn"'

#: What delta-rs leaves as it is in a file's path, besides letters and digits.
_AS_IT_IS = "/!$&'()+,-.:;=@_~"

#: Names the log's newest checkpoint, or one before (Delta protocol, "Last Checkpoint File").
_HINT = "_last_checkpoint"


class Hint(NamedTuple):
    """The version of a checkpoint of the log, and how many actions that has: one a file, mostly."""

    version: int
    actions: int


def newest_checkpoint(log: Place) -> Hint | None:
    """``None``: the log has none.

    Raises:
        OSError, ValueError, KeyError, TypeError: it is not known; what is said of it is not whole.
    """
    hint = log / _HINT
    if not hint.is_file():
        return None
    hint_values = json.loads(hint.read_bytes())
    return Hint(int(hint_values["version"]), int(hint_values.get("size", 0)))


def path_in_log(name: str) -> str:
    """Return a file's ``name`` as delta-rs writes it into the log. A file is removed by the very
    text that added it.
    """
    return quote(name, safe=_AS_IT_IS)


def file_name(path: str) -> str:
    """The name of the file with this ``path`` in the log, below the table's folder."""
    return unquote(path)


def is_removable(path: str) -> bool:
    """Return whether delta-rs finds the text ``path`` again: other engines leave other
    characters.
    """
    return path_in_log(file_name(path)) == path


def commit_file(log: Place, version: int) -> Place:
    """Its name in the log (Delta protocol, "Delta Log Entries")."""
    return log / commit_name(version)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def transactions_in(commit: Place) -> dict[str, int]:
    """The application transactions of one commit: of those that the log has of an application the
    newest counts, so that one of the newest commit needs no search. Empty if it cannot be read.

    delta-rs looks through all that came after the last checkpoint of the log, once for each. Other
    actions are not decoded: a maintenance's commit has one for each of thousands of files.
    """
    try:
        lines = commit.read_bytes().splitlines()
        actions = [json.loads(line) for line in lines if _TRANSACTION in line]
        transactions = [action["txn"] for action in actions if "txn" in action]
        return {transaction["appId"]: int(transaction["version"]) for transaction in transactions}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


#: Application ids of the ledger's head in the table's log (Delta protocol, "Transaction
#: Identifiers"): its version and the token that names its file.
APP_PREFIX = "eo:"
TOKEN_SUFFIX = ":token"  # noqa: S105 - no secret

#: In the commit's own words ("Commit Provenance Information"): the table's id, its layout, and the
#: key of its description.
_TABLE, _LAYOUT, _DESCRIBED = "eo_table", "eo_partition_by", "eo_described"

#: Commits after the log's checkpoint: more than of ours there ever are, so somebody else keeps it.
_COMMITS_MAX = 200

#: How far behind the newest commit each name is looked for that none may have, and then ever twice
#: as far.
_NEAR, _FAR = 32, 2**20

#: Actions by which a table becomes another one.
_CHANGES = ("metaData", "protocol")


class LedgerCommit(NamedTuple):
    """Contents of a commit: of the table's version ``version``, whose commit is ``file``, as
    :func:`eo_pipeline.storage.paths.fingerprint` tells it.
    """

    version: int
    file: tuple[object, ...]
    pointer: Pointer
    table: str
    partition_by: tuple[str, ...]
    described: str | None


def table_metadata(table: str, partition_by: list[str], described: str | None) -> dict[str, str]:
    """Metadata of a commit on this table for :class:`LedgerCommits`."""
    metadata = {_TABLE: table, _LAYOUT: json.dumps(partition_by)}
    return metadata | ({_DESCRIBED: described} if described else {})


class _Newest(NamedTuple):
    version: int
    file: tuple[object, ...] | None
    commit: LedgerCommit | None


class LedgerCommits:
    """Commits of one pipeline in the log of a folder."""

    def __init__(self, log: Path, pipeline: str) -> None:
        self._log, self._app = log, APP_PREFIX + pipeline
        self._found: _Newest | None = None

    def newest(self) -> LedgerCommit | None:
        """``None``: the table must be opened to know."""
        if self._found is None or not self._is_newest(self._found):
            self._found = None
            try:
                version = self._newest_version()
                self._found = None if version is None else self._read(version)
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._found.commit if self._found else None

    def forget(self) -> None:
        """Look anew, whatever is found."""
        self._found = None

    def is_last(self, version: int) -> bool:
        """Return whether the log names no commit behind ``version``, and none behind a gap
        there. A gap wider than :data:`_NEAR` and than what follows it goes undetected.
        """
        near, far = range(1, _NEAR), (_NEAR << n for n in range(_FAR.bit_length()))
        return not any(self._has(version + behind) for behind in chain(near, far))

    def _newest_version(self) -> int | None:
        """By the names that follow, of which none is left out; the folder may hold many thousands.
        ``None``: there is none, or it is not found by looking at few.
        """
        checkpoint = newest_checkpoint(self._log)
        since = checkpoint.version if checkpoint else 0
        gaps = (v for v in range(since, since + _COMMITS_MAX) if not self._has(v))
        absent = next(gaps, since)
        return absent - 1 if absent > since else None

    def _is_newest(self, newest: _Newest) -> bool:
        return newest.file == self._identity(newest.version) and not self._has(newest.version + 1)

    def _identity(self, version: int) -> tuple[object, ...] | None:
        return fingerprint(self._log / commit_name(version))

    def _has(self, version: int) -> bool:
        try:
            os.stat(os.path.join(self._log, commit_name(version)))
        except FileNotFoundError:
            return False
        return True

    def _read(self, version: int) -> _Newest:
        file = self._identity(version)
        own_commit = (
            _said(version, file, self._log / commit_name(version), self._app) if file else None
        )
        return _Newest(version, file, own_commit)


def _said(version: int, file: tuple[object, ...], commit: Path, app: str) -> LedgerCommit | None:
    newest, metadata = dict[str, int](), dict[str, Any]()
    for name, value in _small_actions(commit):
        if name in _CHANGES:
            return None
        if name == "txn":
            newest[value["appId"]] = int(value["version"])
        else:
            metadata = value
    if app not in newest or _TABLE not in metadata:
        return None
    pointer = Pointer(newest[app], newest[app + TOKEN_SUFFIX])
    layout = tuple(json.loads(metadata[_LAYOUT]))
    return LedgerCommit(version, file, pointer, metadata[_TABLE], layout, metadata.get(_DESCRIBED))


def _small_actions(commit: Path) -> Iterator[tuple[str, Any]]:
    """All but those of files, of which there may be thousands: they are not decoded."""
    for line in commit.read_bytes().splitlines():
        if not line.startswith((b'{"add"', b'{"remove"', b'{"cdc"')):
            [(name, value)] = json.loads(line).items()
            if name in ("txn", "commitInfo", *_CHANGES):
                yield name, value


#: Writer features whose rules hold for files that are added by reference (Delta protocol, "Valid
#: Feature Names in Table Features"). Any other one asks a writer for more than this one does.
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # which delta-rs gives to tables that have no such column, when it sets their properties
        "variantType",
    }
)

#: Settings and column annotations behind which a writer must check or fill in values.
_SETTINGS_REFUSED = {"delta.columnMapping.mode": "none"}

#: A setting by which the log forgets application transactions, and so where the ledger's head is.
_FORGETS = "delta.setTransactionRetentionDuration"
_CONSTRAINT = "delta.constraints."
_FEATURE = "delta.feature."
_COLUMN_RULES = ("delta.generationExpression", "delta.identity", "delta.invariants")

#: Of a pipeline's ledger, beside its folders of thousands.
_FOLDER = "tables"


@dataclass(frozen=True)
class DeltaMetadata:
    """``schema`` is the JSON of the log; ``identity`` what the format knows the table by, for as
    long as it lives.
    """

    identity: str
    schema: str
    partition_by: list[str]
    configuration: dict[str, str]
    features: list[str]

    @classmethod
    def of(cls, table: DeltaTable) -> DeltaMetadata:
        metadata = table.metadata()
        return cls(
            identity=str(metadata.id),
            schema=table.schema().to_json(),
            partition_by=list(metadata.partition_columns),
            configuration=metadata.configuration,
            features=sorted(table.protocol().writer_features or ()),
        )

    @cached_property
    def text(self) -> str:
        """All of it; of the same table the same."""
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def key(self) -> str:
        """Of :attr:`text`, its hash."""
        return _hash(self.text)

    @property
    def required(self) -> frozenset[str]:
        """Columns that may not be null."""
        return frozenset(f["name"] for f in self.columns.values() if not f["nullable"])

    @property
    def columns(self) -> dict[str, dict[str, Any]]:
        """The schema's fields, as the log has them, by name."""
        return {field["name"]: field for field in json.loads(self.schema)["fields"]}

    @property
    def types(self) -> pa.Schema:
        """The columns, in the one form of each type."""
        return TYPES.comparable(pa.schema(Schema.from_json(self.schema).to_arrow()))

    def following(self, schema: pa.Schema) -> pa.Schema:
        """The columns once the table takes rows of ``schema``.

        Raises:
            SchemaChangeError: a column's type is not the table's.
        """
        return TYPES.following(self.types, stored_schema(schema))

    def takes(self, schema: pa.Schema) -> bool:
        """Return whether rows of ``schema`` can be added to the table as it is."""
        try:
            return not changed(self.types, self.following(schema)).names
        except (RefusedError, SchemaChangeError):
            return False

    def check(self, partition_by: tuple[str, ...]) -> None:
        """Refuse a table that this sink must not write to.

        Raises:
            ConfigError: names the feature, setting or column.
        """
        if _FORGETS in self.configuration:
            raise ConfigError(
                f"sink.path: the table has {_FORGETS}={self.configuration[_FORGETS]}, so Delta "
                "drops the pipeline's ledger head after that time. Remove the setting: ALTER "
                f"TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')."
            )
        obstacles = ", ".join(self._obstacles())
        if obstacles:
            raise ConfigError(
                f"sink.path: the table needs what a writer of whole files cannot do: {obstacles}. "
                "Write to a table without it."
            )
        if list(partition_by) != self.partition_by:
            raise ConfigError(
                f"sink.partition_by: the table is partitioned by "
                f"{', '.join(self.partition_by) or 'nothing'}, "
                f"not by {', '.join(partition_by) or 'nothing'}"
            )

    def _obstacles(self) -> list[str]:
        obstacles = [f"the feature {name}" for name in self.features if name not in _FEATURES]
        settings = self.configuration
        for name, harmless in _SETTINGS_REFUSED.items():
            if settings.get(name, harmless) != harmless:
                obstacles.append(f"{name}={settings[name]}")
        for name in settings:
            feature = name.removeprefix(_FEATURE)
            if feature != name and feature not in {*_FEATURES, *self.features}:
                obstacles.append(f"the feature {feature}")
        obstacles += [f"the check {name}" for name in settings if name.startswith(_CONSTRAINT)]
        for name, field in self.columns.items():
            rules = [rule for rule in field.get("metadata", {}) if rule.startswith(_COLUMN_RULES)]
            obstacles += [f"column {name!r} with {rule}" for rule in rules]
        return obstacles


class DescribedTables:
    """``<ledger folder>/tables/<hash>.table``: what tables of a pipeline's commits were. There are
    as many as its table had columns, settings and features over time.
    """

    def __init__(self, ledger: Place) -> None:
        self.folder = ledger / _FOLDER

    def keep(self, table: DeltaMetadata) -> None:
        """Before the commit that names it."""
        path = self._path(table.key)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, table.text)

    def get(self, key: str) -> DeltaMetadata | None:
        """``None``: the table must be opened to know."""
        try:
            text = self._path(key).read_text()
            return DeltaMetadata(**json.loads(text)) if _hash(text) == key else None
        except (OSError, ValueError, TypeError):
            return None

    def _path(self, key: str) -> Place:
        return self.folder / f"{key}.table"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of staged rows, in the one form of each type, all nullable."""
    return TYPES.schema(own_columns(schema))


def append_text(
    words: Mapping[str, str],
    partition_by: Iterable[str],
    transactions: Mapping[str, int],
    added: Iterable[AddAction],
) -> str:
    """A commit that adds files, as delta-rs would write it; ``words`` are its own."""
    how = {"mode": "Append", "partitionBy": json.dumps([*partition_by])}
    info = {
        **words,
        "timestamp": int(time.time() * 1000),
        "operation": "WRITE",
        "operationParameters": how,
        "engineInfo": "eo-pipeline",
    }
    actions = [
        {"commitInfo": info},
        *({"add": _file(action)} for action in added),
        *({"txn": {"appId": app, "version": v}} for app, v in transactions.items()),
    ]
    return "".join(json.dumps(action) + "\n" for action in actions)


def _file(action: AddAction) -> dict[str, object]:
    return {
        "path": path_in_log(action.path),
        "partitionValues": dict(action.partition_values),
        "size": action.size,
        "modificationTime": action.modification_time,
        "dataChange": action.data_change,
        "stats": action.stats,
    }


@dataclass(frozen=True)
class BlindAppend:
    """A version of a table behind which files can be added: its ``commit``, and what it is."""

    log: Place
    commit: LedgerCommit
    described: DeltaMetadata

    def followed_by(self, written: Place) -> None:
        """Make the file ``written`` the next commit: durable when this returns.

        Two things are looked at once it is: that the log still has the commit before, and no
        checkpoint behind that. Otherwise ours may lie where nobody reads: a log whose clean-up
        keeps nothing may have lost the name since it was taken, by a table that has gone on.

        Raises:
            CommitConflictError: it is not the next commit, or may not be; the table tells.
            OSError: whether it is, is not known.
        """
        before = self.commit.version
        try:
            hard_link(written, commit_file(self.log, before + 1))
        except FileExistsError as error:
            raise CommitConflictError(f"version {before + 1} of the table is another's") from error
        except FileNotFoundError as error:
            raise CommitConflictError(
                f"the log, or the commit, was tidied away: {error}"
            ) from error
        checkpoint = newest_checkpoint(self.log)
        is_there = fingerprint(commit_file(self.log, before)) == self.commit.file
        if not is_there or (checkpoint is not None and checkpoint.version > before):
            raise CommitConflictError(f"the table went on while version {before + 1} was written")


#: Commits between two checkpoints, unless the table says otherwise: a fortieth of the actions that
#: the last one holds, one for each file, within these bounds. Each holds them all, so that at equal
#: distances a log would grow with the square, and so would the work. In a bucket whoever opens the
#: table asks for each commit behind it.
INTERVAL, INTERVAL_MAX, INTERVAL_MAX_IN_A_BUCKET = 10, 100, 30
ACTIONS_A_COMMIT = 40


def checkpoint_if_due(
    table: Place, options: dict[str, str], version: int, settings: Mapping[str, str]
) -> None:
    """Keep the log of the table in ``table`` short behind its commit ``version``, which has landed,
    as delta-rs's own hooks would; a failure is a warning.
    """
    set_to = settings.get("delta.checkpointInterval")
    if (version + 1) % int(set_to or INTERVAL):
        return
    try:
        if set_to or _is_due(table / LOG_FOLDER, version):
            _checkpoint(str(table), options, settings)
    except (DeltaError, OSError) as error:
        log.warning("%s: no checkpoint of the log was made: %s", table, error)


def _checkpoint(uri: str, options: dict[str, str], settings: Mapping[str, str]) -> None:
    table = DeltaTable(uri, storage_options=options)
    table.create_checkpoint()
    if settings.get("delta.enableExpiredLogCleanup", "true") == "true":
        table.cleanup_metadata()


def _is_due(log_folder: Place, version: int) -> bool:
    try:
        last = newest_checkpoint(log_folder)
    except (ValueError, KeyError, TypeError):
        return True  # what is said of it is not whole; the next one is said anew
    if last is None:
        return True
    most = INTERVAL_MAX_IN_A_BUCKET if isinstance(log_folder, RemotePath) else INTERVAL_MAX
    wanted = max(last.actions // ACTIONS_A_COMMIT, INTERVAL)
    return version - last.version >= min(wanted, most)
