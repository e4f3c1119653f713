"""The public face: one pipeline, declared in Python or in one YAML document."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import expandvars
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from eo_pipeline.checkpoint import LedgerEntry, new_transaction_id
from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import ConfigError
from eo_pipeline.recovery import Recovery
from eo_pipeline.report import CheckpointReport, RunReport
from eo_pipeline.runner import Runner
from eo_pipeline.sinks.base import Sink, SinkSession
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.spark import SparkProvider, SparkSettings
from eo_pipeline.stage import Stager
from eo_pipeline.staging import StagingArea

if TYPE_CHECKING:
    from typing import Self


def load_transform(value: Any) -> Any:
    """``package.module:function`` as the function; anything else as it is.

    Raises:
        ValueError: the module or the function does not exist (pydantic names the field).
    """
    if not isinstance(value, str):
        return value
    module_name, colon, attribute = value.partition(":")
    if not colon:
        raise ValueError(f"{value!r} is not of the form package.module:function")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{value!r} cannot be imported: {error}") from error


def _as_sink(value: Any) -> Any:
    return sink_from_config(value) if isinstance(value, Mapping) else value


class Pipeline(BaseModel):
    """Kafka topics, a transform, and the table that follows them exactly once.

    Args:
        name: names the ledger; part of every key. Lower-case letters, digits, ``_`` and ``-``.
        source: what to read.
        sink: where rows and ledger go.
        transform: ``DataFrame -> DataFrame`` on the decoded records, or its import path
            ``package.module:function``.
        lineage: write ``_eo_topic``, ``_eo_partition`` and ``_eo_offset`` with every row. The
            transform must then keep the ``_kafka`` column.
        staging: folder for rows that wait; on a cluster one that driver and executors share.
        inline_records: a batch of at most this many offsets skips the files.
        max_checkpoints: the most checkpoints one run makes.
        spark: where Spark runs; used only when there is something to read.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True
    )

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    source: KafkaSource
    sink: Annotated[Sink, BeforeValidator(_as_sink)]
    transform: Annotated[Callable[..., Any] | None, BeforeValidator(load_transform)] = None
    lineage: bool = True
    staging: Path = Path(".eo/staging")
    inline_records: int = Field(default=10_000, ge=0)
    max_checkpoints: PositiveInt = 1_000
    spark: SparkSettings = SparkSettings()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A pipeline from plain values, as a YAML document holds them.

        Raises:
            ConfigError: names every wrong field, and never shows a value.
        """
        try:
            return cls.model_validate(config)
        except ValidationError as error:
            raise ConfigError(_in_words(error)) from error

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """A pipeline from one YAML document.

        ``${NAME}`` in a text is the environment variable, ``${NAME:-default}`` with a default.

        Raises:
            ConfigError: no such file, not YAML, a variable is not set, or a field is wrong.
        """
        try:
            document = yaml.safe_load(Path(path).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: {error}") from error
        try:
            return cls.from_config(_expanded(document))
        except (ConfigError, expandvars.ExpandvarsException) as error:
            raise ConfigError(f"{path}: {error}") from error

    def run(
        self,
        *,
        run_id: str | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        max_checkpoints: int | None = None,
        spark: SparkProvider | None = None,
        reach: Reach = keep_going,
    ) -> RunReport:
        """Bring the table up to the end offsets Kafka has now.

        Args:
            run_id: stored with every ledger entry; made up if absent.
            on_checkpoint: called after each commit.
            max_checkpoints: stop after this many, fewer than the pipeline's own limit.
            spark: a session to use instead of ``self.spark``; asked for only if needed.
            reach: see :mod:`eo_pipeline.crashpoints`.

        Raises:
            EoPipelineError: one of its kinds; nothing is lost or half-applied.
        """
        limit = self.max_checkpoints
        with self.sink.open(self.name) as session:
            runner = Runner(
                pipeline=self.name,
                source=self.source,
                session=session,
                stager=Stager(self.source, self.sink, self.transform, self.lineage),
                recovery=self._recovery(session),
                spark=spark or self.spark.session,
                reach=reach,
                run_id=run_id or new_transaction_id(),
                inline_records=self.inline_records,
                checkpoints_max=min(max_checkpoints or limit, limit),
                on_checkpoint=on_checkpoint or _no_listener,
            )
            return runner.run()

    def head(self) -> LedgerEntry | None:
        """The newest ledger entry, ``None`` before the first run."""
        with self.sink.open(self.name) as session:
            return session.head()

    def history(self, since: int = 0) -> list[LedgerEntry]:
        """The ledger from version ``since``, oldest first."""
        with self.sink.open(self.name) as session:
            return list(session.history(since))

    def adopt(self, reason: str, *, run_id: str | None = None) -> LedgerEntry | None:
        """Make the sink's present, older state the new head, knowingly.

        For a sink that came back from a backup or failed over: runs refuse with LedgerBehindError
        until this writes an entry on top of what the ledger holds now. Offsets and rows stay as
        they are, and the next run reads on from there. Returns the new head; ``None`` if the
        ledger is empty, so that the next run starts anew.

        Raises:
            ConfigError: the ledger did not go backwards, so that there is nothing to adopt.
        """
        with self.sink.open(self.name) as session:
            return self._recovery(session).adopt(reason, run_id or "")

    def _recovery(self, session: SinkSession) -> Recovery:
        folders = self.sink.staging_folders()
        staging = StagingArea(folders.manifests or self.staging, self.name, folders.rows)
        return Recovery(self.name, session, staging, self.sink.copies_rows)


def _no_listener(report: CheckpointReport) -> None:
    """For callers that read the RunReport instead."""


def _expanded(value: Any) -> Any:
    """Environment variables put into every text of a document; an unset one is an error."""
    if isinstance(value, str):
        return expandvars.expand(value, nounset=True)
    if isinstance(value, Mapping):
        return {key: _expanded(item) for key, item in value.items()}
    return [_expanded(item) for item in value] if isinstance(value, list) else value


def _in_words(error: ValidationError) -> str:
    """One line a field: where it is, what is wrong; never the value."""
    lines = [
        f"  {'.'.join(str(part) for part in issue['loc']) or 'pipeline'}: {issue['msg']}"
        for issue in error.errors(include_input=False, include_url=False)
    ]
    return "the pipeline's configuration is not valid:\n" + "\n".join(lines)
