"""Cache of py4j's lookups of Spark's classes and their functions.

At each use py4j looks up the class, then its function, and then calls it. The lookups are two in
three of a checkpoint's requests for expressions, and slow on a cold JVM.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView

#: Classes whose static functions create expressions, with the names that pyspark uses for them.
_CLASSES = {
    "org.apache.spark.sql.functions": ("functions", "org.apache.spark.sql.functions"),
    "org.apache.spark.api.python.PythonUtils": ("PythonUtils",),
}


class _CachingClass(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            setattr(self, name, member)
        return member


def cache_classes(jvm: JVMView) -> None:
    """Replace the classes in ``jvm`` by caching ones."""
    for full_name, names in _CLASSES.items():
        cached = _CachingClass(full_name, jvm._gateway_client)
        vars(jvm).update(dict.fromkeys(names, cached))
