"""Checkpoints of a table's log, by which whoever opens the table need not read each commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from eo_pipeline.bucket import BucketPath
from eo_pipeline.places import Place
from eo_pipeline.sinks.delta.log import LOG_FOLDER, newest_checkpoint

log = logging.getLogger(__name__)

#: Commits between two checkpoints, unless the table says otherwise: a fortieth of the actions that
#: the last one holds, one for each file, within these bounds. Each holds them all, so that at equal
#: distances a log would grow with the square, and so would the work. In a bucket whoever opens the
#: table asks for each commit behind it.
INTERVAL, INTERVAL_MAX, INTERVAL_MAX_IN_A_BUCKET = 10, 100, 30
ACTIONS_A_COMMIT = 40


def checkpoint_if_due(
    table: Place, options: dict[str, str], version: int, settings: Mapping[str, str]
) -> None:
    """Keep the log of the table in ``table`` short behind its commit ``version``, which has landed,
    as delta-rs's own hooks would; a failure is a warning.
    """
    set_to = settings.get("delta.checkpointInterval")
    if (version + 1) % int(set_to or INTERVAL):
        return
    try:
        if set_to or _is_due(table / LOG_FOLDER, version):
            _checkpoint(str(table), options, settings)
    except (DeltaError, OSError) as error:
        log.warning("%s: no checkpoint of the log was made: %s", table, error)


def _checkpoint(uri: str, options: dict[str, str], settings: Mapping[str, str]) -> None:
    table = DeltaTable(uri, storage_options=options)
    table.create_checkpoint()
    if settings.get("delta.enableExpiredLogCleanup", "true") == "true":
        table.cleanup_metadata()


def _is_due(log_folder: Place, version: int) -> bool:
    try:
        last = newest_checkpoint(log_folder)
    except (ValueError, KeyError, TypeError):
        return True  # what is said of it is not whole; the next one is said anew
    if last is None:
        return True
    most = INTERVAL_MAX_IN_A_BUCKET if isinstance(log_folder, BucketPath) else INTERVAL_MAX
    wanted = max(last.actions // ACTIONS_A_COMMIT, INTERVAL)
    return version - last.version >= min(wanted, most)
