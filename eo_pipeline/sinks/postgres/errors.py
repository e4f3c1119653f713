"""What PostgreSQL's errors mean for a checkpoint, by SQLSTATE (PostgreSQL manual, appendix A)."""

from __future__ import annotations

import re
from typing import NamedTuple

import psycopg

from eo_pipeline.errors import ConfigError, EoPipelineError, RefusedError, SinkUnavailableError

#: Classes that say nothing against the rows: the same transaction may succeed later. Connection,
#: transaction state (read-only standby, timeouts), serialization and deadlocks, resources, locks,
#: operator (shutdown, cancel), system, internal.
_LATER = frozenset({"08", "25", "40", "53", "55", "57", "58", "XX"})

#: ... except that a malformed binary value is reported as a protocol violation.
_MALFORMED_VALUE = "08P01"

#: Somebody else created the table since it was found absent.
_JUST_CREATED = "42P07"
_CATALOG = "pg_catalog"

#: Codes and classes, the longer first; what a person can do about it.
_REMEDIES = {
    "22021": "Text in PostgreSQL cannot hold the NUL character or bytes that are not UTF-8: "
    "remove them in the transform.",
    "22P05": "The text has characters that the database's encoding, or JSON in it, cannot hold: "
    "remove them in the transform.",
    "22": "Correct the values in the transform, or widen the column.",
    "23": "Filter or repair the rows in the transform, or change the constraint.",
    "42501": "Grant the role what it lacks.",
    "25006": "This server takes no writes: it is a standby, or set to read-only.",
    "25P04": "Raise sink.transaction_timeout, or make checkpoints smaller.",
    "53100": "Free disk space on the database server.",
    "53300": "Raise max_connections, or close connections.",
    "55P03": "Another transaction holds the table longer than sink.lock_timeout; "
    "pg_stat_activity and pg_locks show which.",
    "57014": "A timeout or a person cancelled it.",
}

#: What COPY says about the place: ``COPY flights, line 3, column tailnum: "N1"``.
_COPY_COLUMN = re.compile(r"^COPY .+, line \d+, column ([^:]+)", re.MULTILINE)

#: Errors whose detail names a key, not a whole row.
_SHORT_DETAIL = frozenset({"23503", "23505", "23P01"})


class Diagnosis(NamedTuple):
    """The parts of a database error worth showing."""

    sqlstate: str | None
    message: str
    column: str | None
    constraint: str | None

    @classmethod
    def of(cls, error: psycopg.Error) -> Diagnosis:
        diag = error.diag
        place = _COPY_COLUMN.search(diag.context or "")
        detail = f": {diag.message_detail}" if error.sqlstate in _SHORT_DETAIL else ""
        return cls(
            sqlstate=error.sqlstate,
            message=" ".join((diag.message_primary or str(error)).split()).rstrip(".") + detail,
            column=diag.column_name or (place[1] if place else None),
            constraint=diag.constraint_name,
        )

    def __str__(self) -> str:
        named = {
            "SQLSTATE": self.sqlstate,
            "column": self.column,
            "constraint": self.constraint,
        }
        places = [f"{name} {value}" for name, value in named.items() if value]
        return f"{self.message} ({', '.join(places)})" if places else self.message

    @property
    def remedy(self) -> str:
        code = self.sqlstate or ""
        return _REMEDIES.get(code) or _REMEDIES.get(code[:2], "")


def is_transient(error: psycopg.Error) -> bool:
    """True if ``error`` says nothing about the rows or the configuration."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if error.sqlstate == _JUST_CREATED or error.diag.schema_name == _CATALOG:
        return True
    return error.sqlstate[:2] in _LATER and error.sqlstate != _MALFORMED_VALUE


def while_publishing(error: psycopg.Error, table: str) -> EoPipelineError:
    """What ``error``, met before COMMIT was sent, means for rows on their way into ``table``."""
    found = Diagnosis.of(error)
    if is_transient(error):
        return SinkUnavailableError(
            f"{table}: PostgreSQL could not take the rows just now: {found}. "
            f"Nothing was written; the next run tries again. {found.remedy}".rstrip()
        )
    return RefusedError(
        f"{table}: PostgreSQL refused the rows: {found}. "
        f"Nothing was written. {found.remedy}".rstrip()
    )


def while_opening(error: psycopg.Error, table: str) -> EoPipelineError:
    """What ``error``, met before anything was planned, means."""
    found = Diagnosis.of(error)
    if is_transient(error):
        return SinkUnavailableError(
            f"{table}: PostgreSQL cannot be used just now: {found}. {found.remedy}".rstrip()
        )
    return ConfigError(
        f"{table}: PostgreSQL does not let this pipeline work there: {found}. "
        f"{found.remedy}".rstrip()
    )
