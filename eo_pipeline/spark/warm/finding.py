"""Which warm Spark a run uses, if there is one: nothing has to be set."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from eo_pipeline.spark.warm.record import ServerRecord, UnreadableRecordError, nearest
from eo_pipeline.spark.warm.terms import differences, terms

log = logging.getLogger(__name__)

_INSTEAD = "This run starts a Spark of its own."


def warm_server(master: str, launch: Mapping[str, str]) -> ServerRecord | None:
    """The server of the working directory, or of a folder above it, that is there and fits.

    Why one is not used is logged as a warning.
    """
    found, why_not = _looked(master, launch)
    if why_not:
        log.warning("%s", why_not)
    return found


def has_warm_server(master: str, launch: Mapping[str, str]) -> bool:
    """Whether there is one for :func:`warm_server`, which will tell why not."""
    return _looked(master, launch)[0] is not None


def _looked(master: str, launch: Mapping[str, str]) -> tuple[ServerRecord | None, str]:
    """The server, or why one that is there is not used; empty: there is none."""
    try:
        found = nearest(Path.cwd())
    except (UnreadableRecordError, OSError) as error:
        return None, f"No warm Spark is used: {error}; `eo spark start` writes it anew."
    if found is None:
        return None, ""
    if not found.alive:
        return None, (
            f"{found} has ended without being asked to; `eo spark start` starts another, `eo spark "
            f"stop` forgets it, its log is {found.log}. {_INSTEAD}"
        )
    if differ := differences(found.terms, terms(master, launch)):
        return None, (
            f"{found} is not used: it was started with other settings ({', '.join(differ)}); `eo "
            f"spark stop`, then `eo spark start` from here. {_INSTEAD}"
        )
    if _has_functions_for_its_own_spark():
        return None, (
            f"{found} is not used: the transform's module makes a Python function for Spark (udf) "
            "when it is imported, and pyspark makes that for the kind of Spark the process has by "
            f"then; make it in the transform. {_INSTEAD}"
        )
    return found, ""


def _has_functions_for_its_own_spark() -> bool:
    """A ``udf`` that was made without Spark Connect fails when it is called with it."""
    # pyspark takes a sixth of a second to import, and who has not done so has made none
    if "pyspark.sql.udf" not in sys.modules:
        return False
    from pyspark.sql.udf import UserDefinedFunction

    referrers = gc.get_referrers(UserDefinedFunction)
    return any(isinstance(each, UserDefinedFunction) for each in referrers)


def tell_that_it_fails(server: ServerRecord, error: Exception) -> None:
    """Log why a server that is there and fits is not used after all."""
    log.warning(
        "%s does not answer as it should; `eo spark stop` ends it. %s %s", server, _INSTEAD, error
    )
