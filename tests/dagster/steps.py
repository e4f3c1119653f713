"""Verbs for tests: run a pipeline in Dagster, and read back what Dagster then knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dagster as dg
from dagster_shared.record import replace
from pydantic import Field

from eo_pipeline.dagster.assets import build_checkpoints
from eo_pipeline.dagster.definitions import without_topics
from eo_pipeline.dagster.mirror import DATA_VERSION_TAG, TRANSACTION_TAG
from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.dagster.resources import spark_definition
from eo_pipeline.errors import SetupError, SinkUnavailableError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import CheckpointReport, RunReport
from eo_pipeline.spark import SparkSettings


class NoSpark(SparkSettings):
    """Spark on a machine that has none: whoever starts it finds out."""

    def session(self) -> object:  # type: ignore[override]
        raise SetupError("Spark was started")


class DiesOnce(Pipeline):
    """A pipeline whose first run is gone after its commit number ``after`` and before its report:
    what Dagster never hears of.
    """

    after: int
    runs: list[str] = Field(default_factory=list)

    def run(  # type: ignore[override]
        self, *, on_checkpoint: Callable[[CheckpointReport], None], **options: object
    ) -> RunReport:
        first = not self.runs
        self.runs.append("run")

        def committed(report: CheckpointReport) -> None:
            if first and report.entry.version == self.after:
                raise SinkUnavailableError("the process was gone here")
            on_checkpoint(report)

        return super().run(on_checkpoint=committed, **options)  # type: ignore[arg-type]


def materialize(
    declared: DagsterPipeline, instance: dg.DagsterInstance, *, spark: SparkSettings | None = None
) -> dg.ExecuteInProcessResult:
    """One run of the pipeline's job, here."""
    settings = spark or declared.pipeline.spark
    definitions = replace(
        without_topics(declared),
        resources={declared.spark: spark_definition(settings)},
    )
    job = definitions.resolve_job_def(declared.job)
    return job.execute_in_process(instance=instance, raise_on_error=False)


def replay(
    declared: DagsterPipeline,
    instance: dg.DagsterInstance,
    first: int,
    last: int,
    **config: object,
) -> dg.ExecuteInProcessResult:
    """What the UI starts when somebody selects ``first`` to ``last`` and presses Materialize."""
    asset = build_checkpoints(declared)
    return dg.materialize(
        [asset],
        instance=instance,
        resources={declared.spark: spark_definition(declared.pipeline.spark)},
        run_config={"ops": {f"{declared.op}_checkpoints": {"config": config}}},
        tags={
            "dagster/asset_partition_range_start": str(first),
            "dagster/asset_partition_range_end": str(last),
        },
        raise_on_error=False,
    )


def launch(
    declared: DagsterPipeline, instance: dg.DagsterInstance, operation: str, **config: object
) -> dg.ExecuteInProcessResult:
    """One run of the job ``<pipeline>_<operation>``, with what somebody filled in."""
    job = without_topics(declared).resolve_job_def(f"{declared.identifier}_{operation}")
    return job.execute_in_process(
        run_config=config,
        instance=instance,
        raise_on_error=False,
    )


def failure(result: dg.ExecuteInProcessResult, step: str) -> str:
    """The sentence with which ``step`` failed."""
    assert not result.success
    data = result.failure_data_for_node(step)
    assert data is not None
    told = data.user_failure_data
    return str(told.description if told else data.error)


def keys(instance: dg.DagsterInstance, declared: DagsterPipeline) -> list[int]:
    """The checkpoints that can be picked, in Dagster's order."""
    return [int(key) for key in instance.get_dynamic_partitions(declared.partitions)]


def replayed(instance: dg.DagsterInstance, declared: DagsterPipeline) -> list[tuple[str, int]]:
    """Partition and data version of every event of the asset of checkpoints, oldest first."""
    found = events(instance, declared.checkpoints)
    return [(str(e.partition), int((e.tags or {})[DATA_VERSION_TAG])) for e in found]


def events(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
    """Every materialization of ``key``, oldest first."""
    page = instance.fetch_materializations(key, limit=1_000, ascending=True)
    return [e for record in page.records if (e := record.asset_materialization) is not None]


def versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[int]:
    """The data versions Dagster shows for ``key``, oldest first."""
    return [int((event.tags or {})[DATA_VERSION_TAG]) for event in events(instance, key)]


def transactions(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[str]:
    """The ledger transactions that Dagster's events of ``key`` report, oldest first."""
    return [(event.tags or {})[TRANSACTION_TAG] for event in events(instance, key)]


def value(metadata: Mapping[str, dg.MetadataValue], key: str) -> object:
    """The plain value of one metadata entry."""
    return metadata[key].value


def log_lines(result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> str:
    """What the run logged, for people."""
    return "\n".join(entry.user_message for entry in instance.all_logs(result.run_id))
