"""OpenLineage events of a run, sent by its own client and configuration.

START at the beginning, RUNNING with each checkpoint, COMPLETE or FAIL at the end (ABORT after an
interruption). A separate thread sends them: an unreachable backend does not delay the run.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from eo_pipeline.boundary import harmless
from eo_pipeline.errors import SetupError, scrubbed
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.observers.failures import kind_of
from eo_pipeline.runs.report import STARTER, CheckpointReport, ObservedRun, Observer
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.tables import TablesSink

log = logging.getLogger(__name__)


class Name(NamedTuple):
    """Namespace and name of a dataset."""

    namespace: str
    name: str


def topic_name(bootstrap_servers: str, topic: str) -> Name:
    """Return the name of a topic, with the first broker as the cluster's."""
    host, _, port = bootstrap_servers.split(",")[0].strip().rpartition(":")
    return Name(f"kafka://{host}:{port}" if host else f"kafka://{port}:9092", topic)


def written_name(sink: Sink) -> Name:
    """Return the name of the sink's table; an unknown kind of store names itself."""
    description = sink.describe()
    kind, host = description["kind"], f"{description.get('host')}:{description.get('port')}"
    if kind == "postgres":
        return Name(f"postgres://{host}", sink.qualified_name)
    if kind in ("mysql", "mariadb"):
        return Name(f"mysql://{host}", sink.qualified_name)
    if kind == "kafka":
        return topic_name(description["bootstrap_servers"], description["table"])
    if kind == "redis":
        return Name(f"redis://{host}", f"{description['database']}.{description['table']}")
    if "uri" in description:
        uri = urlsplit(description["uri"])
        if uri.scheme == "file":
            return Name("file", unquote(uri.path))
        return Name(f"{uri.scheme}://{uri.netloc}", unquote(uri.path).strip("/"))
    return Name(kind, sink.qualified_name)


try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )
    from openlineage.client.facet_v2 import (
        column_lineage_dataset,
        error_message_run,
        input_statistics_input_dataset,
        job_type_job,
        output_statistics_output_dataset,
        parent_run,
        processing_engine_run,
        schema_dataset,
    )
    from openlineage.client.uuid import generate_new_uuid
except ImportError as error:
    raise SetupError(
        f"OPENLINEAGE_* variables or openlineage.yml ask for OpenLineage, and {error.name} is not "
        "installed: pip install 'eo-pipeline[openlineage]'"
    ) from error


#: Producer of the events; a URN, since there is no public page.
_PRODUCER = "urn:eo-pipeline"
_NAMESPACE = "default"

#: Seconds to wait for the backend at the end of a run.
LEAVE_S = 5.0

#: ``namespace/job/run id`` of the parent run, set by OpenLineage's integrations.
_PARENT = "OPENLINEAGE_PARENT_ID"


class LineageEvents(Observer):
    """One run, its topics and its table."""

    def __init__(self, run: ObservedRun) -> None:
        self._run = run
        self._id = str(generate_new_uuid())
        self._sender = _Sender(run.pipeline)
        self._read: dict[str, _Read] = {topic: _Read() for topic in run.source.topics}
        self._rows, self._bytes_out = Counter[str](), 0
        self._columns: dict[str, str] = {}
        self._emit(RunState.START)

    def committed(self, report: CheckpointReport) -> None:
        self._add(report.entry)
        self._columns = {**self._columns, **(report.columns or {})}
        self._emit(RunState.RUNNING)

    def ended(self, error: BaseException | None) -> None:
        if error is None:
            state = RunState.COMPLETE
        else:
            state = RunState.FAIL if kind_of(error) else RunState.ABORT
        self._emit(state, error)
        self._sender.end()

    def _add(self, entry: LedgerEntry) -> None:
        counts, costs = entry.counts, entry.counts.costs
        self._rows.update({"": counts.rows} | {n: t.rows for n, t in counts.tables.items()})
        self._bytes_out += costs.bytes_out if costs else 0
        for r in entry.ranges:
            self._read.setdefault(r.topic, _Read()).offsets += r.span
        if len(self._read) == 1:  # the ledger has only the sum of several topics
            [only] = self._read.values()
            only.records = (only.records or 0) + counts.records
            only.bytes += counts.bytes + (counts.key_bytes or 0)

    def _emit(self, state: RunState, error: BaseException | None = None) -> None:
        self._sender.send(
            RunEvent(
                eventType=state,
                eventTime=datetime.now(UTC).isoformat(),
                run=Run(self._id, self._run_facets(error)),
                job=self._job(),
                inputs=[self._input(topic) for topic in self._read],
                outputs=self._outputs(),
                producer=_PRODUCER,
            )
        )

    def _job(self) -> Job:
        kind = job_type_job.JobTypeJobFacet("BATCH", "EO_PIPELINE", "JOB")
        name = self._run.pipeline
        if self._run.operation != "forward":
            name = f"{name}.{self._run.operation}"
        return Job(_namespace(), name, {"jobType": kind})

    def _run_facets(self, error: BaseException | None) -> dict[str, Any]:
        engine = processing_engine_run.ProcessingEngineRunFacet(
            version("pyspark"), "spark", version("openlineage-python")
        )
        facets: dict[str, Any] = {"processing_engine": engine}
        if error is not None:
            message = f"{type(error).__name__}: {scrubbed(str(error))}"
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON")
        if (parent := _parent()) is not None:
            facets["parent"] = parent
        return facets

    def _input(self, topic: str) -> InputDataset:
        name, read = topic_name(self._run.source.bootstrap_servers, topic), self._read[topic]
        statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=read.records, size=read.bytes or None
        )
        has_count = read.records is not None
        return InputDataset(
            namespace=name.namespace,
            name=name.name,
            inputFacets={"inputStatistics": statistics} if has_count else {},
        )

    def _outputs(self) -> list[OutputDataset]:
        """The table, or each of several; where tables appear, all together."""
        sink = self._run.sink
        if not isinstance(sink, TablesSink) or sink.appearing:
            return [self._output()]
        return [
            OutputDataset(*written_name(member), outputFacets=_written(self._rows[name]))
            for name, member in sink.with_rows.items()
        ]

    def _output(self) -> OutputDataset:
        name = written_name(self._run.sink)
        facets: dict[str, Any] = {}
        if self._columns:
            fields = [
                schema_dataset.SchemaDatasetFacetFields(column, kind)
                for column, kind in self._columns.items()
            ]
            facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
        if lineage := self._column_lineage():
            facets["columnLineage"] = lineage
        return OutputDataset(
            namespace=name.namespace,
            name=name.name,
            facets=facets,
            outputFacets=_written(self._rows[""], self._bytes_out),
        )

    def _column_lineage(self) -> column_lineage_dataset.ColumnLineageDatasetFacet | None:
        """Map each column to the field of its name; None with a transform: lineage unknown."""
        if self._run.transformed or not self._columns:
            return None
        names = [topic_name(self._run.source.bootstrap_servers, topic) for topic in self._read]
        fields = {
            column: column_lineage_dataset.Fields([_field(name, column) for name in names])
            for column in self._columns
            if not column.startswith("_eo_")
        }
        return column_lineage_dataset.ColumnLineageDatasetFacet(fields)


def _written(rows: int, size: int | None = None) -> dict[str, Any]:
    facets = output_statistics_output_dataset
    return {"outputStatistics": facets.OutputStatisticsOutputDatasetFacet(rows, size)}


def _field(name: Name, column: str) -> column_lineage_dataset.InputField:
    identity = column_lineage_dataset.Transformation("DIRECT", "IDENTITY")
    return column_lineage_dataset.InputField(name.namespace, name.name, column, [identity])


class _Read:
    """Counts of one topic; ``records`` is None if only offsets are known."""

    def __init__(self) -> None:
        self.offsets = 0
        self.records: int | None = None
        self.bytes = 0


def _parent() -> parent_run.ParentRunFacet | None:
    """Return the parent run from the environment, or else that of the scheduler."""
    namespace, _, rest = os.environ.get(_PARENT, "").partition("/")
    job, _, run_id = rest.rpartition("/")
    if not job and (run_of_scheduler := STARTER.get()) is not None:
        namespace, (job, run_id) = _namespace(), run_of_scheduler
    if not job:
        return None
    return parent_run.ParentRunFacet(parent_run.Run(run_id), parent_run.Job(namespace, job))


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or _NAMESPACE


class _Sender:
    """Background thread that sends events in their order."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, event: RunEvent) -> None:
        self._events.put(event)

    def end(self) -> None:
        """Wait until all are sent, for :data:`LEAVE_S` at most."""
        self._events.put(None)
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            log.warning(
                "%s: OpenLineage's backend did not take this run's events within %.0f s",
                self._pipeline,
                LEAVE_S,
            )

    def _work(self) -> None:
        with harmless(f"{self._pipeline}: setting up OpenLineage"):
            client = OpenLineageClient()
            is_unreachable = False
            while (event := self._events.get()) is not None:
                if is_unreachable and event.eventType is RunState.RUNNING:
                    continue  # each attempt takes seconds; the final event has the totals
                is_unreachable = True
                with harmless(f"{self._pipeline}: sending an event to OpenLineage"):
                    client.emit(event)
                    is_unreachable = False
            client.close(LEAVE_S)
