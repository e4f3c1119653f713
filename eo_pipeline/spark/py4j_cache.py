"""What names of Spark's classes mean, kept once the JVM has told it.

py4j asks for the class, then for its function, and then calls it, at each use: of the requests for
the expressions of a checkpoint that is two in three, and a cold JVM takes its time for each.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView

#: Those whose static functions make expressions, by the names under which pyspark asks for them.
_CLASSES = {
    "org.apache.spark.sql.functions": ("functions", "org.apache.spark.sql.functions"),
    "org.apache.spark.api.python.PythonUtils": ("PythonUtils",),
}


class _Remembered(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            setattr(self, name, found)
        return found


def remember_classes(jvm: JVMView) -> None:
    """Let ``jvm`` answer for them itself."""
    for full_name, names in _CLASSES.items():
        known = _Remembered(full_name, jvm._gateway_client)
        vars(jvm).update(dict.fromkeys(names, known))
