"""Audit: re-reads Kafka and compares it with the sink's rows.

The ledger is not trusted: only its offset ranges are used. The records in them, and the rows that
they should have produced, are determined again.

1. **snapshot** (:mod:`snapshot`): read the ledger, then the lineage of the table's rows in one
   snapshot of the table, then the ledger again, to notice a run, a rewind or a replay in between.
2. **ranges** (:mod:`ranges`): find the ranges of the live checkpoints that Kafka still holds.
3. **compare** (:mod:`compare`): one Spark job reads them, applies the transform, and counts rows
   expected and found for each topic, partition, offset and checkpoint. Checkpoints that differ
   are compared again one by one, as their runs read them. :mod:`checksums` compares the values of
   the rows with the checksums in the ledger.
4. **judge** (:mod:`judge`): derive the findings from the counts, the replays that would repair
   them, and the reason if a replay is impossible.

:mod:`preview` compares the rows that a replay would write with the present ones in the same way.
"""

from eo_pipeline import _lazy

# a reader of reports needs no modules of the audit
__all__, __getattr__ = _lazy.exports(__name__)
