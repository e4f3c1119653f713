"""Fetches the jars that only the tests need, once: a schema registry (142 MB), Spark's way to
buckets (15 MB, to Google's 38 MB), to Azure (1 MB) and its login to Amazon MSK (6 MB), a REST
catalog of Iceberg (40 MB), an HDFS (40 MB). Before the tests begin, so that none of them waits.
"""

from __future__ import annotations

import sys

from eo_pipeline.embedded.jars import (
    registry_jar,
    spark_azure_jars,
    spark_gcs_jars,
    spark_msk_jars,
    spark_s3_jars,
)
from eo_pipeline.errors import SetupError
from tests.hdfs import hdfs_jars
from tests.rest_catalog import rest_catalog_jars
from tests.servers import STATE

if __name__ == "__main__":
    jars = STATE / "jars"
    wanted = (
        *("apicurio-*/", "hadoop-aws-*/", "hadoop-azure-*/", "gcs-connector-*/", "aws-msk*/"),
        *("sqlite-jdbc-*/", "hadoop-client-mini*/"),
    )
    if not all(any(jars.glob(each)) for each in wanted):
        sys.stdout.write(
            "Fetching a registry, a catalog, HDFS, Spark's ways to AWS and Azure (once) ...\n"
        )
        sys.stdout.flush()
    try:
        registry_jar(STATE)
        spark_s3_jars(STATE)
        spark_azure_jars(STATE)
        spark_gcs_jars(STATE)
        spark_msk_jars(STATE)
        rest_catalog_jars(STATE)
        hdfs_jars(STATE)
    except SetupError as error:
        sys.exit(f"tests/install_jars.py: {error}")
