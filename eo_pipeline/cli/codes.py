"""Exit codes, and what an error says to a script."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from eo_pipeline.errors import ConfigError, DataLossError, EoPipelineError, SetupError


class ExitCode(IntEnum):
    """How a command ended. docs/cli.md and ``eo --help`` list them."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCES = 3
    TRY_AGAIN = 4
    DATA_LOSS = 5


EPILOG = (
    "Exit codes: 0 done; 1 failed, or declined; 2 the command line, a document or this machine "
    "must be put right first; 3 the audit found differences, or the doctor a fault; 4 try again "
    "(a server is away, another run was faster); 5 Kafka no longer holds what comes next; "
    "130 interrupted."
)


def exit_code(error: EoPipelineError) -> ExitCode:
    """The code a command ends with that met ``error``."""
    if isinstance(error, ConfigError | SetupError):
        return ExitCode.USAGE
    if isinstance(error, DataLossError):
        return ExitCode.DATA_LOSS
    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.FAILED


def error_json(error: EoPipelineError) -> dict[str, Any]:
    """``{"error": {"kind", "message", "retryable"}}``."""
    return {
        "error": {
            "kind": type(error).__name__,
            "message": str(error),
            "retryable": error.retryable,
        }
    }
