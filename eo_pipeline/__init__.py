"""Exactly-once, batch-incremental pipelines: Kafka to a transactional sink through Spark.

from eo_pipeline import KafkaSource, Pipeline, PostgresSink

Pipeline(name="flights", source=KafkaSource(...), sink=PostgresSink(...)).run()
"""

from typing import TYPE_CHECKING

from eo_pipeline import on_demand

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
    from eo_pipeline.ledger.branch import Checkpoint
    from eo_pipeline.ledger.entry import Counts, EntryId, LedgerEntry, Operation
    from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
    from eo_pipeline.pipeline import Pipeline
    from eo_pipeline.run.accept_loss import AcceptLossPlan
    from eo_pipeline.run.adopt import AdoptPlan
    from eo_pipeline.run.as_of import AsOf
    from eo_pipeline.run.fork import ForkPlan
    from eo_pipeline.run.maintain import MaintenanceReport
    from eo_pipeline.run.plans import ChangePlan, ChangeReport
    from eo_pipeline.run.replay import ReplayPlan
    from eo_pipeline.run.reports import CheckpointReport, RunReport
    from eo_pipeline.run.reset import ResetPlan
    from eo_pipeline.run.rewind import RewindPlan
    from eo_pipeline.run.status import RunPlan, Status
    from eo_pipeline.sinks.config import Guarantee, Sink
    from eo_pipeline.sinks.console import ConsoleSink
    from eo_pipeline.sinks.delta import DeltaSink
    from eo_pipeline.sinks.iceberg import IcebergSink
    from eo_pipeline.sinks.kafka import KafkaSink
    from eo_pipeline.sinks.maintenance import Maintenance, Upkeep
    from eo_pipeline.sinks.mysql import MySqlSink
    from eo_pipeline.sinks.parquet import ParquetSink
    from eo_pipeline.sinks.postgres import PostgresSink
    from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
    from eo_pipeline.sinks.redis import RedisSink
    from eo_pipeline.source.config import KafkaSource
    from eo_pipeline.source.starts import StartAtGroup, StartAtOffsets, StartAtTimestamp
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
    "eo_pipeline.ledger.branch": ("Checkpoint",),
    "eo_pipeline.ledger.entry": (
        "Counts",
        "EntryId",
        "LedgerEntry",
        "Operation",
    ),
    "eo_pipeline.ledger.offsets": (
        "OffsetRange",
        "TopicPartition",
    ),
    "eo_pipeline.pipeline": ("Pipeline",),
    "eo_pipeline.run.accept_loss": ("AcceptLossPlan",),
    "eo_pipeline.run.adopt": ("AdoptPlan",),
    "eo_pipeline.run.as_of": ("AsOf",),
    "eo_pipeline.run.fork": ("ForkPlan",),
    "eo_pipeline.run.maintain": ("MaintenanceReport",),
    "eo_pipeline.run.plans": (
        "ChangePlan",
        "ChangeReport",
    ),
    "eo_pipeline.run.replay": ("ReplayPlan",),
    "eo_pipeline.run.reports": (
        "CheckpointReport",
        "RunReport",
    ),
    "eo_pipeline.run.reset": ("ResetPlan",),
    "eo_pipeline.run.rewind": ("RewindPlan",),
    "eo_pipeline.run.status": (
        "RunPlan",
        "Status",
    ),
    "eo_pipeline.sinks.config": (
        "Guarantee",
        "Sink",
    ),
    "eo_pipeline.sinks.console": ("ConsoleSink",),
    "eo_pipeline.sinks.delta": ("DeltaSink",),
    "eo_pipeline.sinks.iceberg": ("IcebergSink",),
    "eo_pipeline.sinks.kafka": ("KafkaSink",),
    "eo_pipeline.sinks.maintenance": (
        "Maintenance",
        "Upkeep",
    ),
    "eo_pipeline.sinks.mysql": ("MySqlSink",),
    "eo_pipeline.sinks.parquet": ("ParquetSink",),
    "eo_pipeline.sinks.postgres": ("PostgresSink",),
    "eo_pipeline.sinks.protocol": (
        "CommitOutcome",
        "SinkSession",
    ),
    "eo_pipeline.sinks.redis": ("RedisSink",),
    "eo_pipeline.source.config": ("KafkaSource",),
    "eo_pipeline.source.starts": (
        "StartAtGroup",
        "StartAtOffsets",
        "StartAtTimestamp",
    ),
    "eo_pipeline.spark": ("SparkSettings",),
}

__getattr__ = on_demand.finder(__name__, _HOMES)
