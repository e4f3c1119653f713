"""Spark's Kafka connector: its version, and where its jars come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.progress import phase
from eo_pipeline.spark.class_archive import folder
from eo_pipeline.spark.maven import artefact_of, beside_pyspark, is_resolved

#: A connector newer than Spark does not load; this one loads in all of TESTED_WITH.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"

#: Spark's Avro functions, of the connector's release.
AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"

#: Versions of pyspark with which the whole suite tested CONNECTOR. pyproject.toml allows their
#: patch releases, nothing newer.
TESTED_WITH = ("4.0.0",)

#: Variable with a folder of the connector's jars.
JARS_VARIABLE = "EO_SPARK_JARS"

#: Variable with a company's own repository, for Spark.
_REPOSITORY_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"

_ARTEFACTS = (artefact_of(CONNECTOR), artefact_of(AVRO))


def is_left_to_spark(config: Mapping[str, str]) -> bool:
    """Return whether Spark itself resolves the connector at each start, in ten seconds and forty
    lines: from the repositories that its ``config`` or this environment may name.
    """
    named = any(key.startswith("spark.jars.") for key in config)
    return named or bool(os.environ.get(_REPOSITORY_VARIABLE)) or has_users_configuration()


def has_users_configuration() -> bool:
    """Return whether Spark is a user's own, or reads a user's folder of settings."""
    return any(os.environ.get(name) for name in ("SPARK_HOME", "SPARK_CONF_DIR"))


def must_download(config: Mapping[str, str]) -> bool:
    """Return whether the start of a Spark with ``config`` will download the connector first."""
    return not (os.environ.get(JARS_VARIABLE) or is_left_to_spark(config) or _is_downloaded())


def _is_downloaded() -> bool:
    return all(is_resolved(artefact, folder()) for artefact in _ARTEFACTS)


def downloaded_connector() -> tuple[Path, ...]:
    """Return the jars in this user's cache, downloaded (74 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    if _is_downloaded():
        return spark_connector_jars(folder())
    with phase(f"downloading {CONNECTOR} (once)"):
        try:
            return spark_connector_jars(folder())
        except SetupError as error:
            raise SetupError(
                f"{error}. Or put the jars into a folder, and name it in {JARS_VARIABLE}."
            ) from error


def spark_connector_jars(state: Path) -> tuple[Path, ...]:
    """Return Spark's Kafka connector, spark-avro, and their dependencies that pyspark lacks.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return beside_pyspark(_ARTEFACTS, state)
