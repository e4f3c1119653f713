"""Exactly-once, batch-incremental pipelines: Kafka to a transactional sink through Spark.

from eo_pipeline import KafkaSource, Pipeline, PostgresSink

Pipeline(name="flights", source=KafkaSource(...), sink=PostgresSink(...)).run()
"""

from typing import TYPE_CHECKING

from eo_pipeline import _lazy

if TYPE_CHECKING:
    from eo_pipeline.audit import (
        AuditReport,
        CheckpointAudit,
        CheckpointPreview,
        Difference,
        Finding,
        FindingKind,
        Repair,
        ReplayPreview,
        RowExample,
    )
    from eo_pipeline.crashpoints import CrashPoint
    from eo_pipeline.errors import (
        BadRecordError,
        CommitUnknownError,
        CompactedError,
        ConfigError,
        DamagedError,
        DataLossError,
        EoPipelineError,
        FencedError,
        GoingBackError,
        LedgerBehindError,
        LedgerDamagedError,
        Loss,
        ManifestDamagedError,
        NothingToDoError,
        OpenTransactionError,
        PastGoneError,
        PrunedError,
        RangesGoneError,
        RefusedError,
        RegistryUnavailableError,
        SchemaChangeError,
        SetupError,
        SinkError,
        SinkUnavailableError,
        SourceError,
        SourceUnavailableError,
        SparkJobError,
        SparkUnavailableError,
        StalePlanError,
        TableReplacedError,
        TableRolledBackError,
        TransformError,
        UnexpectedError,
        UnknownCheckpointError,
    )
    from eo_pipeline.kafka.source import KafkaSource, StartAtGroup, StartAtOffsets, StartAtTimestamp
    from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
    from eo_pipeline.ledger.history import Checkpoint
    from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
    from eo_pipeline.operations.accept_loss import AcceptLossPlan
    from eo_pipeline.operations.as_of import AsOf
    from eo_pipeline.operations.fork import ForkPlan
    from eo_pipeline.operations.maintain import MaintenanceReport
    from eo_pipeline.operations.plan import ChangePlan, ChangeReport
    from eo_pipeline.operations.repair import AdoptPlan, ResetPlan
    from eo_pipeline.operations.replay import ReplayPlan
    from eo_pipeline.operations.rewind import RewindPlan
    from eo_pipeline.operations.status import RunPlan, Status
    from eo_pipeline.pipeline import Pipeline
    from eo_pipeline.runs.report import CheckpointReport, RunReport
    from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
    from eo_pipeline.sinks.config import Guarantee, Sink
    from eo_pipeline.sinks.console import ConsoleSink
    from eo_pipeline.sinks.delta import DeltaSink
    from eo_pipeline.sinks.iceberg import IcebergSink
    from eo_pipeline.sinks.kafka import KafkaSink
    from eo_pipeline.sinks.mysql import MySqlSink
    from eo_pipeline.sinks.parquet import ParquetSink
    from eo_pipeline.sinks.postgres import PostgresSink
    from eo_pipeline.sinks.redis import RedisSink
    from eo_pipeline.sinks.session import CommitOutcome, SinkSession
    from eo_pipeline.spark import SparkSettings

__all__ = [
    "AcceptLossPlan",
    "AdoptPlan",
    "AsOf",
    "AuditReport",
    "BadRecordError",
    "ChangePlan",
    "ChangeReport",
    "Checkpoint",
    "CheckpointAudit",
    "CheckpointPreview",
    "CheckpointReport",
    "CommitOutcome",
    "CommitUnknownError",
    "CompactedError",
    "ConfigError",
    "ConsoleSink",
    "Counts",
    "CrashPoint",
    "DamagedError",
    "DataLossError",
    "DeltaSink",
    "Difference",
    "EntryId",
    "EoPipelineError",
    "FencedError",
    "Finding",
    "FindingKind",
    "ForkPlan",
    "GoingBackError",
    "Guarantee",
    "IcebergSink",
    "KafkaSink",
    "KafkaSource",
    "LedgerBehindError",
    "LedgerDamagedError",
    "LedgerEntry",
    "Loss",
    "Maintenance",
    "MaintenanceReport",
    "ManifestDamagedError",
    "MySqlSink",
    "NothingToDoError",
    "OffsetRange",
    "OpenTransactionError",
    "Operation",
    "ParquetSink",
    "PastGoneError",
    "Pipeline",
    "PostgresSink",
    "PrunedError",
    "RangesGoneError",
    "RedisSink",
    "RefusedError",
    "RegistryUnavailableError",
    "Repair",
    "ReplayPlan",
    "ReplayPreview",
    "ResetPlan",
    "RewindPlan",
    "RowExample",
    "RunPlan",
    "RunReport",
    "SchemaChangeError",
    "SetupError",
    "Sink",
    "SinkError",
    "SinkSession",
    "SinkUnavailableError",
    "SourceError",
    "SourceUnavailableError",
    "SparkJobError",
    "SparkSettings",
    "SparkUnavailableError",
    "StalePlanError",
    "StartAtGroup",
    "StartAtOffsets",
    "StartAtTimestamp",
    "Status",
    "TableReplacedError",
    "TableRolledBackError",
    "TopicPartition",
    "TransformError",
    "UnexpectedError",
    "UnknownCheckpointError",
    "Upkeep",
]

#: A command needs few of them.
_HOMES = {
    "eo_pipeline.audit": (
        "AuditReport",
        "CheckpointAudit",
        "CheckpointPreview",
        "Difference",
        "Finding",
        "FindingKind",
        "Repair",
        "ReplayPreview",
        "RowExample",
    ),
    "eo_pipeline.crashpoints": ("CrashPoint",),
    "eo_pipeline.errors": (
        "BadRecordError",
        "CommitUnknownError",
        "CompactedError",
        "ConfigError",
        "DamagedError",
        "DataLossError",
        "EoPipelineError",
        "FencedError",
        "GoingBackError",
        "LedgerBehindError",
        "LedgerDamagedError",
        "Loss",
        "ManifestDamagedError",
        "NothingToDoError",
        "OpenTransactionError",
        "PastGoneError",
        "PrunedError",
        "RangesGoneError",
        "RefusedError",
        "RegistryUnavailableError",
        "SchemaChangeError",
        "SetupError",
        "SinkError",
        "SinkUnavailableError",
        "SourceError",
        "SourceUnavailableError",
        "SparkJobError",
        "SparkUnavailableError",
        "StalePlanError",
        "TableReplacedError",
        "TableRolledBackError",
        "TransformError",
        "UnexpectedError",
        "UnknownCheckpointError",
    ),
    "eo_pipeline.kafka.source": (
        "KafkaSource",
        "StartAtGroup",
        "StartAtOffsets",
        "StartAtTimestamp",
    ),
    "eo_pipeline.ledger.entry": (
        "Counts",
        "EntryId",
        "LedgerEntry",
        "Operation",
    ),
    "eo_pipeline.ledger.history": ("Checkpoint",),
    "eo_pipeline.ledger.offsets": (
        "OffsetRange",
        "TopicPartition",
    ),
    "eo_pipeline.operations.accept_loss": ("AcceptLossPlan",),
    "eo_pipeline.operations.as_of": ("AsOf",),
    "eo_pipeline.operations.fork": ("ForkPlan",),
    "eo_pipeline.operations.maintain": ("MaintenanceReport",),
    "eo_pipeline.operations.plan": (
        "ChangePlan",
        "ChangeReport",
    ),
    "eo_pipeline.operations.repair": (
        "AdoptPlan",
        "ResetPlan",
    ),
    "eo_pipeline.operations.replay": ("ReplayPlan",),
    "eo_pipeline.operations.rewind": ("RewindPlan",),
    "eo_pipeline.operations.status": (
        "RunPlan",
        "Status",
    ),
    "eo_pipeline.pipeline": ("Pipeline",),
    "eo_pipeline.runs.report": (
        "CheckpointReport",
        "RunReport",
    ),
    "eo_pipeline.sinks.capabilities": (
        "Maintenance",
        "Upkeep",
    ),
    "eo_pipeline.sinks.config": (
        "Guarantee",
        "Sink",
    ),
    "eo_pipeline.sinks.console": ("ConsoleSink",),
    "eo_pipeline.sinks.delta": ("DeltaSink",),
    "eo_pipeline.sinks.iceberg": ("IcebergSink",),
    "eo_pipeline.sinks.kafka": ("KafkaSink",),
    "eo_pipeline.sinks.mysql": ("MySqlSink",),
    "eo_pipeline.sinks.parquet": ("ParquetSink",),
    "eo_pipeline.sinks.postgres": ("PostgresSink",),
    "eo_pipeline.sinks.redis": ("RedisSink",),
    "eo_pipeline.sinks.session": (
        "CommitOutcome",
        "SinkSession",
    ),
    "eo_pipeline.spark": ("SparkSettings",),
}

__getattr__ = _lazy.finder(__name__, _HOMES)
