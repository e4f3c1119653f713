"""One YAML document, one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

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

from eo_pipeline.config.documents import documents_in, left_behind, with_whole_paths
from eo_pipeline.config.settings import Problem, did_you_mean, problems
from eo_pipeline.dagster.definitions import joined, without_topics
from eo_pipeline.dagster.naming import Automation, DagsterPipeline, Part
from eo_pipeline.dagster.yaml_values import (
    Placeholders,
    resolve_texts,
    tell,
    told_with_places,
    unset_variables,
)
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.pipeline_schema import model_schema, sink_schema
from eo_pipeline.spark import SparkSettings
from eo_pipeline.storage.config import Storage

_TOLD: Mapping[str, Callable[[], dict[str, Any]]] = {
    "source": lambda: model_schema(KafkaSource),
    "sink": sink_schema,
    "storage": lambda: model_schema(Storage),
    "spark": lambda: model_schema(SparkSettings),
}


class _Told(BaseModel):
    """Fields of :data:`_TOLD` are described when somebody asks for a schema. A run asks for none,
    and that of all sinks needs the modules of all of them.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        whole = handler.resolve_ref_schema(schema)
        whole["additionalProperties"] = False
        fields = whole["properties"]
        for name, told in _TOLD.items():
            fields[name].update(told())
        return schema


@cache
def told_when_asked(model: type[BaseModel]) -> type[BaseModel]:
    """``model`` of a document, with what its parts hold. It takes fields that it does not have, so
    that they are told with whatever else is wrong.
    """
    return create_model(
        model.__name__,
        __base__=(_Told, model),
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
    # prints what it would write; for a table:
    #   type: postgres
    #   dsn: "{{{{ env.EO_PG_DSN }}}}"
    #   table: {name}
    type: console

  # a run starts when at least this many records wait
  lag_threshold: 1
  # ... and at these times, whatever waits
  # schedule: "*/15 * * * *"

  # start with `stopped`, switch them on in the UI
  sensors: stopped
"""


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    topic: str | None = Field(None, description="The Kafka topic; the folder's name if absent.")


class KafkaPipelineScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes one commented document."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """What may be given on the command line."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write `defs.yaml`, or add a document to the one that is there."""
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
    """Of a part of the document whose texts are templates; what it holds is told in
    :mod:`eo_pipeline.dagster.component`.
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
            "Which topics, and how their records are read: eo_pipeline.KafkaSource.",
        ),
    ]
    sink: Annotated[
        Fields,
        _NOT_SHOWN,
        _resolver("Where rows and ledger go: `type`, and the fields of that sink."),
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
            "How stores are reached: eo_pipeline.storage.config.Storage.",
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

    translation: Annotated[
        TranslationFn[Part] | None,
        TranslationFnResolver[Part](lambda asset: {"asset": asset}),
    ] = Field(
        None,
        repr=False,
        description="Overrides key, key_prefix, group_name, owners, tags, kinds ... of each asset. "
        "{{ spec }} is the default spec, {{ asset }} is table, offsets or checkpoints.",
    )

    #: As it is written, for the document of a fork.
    _document: Fields | None = PrivateAttr(None)

    #: Where its relative paths start.
    _folder: Path | None = PrivateAttr(None)

    def get_asset_spec(self, spec: dg.AssetSpec, asset: Part) -> dg.AssetSpec:
        """What becomes of each asset; override it in a subclass to say it in Python.

        Args:
            spec: the asset as it comes, after no translation. Its key is all that is there when
                the key is asked for.
            asset: which it is, ``"table"``, ``"offsets"`` or ``"checkpoints"``.
        """
        return self.translation(spec, asset) if self.translation else spec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """How `dg list components` and the catalog present it."""
        return dg.ComponentTypeSpec(
            description="Kafka to a table, exactly once, in batches.",
            tags=["kafka", "spark", "exactly-once"],
            produces=["asset", "asset_check", "job", "schedule", "sensor", "resource"],
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """What a document is read into, and described by."""
        return told_when_asked(cls.model())

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: Any) -> Any:
        """Called for every document. What is wrong with it is told with file, line and field."""
        folder = _folder_of(context)
        written = with_whole_paths(model.model_dump(exclude_unset=True), folder)
        found = [*unset_variables((), written), *_given_twice(context)]
        for name in model.model_extra or ():
            meant = did_you_mean(name, type(model).model_fields)
            found.append(Problem((name,), f"there is no such field;{meant}".rstrip(";")))
        if found:  # go on, for whatever else is wrong
            context = context.with_scope(env=Placeholders())
        component: KafkaPipelineComponent | None = None
        try:
            component = super().resolve_from_model(context, model)
        except ValidationError as error:
            found += problems(error)
        found += _problems_of_pipeline(context, written)
        if lines := told_with_places(context, found):
            tell(lines)
            return _Broken()
        if component is not None:
            component._document, component._folder = written, folder
        return component

    def pipeline_config(self) -> dict[str, Any]:
        """The fields that are the engine's; what was not given keeps the engine's default."""
        names = Pipeline.model_fields.keys()
        config = self.model_dump(include=set(names), exclude_none=True)
        return dict(with_whole_paths(config, self._folder)) if self._folder else config

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Everything of this one pipeline."""
        pipeline = Pipeline.from_config(self.pipeline_config())
        automation = Automation(**self.model_dump(include=set(Automation.model_fields)))
        declared = DagsterPipeline(pipeline, automation, self.get_asset_spec, self._document)
        return without_topics(joined(declared))


class _Broken(dg.Component):
    """In the place of a pipeline whose document is wrong, until everything wrong is told."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        return dg.Definitions()


def _folder_of(context: dg.ResolutionContext) -> Path:
    """The document's; this process's if that is not known."""
    tree = context.source_position_tree
    return Path(tree.position.filename).parent if tree else Path.cwd()


def _problems_of_pipeline(context: dg.ResolutionContext, written: Fields) -> list[Problem]:
    """What the engine finds wrong, whatever is wrong with Dagster's own fields."""
    fields = {name: value for name, value in written.items() if name in Pipeline.model_fields}
    found: list[Problem] = []
    try:
        filled, folder = resolve_texts(context, fields), _folder_of(context)
        found += [Problem(*each) for each in left_behind(filled, folder)]
        Pipeline.model_validate(with_whole_paths(filled, folder))
    except ValidationError as error:
        found += problems(error)
    return found


def _given_twice(context: dg.ResolutionContext) -> Sequence[Problem]:
    """Keys that the document has twice, of which Dagster has taken the last."""
    tree = context.source_position_tree
    if tree is None or not Path(tree.position.filename).is_file():
        return []
    line = tree.position.start.line
    for document in documents_in(Path(tree.position.filename)):
        if min(document.lines.values()) <= line <= max(document.lines.values()):
            return [Problem(*each) for each in document.twice]
    return []
