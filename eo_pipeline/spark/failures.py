"""What an error of Spark's means: the job failed, or the server it ran on is gone."""

from __future__ import annotations

from pyspark.sql import SparkSession

from eo_pipeline.errors import SparkJobError, SparkUnavailableError


def job_error(
    spark: SparkSession, error: Exception, job: str
) -> SparkJobError | SparkUnavailableError:
    """The error of ours for one that ``job`` on ``spark`` ended with.

    Args:
        job: the subject of its sentence: ``Pipeline 'p': the audit's Spark job``.
    """
    if not server_is_lost(spark):
        return SparkJobError(f"{job} failed; nothing was committed. {first_lines(error)}")
    from eo_pipeline.spark.connect import endpoint_of

    return SparkUnavailableError(
        f"{job} lost its Spark Connect server at {endpoint_of(spark)}, which ended, was started "
        "again or cannot be reached; nothing was committed. See that it runs, and run again: a run "
        f"connects anew. {first_lines(error)}"
    )


def server_is_lost(spark: SparkSession) -> bool:
    """Whether ``spark``, on which a job failed, is a Spark Connect session of no more use.

    The job's error does not tell: a server that was started again answers, but knows nothing of
    this session. So the session is asked, for ``spark.connect_timeout`` at most.
    """
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        return False
    from eo_pipeline.spark.connect import knows_its_session

    return not knows_its_session(spark)


def first_lines(error: Exception, lines_max: int = 6) -> str:
    """The part of a Spark error a person reads; the stack stays in ``__cause__``."""
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:lines_max])[:2000]
