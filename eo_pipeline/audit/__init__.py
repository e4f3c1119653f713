"""Audit: re-reads Kafka and compares it with the sink's rows.

The ledger is not trusted: only its offset ranges are used. The records in them, and the rows that
they should have produced, are determined again.

1. **snapshot** (:mod:`snapshot`): read the ledger, then the lineage of the table's rows in one
   snapshot of the table, then the ledger again, to notice a run, a rewind or a replay in between.
2. **ranges** (:mod:`ranges`): find the ranges of the live checkpoints that Kafka still holds.
3. **compare** (:mod:`compare`): one Spark job reads them, applies the transform, and counts rows
   expected and found for each topic, partition, offset and checkpoint. Checkpoints that differ
   are compared again one by one, as their runs read them.
4. **judge** (:mod:`judge`): derive the findings from the counts, the replays that would repair
   them, and the reason if a replay is impossible.

:mod:`preview` compares the rows that a replay would write with the present ones in the same way.
"""

from typing import TYPE_CHECKING

from eo_pipeline import _lazy

if TYPE_CHECKING:
    from eo_pipeline.audit.audit import Audit
    from eo_pipeline.audit.preview import CheckpointPreview, Difference, ReplayPreview, RowExample
    from eo_pipeline.audit.report import AuditReport, CheckpointAudit, Finding, FindingKind, Repair

__all__ = [
    "Audit",
    "AuditReport",
    "CheckpointAudit",
    "CheckpointPreview",
    "Difference",
    "Finding",
    "FindingKind",
    "Repair",
    "ReplayPreview",
    "RowExample",
]

_HOMES = {
    "eo_pipeline.audit.audit": ("Audit",),
    "eo_pipeline.audit.preview": (
        "CheckpointPreview",
        "Difference",
        "ReplayPreview",
        "RowExample",
    ),
    "eo_pipeline.audit.report": (
        "AuditReport",
        "CheckpointAudit",
        "Finding",
        "FindingKind",
        "Repair",
    ),
}

# a reader of reports needs no modules of the audit
__getattr__ = _lazy.finder(__name__, _HOMES)
