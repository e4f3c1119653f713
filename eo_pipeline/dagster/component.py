"""Dagster component: one YAML document per pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema

from eo_pipeline.config.documents import documents_in, left_behind, with_absolute_paths
from eo_pipeline.config.settings import Problem, did_you_mean, problems
from eo_pipeline.dagster.definitions import as_fleet_member, name_in_use, without_topics
from eo_pipeline.dagster.naming import AssetKind, Automation, DagsterPipeline
from eo_pipeline.dagster.yaml_values import (
    Placeholders,
    located_messages,
    place_of,
    report_problems,
    resolve_texts,
    unset_variables,
)
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.pipeline_schema import model_schema, sink_schema, tables_schema
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.spark import SparkSettings
from eo_pipeline.storage.config import Storage

_PART_SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "source": lambda: model_schema(KafkaSource),
    "sink": sink_schema,
    "storage": lambda: model_schema(Storage),
    "spark": lambda: model_schema(SparkSettings),
    "maintenance": lambda: model_schema(Maintenance),
    "tables": tables_schema,
}


class _LazySchema(BaseModel):
    """Model whose fields of :data:`_PART_SCHEMAS` are described on demand only: a run needs no
    schema, and the schema of all sinks would import all their modules.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        resolved["additionalProperties"] = False
        fields = resolved["properties"]
        for name, schema_of in _PART_SCHEMAS.items():
            fields[name].update(schema_of())
        return schema


@cache
def with_lazy_schema(model: type[BaseModel]) -> type[BaseModel]:
    """Return ``model`` with lazily described parts. It accepts unknown fields, so that they are
    reported together with all other problems.
    """
    return create_model(
        model.__name__,
        __base__=(_LazySchema, model),
        __module__=model.__module__,
        __cls_kwargs__={"extra": "allow"},
    )


_DOCUMENT = """\
type: {type_name}

attributes:
  name: {name}
  description: What one row of the table is.

  source:
    bootstrap_servers: "{{{{ env('EO_KAFKA_BOOTSTRAP', '127.0.0.1:9092') }}}}"
    topics: [{topic}]
    value_format: json
    # a field declared NOT NULL must be in every record
    value_schema: id BIGINT NOT NULL, name STRING
    start: earliest # or latest, {{timestamp: ...}}, {{group: ...}}, {{offsets: ...}}
    on_bad_record: fail # or dead_letter

  # DataFrame -> DataFrame; it must keep the column _kafka
  # transform: my_package.my_module:my_function

  sink:
    # the console sink prints rows; to write to a table:
    #   type: postgres
    #   dsn: "{{{{ env.EO_PG_DSN }}}}"
    #   table: {name}
    type: console

  # a run starts when at least this many records wait
  lag_threshold: 1
  # ... and at these times, regardless of the lag
  # schedule: "*/15 * * * *"

  # initial status of sensors and schedules; switch them on in the UI
  sensors: stopped
"""


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    topic: str | None = Field(None, description="The Kafka topic; the folder's name if absent.")


class KafkaPipelineScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes one commented document."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the model of the command line's options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write `defs.yaml`, or append a document to an existing one."""
        folder = request.target_path.parent if request.append else request.target_path
        name = folder.name.lower()
        document = _DOCUMENT.format(
            type_name=request.type_name, name=name, topic=request.params.topic or name
        )
        if request.append:
            with request.target_path.open("a") as file:
                file.write(f"---\n{document}")
        else:
            (folder / "defs.yaml").write_text(document)


Fields = dict[str, Any]

#: These fields may hold secrets, and Dagster keeps the component in the metadata of its assets.
_NOT_SHOWN = Field(repr=False)


def _resolver(description: str, *, optional: bool = False) -> dg.Resolver:
    """Return the resolver of a part whose texts are templates; :data:`_PART_SCHEMAS` describes its
    fields.
    """
    return dg.Resolver(
        resolve_texts,
        model_field_type=Fields | None if optional else Fields,
        description=description,
    )


@dg.scaffold_with(KafkaPipelineScaffolder)
class KafkaPipelineComponent(Automation, dg.Component):
    """Kafka topics, a transform, and a table that follows them exactly once.

    The fields of the pipeline itself are those of ``eo_pipeline.Pipeline`` and have its defaults;
    the others are those of ``eo_pipeline.dagster.Automation``. ``{{ env.NAME }}`` and
    ``{{ env("NAME", "default") }}`` take values, secrets above all, from the environment.
    """

    name: str = Field(description="Names the ledger, the assets, the job and the sensors.")
    source: Annotated[
        Fields,
        _NOT_SHOWN,
        _resolver(
            "Topics, and how to read and decode records: eo_pipeline.KafkaSource.",
        ),
    ]
    sink: Annotated[
        Fields,
        _NOT_SHOWN,
        _resolver("Store of the table and its ledger: `type` and the fields of that sink."),
    ]
    transform: str | None = Field(
        None, description="package.module:function, a DataFrame -> DataFrame."
    )
    lineage: bool | None = Field(
        None, description="Write topic, partition and offset with every row (default true)."
    )
    storage: Annotated[
        Fields | None,
        _NOT_SHOWN,
        _resolver(
            "Connection settings of S3, GCS, Azure, HDFS: eo_pipeline.storage.config.Storage.",
            optional=True,
        ),
    ] = None
    staging: str | None = Field(
        None,
        description="Staging folder, or s3://, gs://, abfss://, hdfs:// (default: .eo/staging).",
    )
    inline_records: int | None = Field(
        None, description="Batches of up to this many offsets bypass staging files."
    )
    max_checkpoints: int | None = Field(None, description="Maximum number of checkpoints per run.")
    overlap: bool | None = Field(
        None,
        description="Stage the next checkpoint while the previous one commits (default: with two "
        "or more cores and no transform).",
    )
    spark: Annotated[
        Fields | None,
        _NOT_SHOWN,
        _resolver(
            "Where Spark runs: eo_pipeline.SparkSettings.",
            optional=True,
        ),
    ] = None

    maintenance: Annotated[
        Fields | None,
        _resolver("Settings of `eo maintain` for Delta and Iceberg tables.", optional=True),
    ] = None
    tables: Annotated[
        list[Fields] | Fields | None,
        dg.Resolver(
            resolve_texts,
            model_field_type=list[Fields] | Fields | None,
            description="Several tables of one store, filled by one transaction; `sink` then has "
            "no `table`. With `each` instead of a list: one for each value.",
        ),
    ] = None
    rest: Literal["fail", "ignore", "dead_letter"] | None = Field(
        None, description="For records that match none of `tables`: fail (default) or ignore."
    )

    translation: Annotated[
        TranslationFn[AssetKind] | None,
        TranslationFnResolver[AssetKind](lambda asset: {"asset": asset}),
    ] = Field(
        None,
        repr=False,
        description="Overrides key, key_prefix, group_name, owners, tags, kinds ... of each asset. "
        "{{ spec }} is the default spec, {{ asset }} is table, offsets, checkpoints or member "
        "(one of several tables).",
    )

    #: Fields as written, for the document of a fork.
    _document: Fields | None = PrivateAttr(None)

    #: Base folder of relative paths.
    _folder: Path | None = PrivateAttr(None)

    #: File and line of the name.
    _at: str | None = PrivateAttr(None)

    def get_asset_spec(self, spec: dg.AssetSpec, asset: AssetKind) -> dg.AssetSpec:
        """Return the translated spec of an asset; a subclass may override this in Python.

        Args:
            spec: the untranslated spec; it contains only the key when the key is computed.
            asset: ``"table"``, ``"offsets"``, ``"checkpoints"`` or ``"member"``, one of several
                tables.
        """
        return self.translation(spec, asset) if self.translation else spec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description for `dg list components` and the catalog."""
        return dg.ComponentTypeSpec(
            description="Ingests Kafka topics into a table, exactly once, in batches.",
            tags=["kafka", "spark", "exactly-once"],
            produces=["asset", "asset_check", "job", "schedule", "sensor", "resource"],
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model that documents are read into and described by."""
        return with_lazy_schema(cls.model())

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: Any) -> Any:
        """Resolve a document; problems are reported with file, line and field."""
        folder = _folder_of(context)
        written = with_absolute_paths(model.model_dump(exclude_unset=True), folder)
        invalid = [*unset_variables((), written), *_duplicate_keys(context)]
        for name in model.model_extra or ():
            meant = did_you_mean(name, type(model).model_fields)
            invalid.append(Problem((name,), f"there is no such field;{meant}".rstrip(";")))
        if invalid:  # continue, to find all other problems
            context = context.with_scope(env=Placeholders())
        component: KafkaPipelineComponent | None = None
        try:
            component = super().resolve_from_model(context, model)
        except ValidationError as error:
            invalid += problems(error)
        invalid += _problems_of_pipeline(context, written)
        if lines := located_messages(context, invalid):
            report_problems(lines)
            return _Broken()
        if component is not None:
            component._document, component._folder = written, folder
            _, component._at = place_of(context, ("name",)) or (0, None)
        return component

    def pipeline_config(self) -> dict[str, Any]:
        """Return the engine's fields; a missing field keeps the engine's default."""
        names = Pipeline.model_fields.keys()
        config = self.model_dump(include=set(names), exclude_none=True)
        return dict(with_absolute_paths(config, self._folder)) if self._folder else config

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Build all definitions of this pipeline."""
        pipeline = Pipeline.from_config(self.pipeline_config())
        automation = Automation(**self.model_dump(include=set(Automation.model_fields)))
        declared = DagsterPipeline(pipeline, automation, self.get_asset_spec, self._document)
        built = without_topics(as_fleet_member(declared))
        if self._at and (clash := name_in_use(self.name, built, self._at)):
            report_problems([f"  {self._at} - attributes.name: {clash}"])
            return dg.Definitions()
        return built


class _Broken(dg.Component):
    """Placeholder of a pipeline with an invalid document, until all problems are reported."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        return dg.Definitions()


def _folder_of(context: dg.ResolutionContext) -> Path:
    """Return the document's folder; the working directory if unknown."""
    tree = context.source_position_tree
    return Path(tree.position.filename).parent if tree else Path.cwd()


def _problems_of_pipeline(context: dg.ResolutionContext, written: Fields) -> list[Problem]:
    """Return the engine's problems, whatever problems Dagster's own fields have."""
    fields = {name: value for name, value in written.items() if name in Pipeline.model_fields}
    invalid: list[Problem] = []
    try:
        filled, folder = resolve_texts(context, fields), _folder_of(context)
        invalid += [Problem(*args) for args in left_behind(filled, folder)]
        Pipeline.model_validate(with_absolute_paths(filled, folder))
    except ValidationError as error:
        invalid += problems(error)
    return invalid


def _duplicate_keys(context: dg.ResolutionContext) -> Sequence[Problem]:
    """Return the duplicate keys of the document, of which Dagster takes the last."""
    tree = context.source_position_tree
    if tree is None or not Path(tree.position.filename).is_file():
        return []
    line = tree.position.start.line
    for document in documents_in(Path(tree.position.filename)):
        if min(document.lines.values()) <= line <= max(document.lines.values()):
            return [Problem(*args) for args in document.twice]
    return []
