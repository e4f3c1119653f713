"""Verbs for tests: run a pipeline in Dagster, and read back what Dagster then knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dagster as dg
from pydantic import Field

from dagster_defs.assets import build_asset
from dagster_defs.checks import build_checks
from dagster_defs.jobs import build_job
from dagster_defs.mirror import DATA_VERSION_TAG, TRANSACTION_TAG
from dagster_defs.names import DagsterPipeline
from dagster_defs.resources import SparkResource
from eo_pipeline.errors import SetupError, SinkUnavailableError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.report import CheckpointReport, RunReport
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
    definitions = dg.Definitions(
        assets=[build_asset(declared)],
        asset_checks=build_checks(declared),
        jobs=[build_job(declared)],
        resources={declared.spark: SparkResource.of(settings).definition()},
    )
    job = definitions.resolve_job_def(declared.job)
    return job.execute_in_process(instance=instance, raise_on_error=False)


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
