"""Work that is over before a JVM has made its best code.

A JVM turns what runs often into code twice: at once and cheaply (C1), and later, from what it saw
meanwhile, into code that is twice as fast (C2). For a few thousand records the second takes a third
of all that a cold Spark takes, and is thrown away as the process ends. So a Spark that is started
for little work, in a process that ends with it, is started without; and for more work, with one
that leaves alone what runs a few thousand times, which is most of what it would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from eo_pipeline.lifetime import process_ends
from eo_pipeline.spark.launch import JAVA_OPTIONS, is_local

#: The JVM's first compiler alone. A class-data archive does not depend on compilers.
C1_ALONE = "-XX:TieredStopAtLevel=1"

#: Both compilers, the second for what has run ten times as often as it waits for by itself: the
#: code for each of many records. That of starting Spark, and of planning, never gets there.
C2_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

_little: ContextVar[bool] = ContextVar("little", default=False)


@contextmanager
def work(*, little: bool) -> Iterator[None]:
    """Whether what Spark is asked for in the block is little: all that this process does."""
    token = _little.set(little)
    try:
        yield
    finally:
        _little.reset(token)


def launched_for(
    master: str, launch: Mapping[str, str], config: Mapping[str, str]
) -> Mapping[str, str]:
    """``launch``, the settings that a Spark on ``master`` is started with now, as its work wants
    them; the JVM options of a user's ``config`` stay as they are.
    """
    if not (process_ends() and is_local(master)) or JAVA_OPTIONS in config:
        return launch
    compilers = C1_ALONE if _little.get() else C2_LATER
    return {**launch, JAVA_OPTIONS: f"{launch[JAVA_OPTIONS]} {compilers}"}
