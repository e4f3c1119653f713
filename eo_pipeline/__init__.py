"""Exactly-once, batch-incremental pipelines: Kafka to a transactional sink through Spark.

from eo_pipeline import KafkaSource, Pipeline, PostgresSink

Pipeline(name="flights", source=KafkaSource(...), sink=PostgresSink(...)).run()
"""

from eo_pipeline.checkpoint import Counts, EntryId, LedgerEntry, Operation
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import (
    BadRecordError,
    CommitUnknownError,
    ConfigError,
    DataLossError,
    EoPipelineError,
    FencedError,
    LedgerBehindError,
    Loss,
    RefusedError,
    SchemaChangeError,
    SetupError,
    SinkError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
    SparkJobError,
    TransformError,
)
from eo_pipeline.offsets import OffsetRange, TopicPartition
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.report import CheckpointReport, RunReport
from eo_pipeline.sinks.base import CommitOutcome, Guarantee, Sink, SinkSession
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.source.config import (
    KafkaSource,
    StartAtGroup,
    StartAtOffsets,
    StartAtTimestamp,
)
from eo_pipeline.spark import SparkSettings

__all__ = [
    "BadRecordError",
    "CheckpointReport",
    "CommitOutcome",
    "CommitUnknownError",
    "ConfigError",
    "ConsoleSink",
    "Counts",
    "CrashPoint",
    "DataLossError",
    "DeltaSink",
    "EntryId",
    "EoPipelineError",
    "FencedError",
    "Guarantee",
    "KafkaSource",
    "LedgerBehindError",
    "LedgerEntry",
    "Loss",
    "OffsetRange",
    "Operation",
    "Pipeline",
    "PostgresSink",
    "RefusedError",
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
    "StartAtGroup",
    "StartAtOffsets",
    "StartAtTimestamp",
    "TopicPartition",
    "TransformError",
]
