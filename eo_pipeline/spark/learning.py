"""The functions of Spark's machine learning, registered only for who may use them.

The first session of a JVM loads Spark's extensions, of which Spark brings one along: it registers
two functions that turn vectors into arrays and back, and the way it finds their types takes half a
second. What this package asks of Spark by itself never uses them. So a command that runs no other
code makes its first session without, and makes up for it before other code gets a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError

from eo_pipeline.spark.driver import classes_of_ours
from eo_pipeline.spark.native_jar import ordinary_jar

_missing = False


@contextmanager
def registered_later() -> Iterator[None]:
    """The first session of this process's JVM, made in the block, is made without them."""
    global _missing
    ours = classes_of_ours() if ordinary_jar() is not None else None
    try:
        before = ours.LaterExtensions.hide() if ours is not None else None
    except (Py4JError, TypeError):  # a JVM that was started without our jar
        ours = None
    if ours is None:
        yield
        return
    try:
        yield
        _missing = True
    finally:
        ours.LaterExtensions.show(before)


def register_what_is_missing() -> None:
    """Before code that is not ours gets a session of this process's JVM."""
    global _missing
    if _missing and (ours := classes_of_ours()) is not None:
        ours.LaterExtensions.register()
    _missing = False
