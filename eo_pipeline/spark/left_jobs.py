"""Jobs of processes that were killed: a Spark Connect server goes on with them for minutes.

They can commit nothing, and take cores from those that can.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.interrupts import tag_of


def session_on_server(spark: SparkSession) -> str | None:
    """The id of a session that outlives this process, because it lives on a server."""
    if not is_connect(spark):
        return None
    from eo_pipeline.spark.connect import session_id

    return session_id(spark)


def end_left_job(spark: SparkSession, session: str, name: str) -> None:
    """End the job ``name`` of a process that was killed, which ran in ``session`` on the server of
    ``spark``. A server that does not answer is not asked twice.
    """
    if not is_connect(spark):
        return
    from eo_pipeline.spark.connect import interrupt_elsewhere  # takes long to import

    interrupt_elsewhere(spark, session, tag_of(name))
