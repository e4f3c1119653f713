"""Whether the table is still the one that the ledger speaks for, and used as before. Pure, no I/O.

Names stand for things. What an entry was committed into is in it by identity (``Identity.sink``):
what the table said of itself, and the manner in which rows went in. A table that was dropped and
made anew has the same name and none of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from eo_pipeline.errors import ConfigError, LedgerDamagedError, TableReplacedError
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry

#: What a table says of itself: the ledger whose rows it was made for.
LEDGER = "ledger"

#: What is said of the version that comes next by the ledger, and has rows already.
LATER_ROWS = "is missing, and the table holds rows of it or of later ones"

#: The parts of the manner; everything else that is recorded is the table's.
MANNER = frozenset({"mode", "key", "format"})


def refuse_rows_without_ledger(
    pipeline: str, head: LedgerEntry | None, was_written: Callable[[], bool]
) -> None:
    """Return if a pipeline that stands before its first checkpoint has no rows in the table. Asked
    only then.

    Raises:
        LedgerDamagedError: it has: the ledger was lost, and beginning anew would double them.
    """
    if head is not None and head.version > START_VERSION:
        return
    if was_written():
        stands = "ends at version 0" if head else "is empty"
        found = f"is missing: the ledger {stands}, and the store holds rows of checkpoints"
        raise LedgerDamagedError(pipeline, START_VERSION + 1 if head else START_VERSION, found)


def refuse_another_table(head: LedgerEntry, now: Mapping[str, str] | None) -> None:
    """Return if the table, which says of itself what is in ``now`` (nothing: it is not there; None:
    it cannot tell), is the one that the rows up to ``head`` went into.

    Raises:
        TableReplacedError: it is not.
    """
    written = head.counts.rows_total
    if now is None or written <= 0:
        return
    if not now:
        raise TableReplacedError(head.pipeline, written, "it, or its checkpoint column, is gone")
    recorded = {k: v for k, v in head.identity.sink.items() if k not in MANNER}
    if now.get(LEDGER, head.ledger_id) != head.ledger_id:
        raise TableReplacedError(
            head.pipeline, written, f"it was made for another ledger, {now[LEDGER]}"
        )
    changed = [f"{k} {v}, now {now.get(k, 'none')}" for k, v in recorded.items() if now.get(k) != v]
    if changed:
        raise TableReplacedError(
            head.pipeline, written, f"it was dropped and made anew ({', '.join(changed)})"
        )


def refuse_another_manner(head: LedgerEntry, manner: Mapping[str, str]) -> None:
    """Return if rows go in as those up to ``head`` did.

    Raises:
        ConfigError: they would not, and what the ledger says of the rows would be wrong.
    """
    recorded = {k: v for k, v in head.identity.sink.items() if k in MANNER}
    changed = [k for k, v in recorded.items() if manner.get(k) != v]
    if head.counts.rows_total > 0 and changed:
        was = ", ".join(f"{k} {recorded[k]}" for k in changed)
        now = ", ".join(f"{k} {manner.get(k, 'none')}" for k in changed)
        raise ConfigError(
            f"sink.{changed[0]}: the rows of pipeline {head.pipeline!r} were written with {was}, "
            f"and the sink says {now}. Under one ledger that may change only while there are no "
            "rows: taking them back would be wrong. Nothing was read or written. Put it back; or "
            "begin a new pipeline into a new table (fork)."
        )


def identified(
    entry: LedgerEntry, now: Mapping[str, str] | None, manner: Mapping[str, str]
) -> LedgerEntry:
    """``entry`` with what it is committed into. What a table does not say any more is kept only
    while there is no table to say it.
    """
    said = entry.identity.sink if now is None else now
    table = {k: v for k, v in said.items() if k not in MANNER}
    if LEDGER in table:  # of another one, which has no rows there any more, it is taken over
        table[LEDGER] = entry.ledger_id
    return replace(entry, identity=replace(entry.identity, sink={**table, **manner}))
