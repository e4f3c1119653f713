"""Fetches jars for the tests, once, before they begin, so that none of them waits.

short   for `make test`: a Kafka broker and Spark's connector (120 MB)
all     besides: a schema registry (142 MB), Spark's way to buckets (15 MB, to Google's 38 MB, to
Azure's 1 MB) and its login to Amazon MSK (6 MB), two REST catalogs of Iceberg (40 and 245 MB),
an HDFS (40 MB)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from eo_pipeline.embedded.jars import (
    kafka_broker_jars,
    registry_jar,
    spark_azure_jars,
    spark_gcs_jars,
    spark_msk_jars,
    spark_s3_jars,
)
from eo_pipeline.errors import SetupError
from eo_pipeline.spark.connector import spark_connector_jars
from tests.shared import STATE
from tests.support.hdfs import hdfs_jars
from tests.support.nessie import nessie_jar
from tests.support.rest_catalog import rest_catalog_jars

#: By the folder below ``jars`` that each makes.
SHORT: dict[str, Callable[[Path], object]] = {
    "kafka_2.13-*/": kafka_broker_jars,
    "spark-connector/": spark_connector_jars,
    "apicurio-*/": registry_jar,
}
ALL = SHORT | {
    "hadoop-aws-*/": spark_s3_jars,
    "hadoop-azure-*/": spark_azure_jars,
    "gcs-connector-*/": spark_gcs_jars,
    "aws-msk*/": spark_msk_jars,
    "sqlite-jdbc-*/": rest_catalog_jars,
    "hadoop-client-mini*/": hdfs_jars,
    "nessie-quarkus-*/": nessie_jar,
}


def fetch(wanted: dict[str, Callable[[Path], object]]) -> None:
    if not all(any((STATE / "jars").glob(folder)) for folder in wanted):
        sys.stdout.write("Fetching jars (once) ...\n")
        sys.stdout.flush()
    for jars in wanted.values():
        jars(STATE)


if __name__ == "__main__":
    try:
        fetch({"short": SHORT, "all": ALL}[sys.argv[1]])
    except SetupError as error:
        sys.exit(f"tests/install_jars.py: {error}")
