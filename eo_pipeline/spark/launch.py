"""What a Spark of ours is started with, in this process or as a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.jvm.ordinary import CATALOG_CLASS, CATALOG_SETTING, ordinary_jar
from eo_pipeline.jvm.submit import KAFKA_SETTINGS
from eo_pipeline.spark.staging import STAGING_SETTINGS

#: Newer connectors than the Spark in use do not load; this one does in TESTED_WITH.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

#: What decodes Avro values; of the same release as the connector.
AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"

#: The versions of pyspark that CONNECTOR was tested with, by the whole suite. pyproject.toml admits
#: their patch releases, nothing newer.
TESTED_WITH = ("4.0.0",)

#: A folder of connector jars resolved beforehand; saves Spark asking a repository at each start.
JARS_VARIABLE = "EO_SPARK_JARS"

NAME = "eo-pipeline"

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Lists of files, of ours and a user's; what stands between two of them.
_CLASS_PATH = "spark.driver.extraClassPath"
_JARS = "spark.jars"
_LISTS = {_CLASS_PATH: os.pathsep, _JARS: ","}
_CORES = "spark.cores.max"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # failures come back as our own errors; Spark's warnings about them only bury the sentence
    "spark.log.level": "ERROR",
    **KAFKA_SETTINGS,
    **STAGING_SETTINGS,
    # the throughput collector: 5.2 s -> 3.2 s session start and a third off a cold bulk run
    JAVA_OPTIONS: "-XX:+UseParallelGC",
}

#: A driver without executors elsewhere has nobody to talk to outside.
_ON_THIS_MACHINE_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def launch_settings(master: str, driver_memory: str, config: Mapping[str, str]) -> dict[str, str]:
    """All settings a Spark is started with but its master; ``config`` goes before ours.

    Raises:
        SetupError: EO_SPARK_JARS names a folder without jars.
    """
    settings = _DEFAULTS | {"spark.driver.memory": driver_memory} | _connector(master)
    if is_local(master):
        settings |= _ON_THIS_MACHINE_ONLY
    elif _CORES in config:
        # told before the executors have come: until then Spark thinks that it has two
        settings["spark.default.parallelism"] = config[_CORES]
    together = {
        key: f"{config[key]}{mark}{settings[key]}"
        for key, mark in _LISTS.items()
        if key in config and key in settings
    }
    return settings | dict(config) | together


def submit_arguments(master: str, settings: Mapping[str, str]) -> list[str]:
    """What ``spark-submit`` takes to start a Spark that PySpark speaks to."""
    told = {"spark.master": master, "spark.app.name": NAME, **settings}
    return [*(p for k, v in told.items() for p in ("--conf", f"{k}={v}")), "pyspark-shell"]


def is_local(master: str) -> bool:
    """Whether ``master`` is this machine, and Spark has no executors elsewhere."""
    return master.startswith("local")


def _connector(master: str) -> dict[str, str]:
    folder = os.environ.get(JARS_VARIABLE)
    if not folder:
        return {"spark.jars.packages": f"{CONNECTOR},{AVRO}", **jars_settings(master, ())}
    jars = sorted(Path(folder).glob("*.jar"))
    if not jars:
        raise SetupError(f"{JARS_VARIABLE} names a folder without jars; run `make setup`.")
    return jars_settings(master, jars)


def jars_settings(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """:func:`class_path`, with our own jar, and what it is found by."""
    ours = ordinary_jar()
    if ours is None:
        return class_path(master, jars) if jars else {}
    return {CATALOG_SETTING: CATALOG_CLASS, **class_path(master, [*jars, ours])}


def class_path(master: str, jars: Sequence[Path]) -> dict[str, str]:
    """The setting by which the driver, and executors elsewhere, have ``jars`` of this machine."""
    paths = [str(jar.absolute()) for jar in jars]
    if is_local(master):
        # not by spark.jars: those are copied at each start, and no class-data archive holds them
        return {_CLASS_PATH: os.pathsep.join(paths)}
    return {"spark.jars": ",".join(paths)}
