"""An archive of classes that fits no more, made anew behind the command that missed it.

    python -m eo_pipeline.spark.warm.renewing <<< '{"arguments": [...]}'

``arguments`` are those of ``spark-submit``. Only where one was made before: whoever made one wants
one, and nobody else finds 150 MB that were not asked for. The process outlives its command by half
a minute: so it gives way to all others, holds nothing of the command's, begins once a day at most,
and ends. Killed at any moment it leaves nothing that a JVM would take.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eo_pipeline.errors import SetupError
from eo_pipeline.jvm.archive import CACHE_VARIABLE, folder, has_any
from eo_pipeline.spark.warm.archiving import make_archive

#: Set to anything, no archive is made without being asked for; nor where a build service sets CI.
OFF_VARIABLE = "EO_NO_RENEWAL"
_CI_VARIABLE = "CI"

#: However often it is killed, and whatever changes with each start.
_PAUSE_S = 24 * 3600.0
#: Of this release, and of others or of other settings.
_ARCHIVES_MAX = 3
_FREE_BYTES_MIN = 1024**3
#: A tenth of what others get: with less it would not end in time where there is always work.
_NICE = 10
_OUT_OF_MEMORY = "1000"
#: The parent of whatever has lost its own, and of a container's or a service's command.
_FIRST_PROCESS = 1
_PACKAGES = Path(__file__).parents[3]

log = logging.getLogger(__name__)


def renew(arguments: Sequence[str]) -> bool:
    """Begin to make the archive for a Spark that ``arguments`` of ``spark-submit`` start, in a
    process that outlives this one; whether it was begun. It is said, and done where it is wanted,
    may work, and was not tried within a day.
    """
    if not (_is_wanted() and has_any()):
        return False
    try:
        if _was_tried() or shutil.disk_usage(folder()).free < _FREE_BYTES_MIN:
            return False
        _tried().touch()
        _begin(arguments)
    except OSError as error:
        log.debug("No archive is made in the background: %s", error)
        return False
    log.info(
        "The archive of Spark's classes is made anew in the background, for half a minute "
        "(%s=1 turns that off).",
        OFF_VARIABLE,
    )
    return True


def _is_wanted() -> bool:
    """Not if it was turned off, and not behind the command of a container or a service, which ends
    with all that it started.
    """
    if os.environ.get(OFF_VARIABLE) or os.environ.get(_CI_VARIABLE):
        return False
    return _FIRST_PROCESS not in (os.getpid(), os.getppid())


def _was_tried() -> bool:
    with suppress(FileNotFoundError):
        return 0 <= time.time() - _tried().stat().st_mtime < _PAUSE_S
    return False


def _tried() -> Path:
    """A file that is as old as the last try."""
    return folder() / "renewed"


def _begin(arguments: Sequence[str]) -> None:
    output = os.open(folder() / "renewal.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    packages = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": packages}
    if CACHE_VARIABLE in os.environ:  # which may be a path from this working directory
        variables[CACHE_VARIABLE] = str(folder().parent)
    with os.fdopen(output, "wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            cwd=folder(),
            env=os.environ | variables,
            text=True,
            # neither the terminal's signals nor its end are meant for it
            start_new_session=True,
        )
    if process.stdin is not None:
        with process.stdin as order:
            json.dump({"arguments": list(arguments)}, order)


def main() -> None:
    """See above; ends at once if another process makes one."""
    os.nice(_NICE)
    with suppress(OSError):  # where there is such a file: the first to go if memory is short
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY)
    order = json.load(sys.stdin)
    try:
        make_archive(order["arguments"], wait_s=0, number_max=_ARCHIVES_MAX)
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
