"""Fetches the jars that only the tests need, once: a schema registry (142 MB), and Spark's way to
buckets (15 MB). Before the tests begin, so that none of them waits for it.
"""

from __future__ import annotations

import sys

from eo_pipeline.embedded.jars import registry_jar, spark_s3_jars
from eo_pipeline.errors import SetupError
from tests.servers import STATE

if __name__ == "__main__":
    jars = STATE / "jars"
    if not (any(jars.glob("apicurio-*/")) and any(jars.glob("hadoop-aws-*/"))):
        sys.stdout.write("Fetching a schema registry, and Spark's way to buckets (once) ...\n")
        sys.stdout.flush()
    try:
        registry_jar(STATE)
        spark_s3_jars(STATE)
    except SetupError as error:
        sys.exit(f"tests/install_jars.py: {error}")
