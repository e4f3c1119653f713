"""JVM and Spark settings for jobs too short to warm up the JIT compiler.

A JVM compiles hot methods twice: soon and cheaply (C1), and later, from a profile, into code twice
as fast (C2). For a few thousand records C2 takes a third of a cold Spark's time, and its code
is lost when the process ends. A Spark for little work, in a process that ends with it, is started
without C2; one for more work has C2 with higher thresholds, which spare methods that run only a few
thousand times: most of the compilations. In a process that repeats little work they are so high
that the work of hours pays for C2.

Spark generates and compiles Java code for each plan, anew in each session: a third of a second on a
warm server. The smallest jobs are faster if Spark interprets its plan row by row.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from eo_pipeline._process import process_ends, process_repeats
from eo_pipeline.spark.launch import JAVA_OPTIONS, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The JVM's first compiler alone. A class-data archive does not depend on compilers.
C1_ALONE = "-XX:TieredStopAtLevel=1"

#: Both compilers; thresholds of C2 ten times the defaults. Code that runs per record reaches them,
#: code of start-up and planning does not.
C2_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

#: Thresholds of C2 a hundred times the defaults.
C2_LAST = (
    "-XX:Tier4InvocationThreshold=500000 -XX:Tier4MinInvocationThreshold=60000 "
    "-XX:Tier4CompileThreshold=1500000 -XX:Tier4BackEdgeThreshold=4000000"
)

#: Spark settings that disable code generation. From 30,000 records on they slow a cold run down.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Workload(Enum):
    """Amount of work for Spark in this process."""

    TINY = "tiny"
    SMALL = "small"
    LARGE = "large"


_amount: ContextVar[Workload] = ContextVar("amount", default=Workload.LARGE)
_interpreting: WeakSet[SparkSession] = WeakSet()


@contextmanager
def work(amount: Workload) -> Iterator[None]:
    """Set the amount of work for Spark within the block."""
    token = _amount.set(amount)
    try:
        yield
    finally:
        _amount.reset(token)


def fit(session: SparkSession, config: Mapping[str, str]) -> None:
    """Enable or disable code generation in ``session`` by the amount of work; settings in a user's
    ``config`` win.
    """
    tiny = _amount.get() is Workload.TINY and process_ends()
    if tiny == (session in _interpreting) or not _INTERPRETED.keys().isdisjoint(config):
        return
    from eo_pipeline.spark.errors import SPARK_ERRORS

    with suppress(*SPARK_ERRORS):  # Spark is lost; the job reports it
        for key, value in _INTERPRETED.items():
            session.conf.set(key, value) if tiny else session.conf.unset(key)
        (_interpreting.add if tiny else _interpreting.discard)(session)


def launched_for(
    master: str, launch: Mapping[str, str], config: Mapping[str, str]
) -> Mapping[str, str]:
    """Return ``launch``, the start-up settings of a Spark on ``master``, with JIT options for the
    amount of work; JVM options in a user's ``config`` win.
    """
    if not (process_ends() and is_local(master)) or JAVA_OPTIONS in config:
        return launch
    of_little = C2_LAST if process_repeats() else C1_ALONE
    compilers = C2_LATER if _amount.get() is Workload.LARGE else of_little
    return {**launch, JAVA_OPTIONS: f"{launch[JAVA_OPTIONS]} {compilers}"}


_NAME, _TYPES = "pandas", "pandas.api.types"


class _FrameType(type):
    """Metaclass of the stand-in for ``pandas.DataFrame``: no instances until pandas is imported."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get(_NAME)
        return pandas is not None and isinstance(instance, pandas.DataFrame)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return import_module(_NAME).DataFrame(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(import_module(_NAME).DataFrame, name)


class _Frame(metaclass=_FrameType):
    """Stand-in for ``pandas.DataFrame``."""


class _Pandas(ModuleType):
    """Stand-in for pandas in the modules imported by :func:`without_pandas`."""

    DataFrame = _Frame

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(_NAME), name)


class _Types(ModuleType):
    """Stand-in for the type checks of ``pandas.api.types``."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *args: getattr(import_module(_TYPES), name)(*args)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Give imports within the block a stand-in for pandas, unless pandas was imported before. Only
    in a process that ends with its work: there no other thread imports at the same time.
    """
    if _NAME in sys.modules or not process_ends():
        yield
        return
    stand_in = _Pandas(_NAME)
    stand_in.__version__ = importlib.metadata.version(_NAME)  # type: ignore[attr-defined]
    stand_ins = {_NAME: stand_in, "pandas.api": ModuleType("pandas.api"), _TYPES: _Types(_TYPES)}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
