"""Publishes aircraft, then flights, in this process, which may be killed at any moment.

    python -m demo.publisher BOOTSTRAP-SERVERS REPORT-DESCRIPTOR --total N
    python -m demo.publisher BOOTSTRAP-SERVERS REPORT-DESCRIPTOR --rate PER-SECOND

After every transaction it writes a line to the descriptor: the number of flights in the topic.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from demo import flights, planes
from eo_pipeline.errors import SourceUnavailableError

#: The client library has calls that never come back if the broker dies at the wrong moment, their
#: time limit notwithstanding. So a publisher that long without progress ends itself; the one that
#: is started in its place goes on where its last transaction ended.
STALLED_AFTER_S = 120


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when the topic holds the total; 1 with a sentence if Kafka is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("report", type=int)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--total", type=int)
    what.add_argument("--rate", type=int)
    parser.add_argument("--registry")
    options = parser.parse_args(arguments)

    def report(count: int) -> None:
        signal.alarm(STALLED_AFTER_S)  # not caught: it ends the process
        os.write(options.report, f"{count}\n".encode())

    signal.alarm(STALLED_AFTER_S)
    try:
        if options.registry is None:
            planes.publish(options.bootstrap_servers)
        if options.total is not None:
            flights.publish(
                options.bootstrap_servers,
                total=options.total,
                progress=report,
                registry=options.registry,
            )
        else:
            flights.feed(options.bootstrap_servers, rate_per_s=options.rate, progress=report)
    except SourceUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
