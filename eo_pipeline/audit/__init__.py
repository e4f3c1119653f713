"""Exactly once, proved from outside: Kafka is read again and compared with the sink's rows.

The ledger is not trusted. It only says which offset ranges each checkpoint read; what they hold,
and which rows that should have made, is found out anew.

1. **snapshot** (:mod:`snapshot`): the ledger, then where the table's rows came from, read in one
   snapshot of the table, then the ledger again, so that a run, a rewind or a replay in between is
   noticed.
2. **ranges** (:mod:`ranges`): which of the live checkpoints' ranges Kafka still holds.
3. **compare** (:mod:`compare`): one Spark job reads them, applies the transform, and counts rows
   expected and found for each topic, partition, offset and checkpoint. Checkpoints that differ
   are compared again one by one, as their runs read them.
4. **judge** (:mod:`judge`, :mod:`kafka_records`): what the counts mean.
5. **repair** (:mod:`repair`): the replays that would put it right, and why one cannot.

:mod:`preview` compares in the same way what a replay would make of rows with those that are there.
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

# whoever looks at a report needs none of what makes one
__getattr__ = _lazy.finder(__name__, _HOMES)
