"""Deferred registration of Spark's machine learning functions.

The first session of a JVM loads Spark's session extensions. Spark's own one registers two
functions that convert vectors and arrays, and takes half a second to derive their types. This
package never uses them. A command that runs no other code creates its first session without them,
and registers them before other code gets a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError

from eo_pipeline.spark.driver import java_classes
from eo_pipeline.spark.native_jar import compiled_jar

_deferred = False


@contextmanager
def deferred_registration() -> Iterator[None]:
    """Within the block, create the JVM's first session without the functions."""
    global _deferred
    ours = java_classes() if compiled_jar() is not None else None
    try:
        before = ours.LaterExtensions.hide() if ours is not None else None
    except (Py4JError, TypeError):  # the JVM was started without our jar
        ours = None
    if ours is None:
        yield
        return
    try:
        yield
        _deferred = True
    finally:
        ours.LaterExtensions.show(before)


def register_deferred() -> None:
    """Register the deferred functions, before code that is not ours gets a session."""
    global _deferred
    if _deferred and (ours := java_classes()) is not None:
        ours.LaterExtensions.register()
    _deferred = False
