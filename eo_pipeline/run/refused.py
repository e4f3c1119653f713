"""Records whose rows only the store can refuse: known when it did, and set aside by policy.

What the store takes is looked at while rows are staged (:mod:`.unfit`), as far as that can be said
in Spark. What only the store knows, the form of a uuid, what a CHECK lets through, shows when the
rows are published. Then it is asked which rows those are, and their ranges are staged once more,
under another transaction id, with the records marked bad.
"""

from __future__ import annotations

from dataclasses import replace

from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import REFUSED, Counts, LedgerEntry, new_transaction_id
from eo_pipeline.run.transaction import SinkTransaction
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.source.config import KafkaSource


def without_refused(
    transaction: SinkTransaction,
    error: RefusedError,
    session: SinkSession,
    source: KafkaSource,
    sink: Sink,
) -> LedgerEntry:
    """The entry of ``transaction`` to be staged once more, without the records whose rows were
    refused with ``error``.

    Raises:
        RefusedError: ``error`` itself, if it is not of rows that the store can name, or if they
            were set aside already.
        BadRecordError: by the source's policy, with one of the records.
    """
    entry = transaction.entry
    if not entry.ranges or REFUSED in entry.details:
        raise error
    lenient = source.on_bad_record == "dead_letter"
    most = source.dead_letter_limit if lenient else 0
    records = session.refused_records(error, transaction.output, most + 1)
    if not records:
        raise error
    if len(records) > most:
        # only now, because it takes pyspark
        from eo_pipeline.run.unfit import UnfitRows, refused

        remedy = f"More than source.dead_letter_limit ({most})" if lenient else ""
        example = {**records[0], "reason": records[0]["error"]}
        raise refused(UnfitRows(len(records), example), source, sink, remedy) from error
    return replace(
        entry,
        transaction_id=new_transaction_id(),
        counts=Counts(rows_total=entry.counts.rows_total - entry.counts.rows),
        details={**entry.details, REFUSED: records},
    )
