"""The base of every sink's configuration: frozen, from Python or YAML, without I/O."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator

from eo_pipeline.config.settings import Settings
from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError, to_install
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.columns import ColumnLimits, JsonRows, reason
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.sinks.upsert import UpsertRule
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


class Guarantee(StrEnum):
    """Number of times that a record is visible in the sink, whatever crashes."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    NONE = "none"


class StagingFolders(NamedTuple):
    """Folders in which a sink wants attempts staged; ``None``: the pipeline's default.

    ``manifests`` holds the manifests. ``rows`` holds the Parquet files: for a lake sink a folder of
    the table itself, because there the staged files become the table; of several tables ``tables``
    has the folder of each.
    """

    manifests: Place | None = None
    rows: Place | None = None
    tables: Mapping[str, Place] = MappingProxyType({})


class Sink(Settings, ABC):
    """Destination of rows and ledger. Configuration only: creating one touches no network.

    Class attributes say what the store can promise:

    - ``guarantee``: see :class:`Guarantee`.
    - ``copies_rows``: publishing copies the staged rows into the store, so that staged files may
      be deleted once the ledger holds the entry. False where the staged files become the table.
    - ``marks_files``: the schema of a staged file says more of its columns than their names and
      types, and :meth:`SinkSession.as_staged` what.
    - ``session_class``: where the :class:`SinkSession` is, ``package.module:Class``; imported by
      :meth:`open` only, so that a configuration needs no driver.
    - ``tables_session_class``: likewise, the session of several tables that one transaction fills;
      None: the store has no such transaction, for the reason ``no_tables_reason``.
    - ``table_field``: the field that names the table; with several tables the document has none.
    - ``tables_within``: the field that names what several tables are in, if there is one.
    - ``not_in_names``: what a table's name has ``_`` for, if it comes from a value.
    - ``of_one_table``: fields that one of several tables may have otherwise than the others.
    - ``needed_without_rows``: fields that the one without rows has although it needs none.
    - ``is_of_one_pipeline``: True if no two pipelines have a table in common.
    - ``extra``: the extra of this package that brings the store's driver, if one does.
    """

    guarantee: ClassVar[Guarantee]
    copies_rows: ClassVar[bool] = True
    marks_files: ClassVar[bool] = False
    session_class: ClassVar[str]
    tables_session_class: ClassVar[str | None] = None
    no_tables_reason: ClassVar[str] = "one transaction of this store fills one table"
    table_field: ClassVar[str] = "table"
    tables_within: ClassVar[str | None] = None
    not_in_names: ClassVar[re.Pattern[str]] = re.compile(r"\W")
    of_one_table: ClassVar[frozenset[str]] = frozenset()
    needed_without_rows: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    is_of_one_pipeline: ClassVar[bool] = False
    extra: ClassVar[str | None] = None

    @property
    def needs_agreement(self) -> bool:
        """True if the form of rows is agreed with another system; :meth:`SinkSession.agree` is then
        called in every checkpoint, before Spark's job.
        """
        return False

    def agreed(self, agreement: Any) -> Sink:  # noqa: ARG002
        """Return a copy that projects rows by the ``agreement`` of :meth:`SinkSession.agree`."""
        return self

    def kafka_topics(self, pipeline: str) -> tuple[str, frozenset[str]]:  # noqa: ARG002
        """The Kafka topics that ``pipeline`` writes to, and the address of their cluster."""
        return "", frozenset()

    def open(self, pipeline: str) -> SinkSession:
        """Connect to the store for one pipeline: ``session_class(self, pipeline)``.

        Called once per run, before anything is planned. Must not create or change anything a
        reader of the store can see, except an empty ledger.

        Raises:
            SinkUnavailableError: the store does not answer.
            ConfigError: the store answers and the configuration cannot work there; or the store's
                driver is not installed.
        """
        session = self._session_class()
        with self._opening():
            opened: SinkSession = session(self, pipeline)
        opened.manner = self.manner()
        return opened

    @property
    def store(self) -> Hashable | None:
        """Equal for sinks whose ledgers one :meth:`heads` can ask for; None: only its own."""
        return None

    def heads(self, pipelines: Collection[str]) -> dict[str, LedgerEntry | None]:
        """Return the newest entry of each of ``pipelines``, whose sinks have the same
        :attr:`store`; for read-only callers. Nothing is verified.

        Raises:
            SinkUnavailableError, ConfigError: see :meth:`open`.
        """
        heads = {}
        for pipeline in pipelines:
            with self.open(pipeline) as session:
                heads[pipeline] = session.head()
        return heads

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Translate the driver's exceptions of the block into errors of this package."""
        try:
            yield
        except EoPipelineError:
            raise
        except Exception as error:
            raise self._not_opened(error) from error

    def _session_class(self) -> Any:
        """The class named by :attr:`session_class`."""
        return self._imported(self.session_class)

    def _imported(self, path: str) -> Any:
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if self.extra is None or (error.name or "").startswith("eo_pipeline"):
                raise
            raise ConfigError(
                f"sink.type: {type(self).__name__} needs the package {error.name}: "
                f"{to_install(self.extra)}"
            ) from error

    def _not_opened(self, error: Exception) -> EoPipelineError:
        """Return the error for an exception of connecting that the sink does not explain itself."""
        if isinstance(error, ConnectionError | TimeoutError):
            return SinkUnavailableError(f"{self.table_name} does not answer: {error}")
        missing = isinstance(error, ImportError) or type(error).__name__ == "NotInstalledError"
        remedy = "Install what it needs" if missing else "Correct the sink's settings"
        return ConfigError(
            f"sink: {type(self).__name__} cannot be opened: {type(error).__name__}: {error}. "
            f"{remedy}."
        )

    def manner(self) -> Mapping[str, str]:
        """Return the settings of writing that must not change under one ledger: any of ``mode``,
        ``key`` and ``format``.
        """
        return {}

    @property
    @abstractmethod
    def table_name(self) -> str:
        """The table as a person would write it, for messages and metadata."""

    @classmethod
    def table_fields(cls, fields: Mapping[str, Any], pipeline: str, name: str) -> dict[str, Any]:  # noqa: ARG003
        """Return the fields of the sink of table ``name``, one of several of ``pipeline``, whose
        sink has ``fields``.
        """
        return {**fields, cls.table_field: name}

    def one_of_several(self) -> Self:
        """Return the sink of one of several tables that are filled together.

        Raises:
            ValueError: its settings do not allow that.
        """
        return self

    def without_rows(self) -> Self:
        """Return the sink of the one of several tables that has dead letters alone."""
        return self

    @property
    def ledger_sink(self) -> Sink:
        """Of one of several tables the sink whose session has their ledger; by default itself."""
        return self

    @property
    def tables_written(self) -> tuple[str, ...]:
        """The table, and that of dead letters, if it is one beside it."""
        return (self.table_name,)

    @property
    def qualified_name(self) -> str:
        """The table with what it is in, ``database.schema.table``, as catalogs name it."""
        return self.table_name

    def describe(self) -> dict[str, str]:
        """Return the sink's description for metadata: ``kind``, ``uri`` ... Holds no secret."""
        return {"kind": type(self).__name__, "table": self.table_name}

    @property
    def keeps_every_row(self) -> bool:
        """False where a row may replace an older one, as an upsert does: then an audit cannot tell
        a replaced row from a missing one.
        """
        return True

    def gives_back(self, data_type: DataType) -> bool:  # noqa: ARG002
        """Return whether :meth:`SinkSession.values` gives values of ``data_type`` back as they were
        staged, bit for bit; only such columns get a checksum. Called only where
        :attr:`keeps_every_row`.
        """
        return False

    def reached_by(self, storage: Storage) -> Self:  # noqa: ARG002
        """Return this sink with the settings of ``storage``, if its table may be in a bucket."""
        return self

    def staging_folders(self) -> StagingFolders:
        """Return the folders for staging that override the pipeline's."""
        return StagingFolders()

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns by which Spark lays out the staged files in ``name=value`` folders."""
        return ()

    def project(self, df: DataFrame) -> DataFrame:
        """Give ``df`` the column types this store can take. Called inside the one Spark job.

        Must be lazy, must not drop rows.

        Raises:
            SchemaChangeError: a column's type cannot be stored here at all.
        """
        return df

    def row_form(self, schema: StructType) -> JsonRows | None:  # noqa: ARG002
        """Return the JSON object that :meth:`project` makes of rows with the flat columns
        ``schema``; None, the default: rows are staged as its columns.
        """
        return None

    def unfit(self, schema: StructType, never_null: Collection[str] = ()) -> Column | None:
        """Return the reason why a row of a transform's result cannot be stored, as a text column,
        null for a row that fits; None if every row fits. Evaluated inside the one Spark job, before
        :meth:`project`; the record is a bad one then, and one record never stops a pipeline whose
        policy is ``dead_letter``. ``never_null`` are the table's columns that take no null, where
        the session knows.

        Common to all stores, and hardly readable anywhere: text that is not UTF-8, times
        outside the years 1 to 9999.
        """
        limits = self.column_limits() or ColumnLimits()
        return reason(schema, replace(limits, never_null=never_null))

    def column_limits(self) -> ColumnLimits | None:
        """Return the limits that alone decide whether a row fits, but for ``never_null``; None, the
        default: :meth:`unfit` has more conditions.
        """
        return None


def each_once(columns: tuple[str, ...]) -> tuple[str, ...]:
    """``columns``, or ``ValueError`` if one is named twice."""
    if len(set(columns)) < len(columns):
        raise ValueError("a column is named twice")
    return columns


class UpsertOptions(Settings):
    """Options of a sink whose rows are all kept, or replace the one with their key; a base class
    that comes before ``Sink``.

    ``mode``: ``append`` or ``upsert``. ``key``: the columns that identify a row. ``sequence_by``:
    those that tell which of two rows with one key is the newer. Both only for ``upsert``.
    """

    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] = Field(default=(), validate_default=True)
    sequence_by: tuple[str, ...] = ()

    @field_validator("key", "sequence_by")
    @classmethod
    def _fits_the_mode(cls, columns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        mode = info.data.get("mode")
        if mode == "append" and columns:
            raise ValueError("only for mode: upsert")
        if mode == "upsert" and info.field_name == "key" and not columns:
            raise ValueError("mode: upsert needs the columns that identify a row")
        return each_once(columns)

    def manner(self) -> Mapping[str, str]:
        """See ``Sink.manner``."""
        return {"mode": self.mode, "key": ", ".join(self.key)} if self.key else {"mode": self.mode}

    @property
    def upsert_rule(self) -> UpsertRule | None:
        """The rule by which rows replace each other, ``None`` for append."""
        return UpsertRule(self.key, self.sequence_by) if self.mode == "upsert" else None

    @property
    def keeps_every_row(self) -> bool:
        return self.mode == "append"
