"""What Spark is told with every write, whatever the store."""

from __future__ import annotations

from collections.abc import Mapping

#: Files get their names from the driver, when all tasks have ended well. By version 2 tasks give
#: them: what one names that dies meanwhile stays, and one that was given up and goes on removes
#: what has the names it wants. And nothing else is put there.
COMMITTER: Mapping[str, str] = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}

#: Of ``request_timeout``: how long requests are tried again before the store is said not to answer.
RETRIED_FOR = 6
