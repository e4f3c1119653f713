"""Work that is over before a JVM has made its best code.

A JVM turns what runs often into code twice: at once and cheaply (C1), and later, from what it saw
meanwhile, into code that is twice as fast (C2). For a few thousand records the second takes a third
of all that a cold Spark takes, and is thrown away as the process ends. So a Spark that is started
for little work, in a process that ends with it, is started without; and for more work, with one
that leaves alone what runs a few thousand times, which is most of what it would do.

Spark itself makes Java code for each plan and has it compiled, for each session anew: a third of a
second on a warm server. The least work is over sooner if Spark goes through its plan for each row.
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

from eo_pipeline._process import process_ends
from eo_pipeline.spark.launch import JAVA_OPTIONS, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The JVM's first compiler alone. A class-data archive does not depend on compilers.
C1_ALONE = "-XX:TieredStopAtLevel=1"

#: Both compilers, the second for what has run ten times as often as it waits for by itself: the
#: code for each of many records. That of starting Spark, and of planning, never gets there.
C2_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

#: Spark's settings by which it compiles nothing, and what it has by itself. From 30,000 records on
#: a cold run takes longer so.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Amount(Enum):
    """How much Spark is asked for by all that this process does."""

    LEAST = "least"
    LITTLE = "little"
    MUCH = "much"


_amount: ContextVar[Amount] = ContextVar("amount", default=Amount.MUCH)
_interpreting: WeakSet[SparkSession] = WeakSet()


@contextmanager
def work(amount: Amount) -> Iterator[None]:
    """How much it is that Spark is asked for in the block."""
    token = _amount.set(amount)
    try:
        yield
    finally:
        _amount.reset(token)


def fit(session: SparkSession, config: Mapping[str, str]) -> None:
    """Let ``session`` run its plans as the work wants them; what a user's ``config`` says of that
    stays as it is.
    """
    least = _amount.get() is Amount.LEAST and process_ends()
    if least == (session in _interpreting) or not _INTERPRETED.keys().isdisjoint(config):
        return
    from eo_pipeline.spark.errors import SPARK_ERRORS

    with suppress(*SPARK_ERRORS):  # of a Spark that is lost the job itself says so
        for key, value in _INTERPRETED.items():
            session.conf.set(key, value) if least else session.conf.unset(key)
        (_interpreting.add if least else _interpreting.discard)(session)


def launched_for(
    master: str, launch: Mapping[str, str], config: Mapping[str, str]
) -> Mapping[str, str]:
    """``launch``, the settings that a Spark on ``master`` is started with now, as its work wants
    them; the JVM options of a user's ``config`` stay as they are.
    """
    if not (process_ends() and is_local(master)) or JAVA_OPTIONS in config:
        return launch
    compilers = C2_LATER if _amount.get() is Amount.MUCH else C1_ALONE
    return {**launch, JAVA_OPTIONS: f"{launch[JAVA_OPTIONS]} {compilers}"}


_NAME, _TYPES = "pandas", "pandas.api.types"


class _FrameType(type):
    """Of what stands for ``pandas.DataFrame``: who has no pandas has no such frame."""

    def __instancecheck__(cls, instance: object) -> bool:
        pandas = sys.modules.get(_NAME)
        return pandas is not None and isinstance(instance, pandas.DataFrame)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return import_module(_NAME).DataFrame(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(import_module(_NAME).DataFrame, name)


class _Frame(metaclass=_FrameType):
    """Stands for ``pandas.DataFrame``."""


class _Pandas(ModuleType):
    """Stands for pandas in the modules that were imported meanwhile."""

    DataFrame = _Frame

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(_NAME), name)


class _Types(ModuleType):
    """Stands for its functions that tell types apart."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *args: getattr(import_module(_TYPES), name)(*args)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Imports in the block get what stands for pandas, if that was not imported before; where the
    process ends with its work, so that no other thread is at its own imports meanwhile.
    """
    if _NAME in sys.modules or not process_ends():
        yield
        return
    stand_in = _Pandas(_NAME)
    stand_in.__version__ = importlib.metadata.version(_NAME)  # type: ignore[attr-defined]
    standing = {_NAME: stand_in, "pandas.api": ModuleType("pandas.api"), _TYPES: _Types(_TYPES)}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name, each in standing.items():
            if sys.modules.get(name) is each:
                del sys.modules[name]
