"""One YAML document, one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from eo_pipeline.dagster.automation import Automation
from eo_pipeline.dagster.factory import without_topics
from eo_pipeline.dagster.members import joined
from eo_pipeline.dagster.names import DagsterPipeline, Part
from eo_pipeline.dagster.scaffold import KafkaPipelineScaffolder
from eo_pipeline.dagster.told_fields import told_when_asked
from eo_pipeline.dagster.yaml_values import (
    Placeholders,
    resolve_texts,
    tell,
    told_with_places,
    unset_variables,
)
from eo_pipeline.documents import documents_in, left_behind, with_whole_paths
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.settings import Problem, did_you_mean, problems

Fields = dict[str, Any]

#: These fields may hold secrets, and Dagster keeps the component in the metadata of its assets.
_NOT_SHOWN = Field(repr=False)


def _resolver(description: str, *, optional: bool = False) -> dg.Resolver:
    """Of a part of the document whose texts are templates; what it holds is told in
    :mod:`eo_pipeline.dagster.told_fields`.
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
            "How stores are reached: eo_pipeline.storage.Storage.",
            optional=True,
        ),
    ] = None
    staging: str | None = Field(
        None,
        description="Folder, s3://, gs://, abfss:// or hdfs:// for rows that wait (.eo/staging).",
    )
    inline_records: int | None = Field(
        None, description="A batch of at most this many offsets skips the files."
    )
    max_checkpoints: int | None = Field(None, description="The most checkpoints one run makes.")
    overlap: bool | None = Field(
        None,
        description="Stage the next checkpoint while the last one is committed (by default where "
        "there are two cores or more and no transform).",
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
        description="Another key, key_prefix, group_name, owners, tags, kinds ... for each of the "
        "assets. {{ spec }} is it as it comes, {{ asset }} is table, offsets or checkpoints.",
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
