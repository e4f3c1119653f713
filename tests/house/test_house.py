"""Rules of the house that were broken often: a ratchet, which only goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta.config import DeltaSink
from eo_pipeline.sinks.postgres.config import PostgresSink
from tests.house.figures import (
    Module,
    empty_names,
    lone_modules,
    modules,
    questions,
    reach_into_jvm,
    use_native,
)
from tests.house.publishing import traced_publish

#: Small modules with one importer, and why each is a file of its own.
LONE = {
    "eo_pipeline.dagster.spark_resource": "imports dagster-pyspark, a quarter of a second",
    "eo_pipeline.sinks.kafka.protobuf_worker": "the program of a process of its own",
    "eo_pipeline.spark.learning": "imports py4j, which a run that finds nothing new does without",
    "eo_pipeline.spark.paths": "imports pyspark, which a run that finds nothing new does without",
    "eo_pipeline.spark.py4j_cache": "imports py4j",
    "eo_pipeline.spark.schemas": "imports pyspark",
    "eo_pipeline.testing.all_types": "data of the contract",
    "eo_pipeline.testing.transforms": "named by documents, as `module:function`",
}

#: Percent of bound names, and of docstrings. Lower them with each change.
EMPTY_NAMES_MAX, QUESTIONS_MAX = 0.1, 0.0


#: Files of a publish, and calls from one into another. Lower them with each change.
PUBLISH_MAX = {"postgres": (6, 60), "delta": (9, 80)}


@pytest.fixture(scope="module")
def package() -> dict[str, Module]:
    return modules()


def test_a_small_module_with_one_importer_is_part_of_it(package: dict[str, Module]) -> None:
    assert {*lone_modules(package)} <= LONE.keys()


def test_names_name_something(package: dict[str, Module]) -> None:
    assert empty_names(package).percent <= EMPTY_NAMES_MAX


def test_docstrings_begin_with_a_verb_or_a_noun(package: dict[str, Module]) -> None:
    assert questions(package).percent <= QUESTIONS_MAX


def test_a_publish_is_read_in_few_files(database: str, tmp_path: Path) -> None:
    sinks: dict[str, Sink] = {
        "postgres": PostgresSink(dsn=database, table="t"),
        "delta": DeltaSink(path=str(tmp_path / "t")),
    }
    for store, sink in sinks.items():
        trace = traced_publish(sink)
        files, calls = PUBLISH_MAX[store]
        assert 1 < len(trace.files) <= files, sorted(trace.files)
        assert trace.jumps.total() <= calls, trace.jumps.most_common()


def test_few_files_reach_into_sparks_jvm(package: dict[str, Module]) -> None:
    """What runs on a laptop must run over Spark Connect, where there is no JVM to reach into."""
    assert reach_into_jvm(package) == [
        "eo_pipeline.batch.warmup",  # starts a Spark of its own, to archive its classes
        "eo_pipeline.spark.driver",  # the JVM of a classic session
        "eo_pipeline.spark.interrupts",  # its jobs; over Spark Connect the server is asked
        "eo_pipeline.spark.server.watcher",  # the process of the warm server itself
    ]


def test_few_files_use_the_packages_java(package: dict[str, Module]) -> None:
    """A change of the fast path is a change of few files, and no sink knows of it."""
    assert use_native(package) == [
        "eo_pipeline.batch.decode",
        "eo_pipeline.batch.decode_json",
        "eo_pipeline.batch.decoded_source",
        "eo_pipeline.batch.fast_path",
        "eo_pipeline.batch.native_decode",
        "eo_pipeline.batch.output",
        "eo_pipeline.batch.split",
        "eo_pipeline.batch.stage",
        "eo_pipeline.batch.warmup",
        "eo_pipeline.spark.launch",
        "eo_pipeline.spark.learning",
        "eo_pipeline.spark.native_jar",
    ]
