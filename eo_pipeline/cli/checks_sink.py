"""What the doctor asks the sink: does it answer, may rows be written, is the ledger sane?"""

from __future__ import annotations

import os
from pathlib import Path

from eo_pipeline.cli.checks import Check, examined, fail, ok, skipped, warn
from eo_pipeline.cli.output import duration, number
from eo_pipeline.errors import (
    EoPipelineError,
    LedgerDamagedError,
    NothingToDoError,
    TableReplacedError,
)
from eo_pipeline.ledger.contiguity import contiguity_errors
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.run.status import Status
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.sql.ledger import LEDGER_TABLE
from eo_pipeline.source.transactions import said_of

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
        because = "the sink does not answer"
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
        return warn("write", f"a {sink.describe()['kind']} sink cannot be asked", remedy)
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
        remedy = "Somebody changed the ledger by hand. Bring it back from a backup; run `eo audit`."
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
        return ok("witnesses", "the ledger holds every commit this machine remembers")
    named = ", ".join(map(str, plan.lost_versions))
    remedy = "Bring the newer state of the sink back; or go on from this one: `eo adopt`."
    return fail("witnesses", f"committed before and not in the ledger: {named}", remedy)


def _promises(pipeline: Pipeline) -> Check:
    try:
        plan = pipeline.plan_set_aside()
    except NothingToDoError:
        return ok("promises", "whatever was promised in staging and is not kept yet can be read")
    said = "; ".join(map(str, plan.damages))
    return fail("promises", said, "Bring the file back as it was; or set it aside: `eo set-aside`.")


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
