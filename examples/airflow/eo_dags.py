"""Apache Airflow runs pipelines: a DAG whose task calls ``eo run``, and one whose task is Python.

Copy this file into the folder of DAGs, and let ``EO_DOCUMENT`` name the pipeline's document. All
that is exact is the pipeline's own business: a task that is killed, tried again, or run twice at
once leaves every record once. Airflow only says when, and how often to try.

``run_by_command`` needs nothing in Airflow's own environment but the command ``eo``, which
``EO_COMMAND`` names: the two pin other versions of the same libraries. ``run_by_python`` is for a
worker that has the package installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

#: Exit codes of ``eo run``; docs/cli.md.
FINE, TRY_AGAIN = 0, 4

try:  # Airflow 3, then 2; without either the functions below can be tried all the same
    from airflow.sdk import dag, task
    from airflow.sdk.exceptions import AirflowFailException
except ImportError:
    try:
        from airflow.decorators import dag, task
        from airflow.exceptions import AirflowFailException
    except ImportError:
        dag = task = None

        class AirflowFailException(Exception):  # type: ignore[no-redef] # noqa: N818
            """Fails the task, and no retry follows."""


class TryAgainError(Exception):
    """Fails the try: Airflow comes again, as ``retries`` says."""


def document() -> str:
    return os.environ["EO_DOCUMENT"]


def command() -> list[str]:
    return shlex.split(os.environ.get("EO_COMMAND", "eo"))


def run_by_command() -> dict[str, Any]:
    """What the run did, as ``eo run --json`` says it; small enough for an XCom.

    Raises:
        TryAgainError: exit code 4. A server is away, or another run was faster.
        AirflowFailException: any other. Nothing will be better by itself.
    """
    done = subprocess.run(
        [*command(), "run", "--json", "-f", document()], capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stderr)
    if done.returncode == FINE:
        return dict(json.loads(last_line(done.stdout))["run"])
    error = failed(done.stdout, done.stderr)
    raise (TryAgainError if done.returncode == TRY_AGAIN else AirflowFailException)(error)


def last_line(text: str) -> str:
    """A line for each checkpoint comes before it."""
    return text.strip().rpartition("\n")[2]


def failed(stdout: str, stderr: str) -> str:
    """The error's kind and message, or else the last that was said."""
    try:
        error = json.loads(last_line(stdout))["error"]
    except (ValueError, KeyError, TypeError):
        return last_line(stderr) or last_line(stdout) or "eo said nothing"
    return f"{error['kind']}: {error['message']}"


def run_by_python() -> dict[str, Any]:
    """The same, in this process. Whether to come again, the error says itself."""
    from eo_pipeline import Pipeline
    from eo_pipeline.errors import EoPipelineError

    try:
        report = Pipeline.from_yaml(document()).run()
    except EoPipelineError as error:
        kind = TryAgainError if error.retryable else AirflowFailException
        raise kind(f"{type(error).__name__}: {error}") from error
    return {
        "version": report.head.version,
        "checkpoints": len(report.checkpoints),
        "rows": report.rows,
        "lag": report.lag,
    }


#: ``max_active_runs``: two runs at once harm nothing, and the slower one has worked in vain.
SETTINGS: dict[str, Any] = {
    "schedule": timedelta(minutes=5),
    "start_date": datetime(2026, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {
        "retries": 5,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": True,
        "execution_timeout": timedelta(hours=1),
    },
    "tags": ["eo-pipeline"],
}

if dag is not None:

    @dag(dag_id="eo_by_command", **SETTINGS)
    def eo_by_command() -> None:
        task(run_by_command)()

    @dag(dag_id="eo_by_python", **SETTINGS)
    def eo_by_python() -> None:
        task(run_by_python)()

    eo_by_command()
    eo_by_python()
