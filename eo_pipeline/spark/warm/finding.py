"""Which warm Spark a run uses, if there is one: nothing has to be set."""

from __future__ import annotations

import gc
import logging
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
    try:
        found = nearest(Path.cwd())
    except (UnreadableRecordError, OSError) as error:
        log.warning("No warm Spark is used: %s; `eo spark start` writes it anew.", error)
        return None
    if found is None:
        return None
    if not found.alive:
        log.warning(
            "%s has ended without being asked to; `eo spark start` starts another, `eo spark stop` "
            "forgets it, its log is %s. %s",
            found,
            found.log,
            _INSTEAD,
        )
        return None
    differ = differences(found.terms, terms(master, launch))
    if differ:
        log.warning(
            "%s is not used: it was started with other settings (%s); `eo spark stop`, then `eo "
            "spark start` from here. %s",
            found,
            ", ".join(differ),
            _INSTEAD,
        )
        return None
    if _has_functions_for_its_own_spark():
        log.warning(
            "%s is not used: the transform's module makes a Python function for Spark (udf) when "
            "it is imported, and pyspark makes that for the kind of Spark the process has by then; "
            "make it in the transform. %s",
            found,
            _INSTEAD,
        )
        return None
    return found


def _has_functions_for_its_own_spark() -> bool:
    """A ``udf`` that was made without Spark Connect fails when it is called with it."""
    # here, because pyspark takes a sixth of a second to import
    from pyspark.sql.udf import UserDefinedFunction

    referrers = gc.get_referrers(UserDefinedFunction)
    return any(isinstance(each, UserDefinedFunction) for each in referrers)


def tell_that_it_fails(server: ServerRecord, error: Exception) -> None:
    """Log why a server that is there and fits is not used after all."""
    log.warning(
        "%s does not answer as it should; `eo spark stop` ends it. %s %s", server, _INSTEAD, error
    )
