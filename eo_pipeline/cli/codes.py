"""Exit codes, and what an error says to a script."""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import Any, NoReturn

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
    "must be put right first; 3 the audit found differences, the doctor a fault, or no "
    "warm Spark answers; 4 try again "
    "(a server is away, another run was faster); 5 Kafka no longer holds what comes next; "
    "130 interrupted (143 by SIGTERM, 129 by a closed terminal)."
)


def exit_code(error: EoPipelineError) -> ExitCode:
    """The code a command ends with that met ``error``."""
    if isinstance(error, ConfigError | SetupError):
        return ExitCode.USAGE
    if isinstance(error, DataLossError):
        return ExitCode.DATA_LOSS
    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.FAILED


class Signalled(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does: libraries know what to do with that."""

    def __init__(self, number: int) -> None:
        self.number = number


def end_by_signal(number: int, _: object) -> NoReturn:
    """The handler of signals that shall end a command."""
    raise Signalled(number)


def interrupted_code(interruption: KeyboardInterrupt) -> int:
    """128 and the signal's number, as shells have it: 130 after Ctrl-C."""
    number = interruption.number if isinstance(interruption, Signalled) else signal.SIGINT
    return 128 + number


def error_json(error: EoPipelineError) -> dict[str, Any]:
    """``{"error": {"kind", "message", "retryable"}}``."""
    return {
        "error": {
            "kind": type(error).__name__,
            "message": str(error),
            "retryable": error.retryable,
        }
    }
