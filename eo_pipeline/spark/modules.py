"""The user's Python modules, where Spark's Python workers run.

A function of a module travels by its name alone, and a worker on another machine imports it there.
So that nobody need copy anything, what a transform's functions name of the user's own modules is
sent along, as source: the modules that this process has loaded from where the transform's lies, and
what lies beside that. What is installed belongs to the Python of the executors.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from eo_pipeline.errors import ConfigError, SetupError, SparkUnavailableError
from eo_pipeline.spark.clients import is_connect
from eo_pipeline.spark.errors import SPARK_ERRORS, first_lines, server_is_lost
from eo_pipeline.spark.launch import is_local
from eo_pipeline.storage.paths import zipped

_DIGITS = 12

#: The names of the archives that each session has.
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def send_modules(frame: DataFrame, transform: Callable[..., Any] | None) -> None:
    """See that workers find what ``frame`` needs, which ``transform`` made. Nothing is sent to a
    Spark that imports from where this process does, nor if no function names a module.
    """
    spark = frame.sparkSession
    if transform is None or not (is_connect(frame) or _is_elsewhere(spark)):
        return
    files = _files_of(transform)
    if files and _names_one(frame, files):
        _send(spark, _archive(files))


def send_files(spark: SparkSession, paths: Iterable[str]) -> None:
    """See that workers find these modules: files and archives (``.py``, ``.zip``, ``.egg``), or
    folders of packages.

    Raises:
        ConfigError: there is no such file.
        SetupError: Spark does not take them.
        SparkUnavailableError: the server was lost.
    """
    for path in map(Path, paths):
        if not path.exists():
            raise ConfigError(f"spark.py_files: {path} is no file and no folder")
        try:
            _send(spark, _archive(_below(path)) if path.is_dir() else path.absolute())
        except SPARK_ERRORS as error:
            if server_is_lost(spark):
                raise SparkUnavailableError(
                    f"Spark was lost while it was sent spark.py_files. {first_lines(error)}"
                ) from error
            raise SetupError(
                f"spark.py_files: Spark does not take {path}. {first_lines(error)}"
            ) from error


def _below(folder: Path) -> dict[str, Path]:
    return {str(file.relative_to(folder.parent)): file for file in sorted(folder.rglob("*.py"))}


def _send(spark: SparkSession, path: Path) -> None:
    sent = _sent.setdefault(spark, set())
    if path.name in sent:
        return
    before = list(sys.path)
    spark.addArtifacts(str(path), pyfile=True)
    # pyspark would have this process import from the archive, too
    sys.path[:] = before
    sent.add(path.name)


def _is_elsewhere(spark: SparkSession) -> bool:
    """Whether a classic session has executors on other machines."""
    return not is_local(spark.conf.get("spark.master", "local") or "local")


def _names_one(frame: DataFrame, files: Mapping[str, Path]) -> bool:
    """Whether a function in the plan names a module of ``files``: pickled, it has the name in it.
    Of a classic session the plan is not here to be looked at.
    """
    if not is_connect(frame):
        return True
    remote = cast(Any, frame)
    plan: bytes = remote._plan.to_proto(remote._session.client).SerializeToString()
    return any(_dotted(name).encode() in plan for name in files)


def _dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _files_of(transform: Callable[..., Any]) -> dict[str, Path]:
    """The user's own modules, by their names in an archive; as they are when first asked for."""
    module = inspect.getmodule(inspect.unwrap(getattr(transform, "func", transform)))
    root = _root_of(module) if module is not None else None
    if module is None or root is None or _is_installed(root):
        return {}
    beside = Path(str(module.__file__)).parent
    found = {*_loaded_from(root), *beside.glob("*.py")}
    packages = {
        folder / "__init__.py"
        for file in found
        for folder in file.parents
        if folder != root and folder.is_relative_to(root)
    }
    found |= {file for file in packages if file.is_file()}
    return {file.relative_to(root).as_posix(): file for file in sorted(found)}


def _root_of(module: ModuleType) -> Path | None:
    """The folder from which it was imported; None: from none, or it was not imported."""
    held = vars(module)  # asked by name, some modules load what they stand for
    file, name = held.get("__file__"), str(held.get("__name__"))
    if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
        return None
    path = Path(file).absolute()
    above = name.count(".") + (path.name == "__init__.py")
    return path.parents[above] if above < len(path.parents) else None


def _loaded_from(root: Path) -> Iterator[Path]:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _root_of(module) == root:
            yield Path(str(module.__file__)).absolute()


def _is_installed(root: Path) -> bool:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return any(root.is_relative_to(sysconfig.get_path(kind)) for kind in kinds)


def _archive(files: Mapping[str, Path]) -> Path:
    """Made once; its name tells what is in it, since none is taken twice with another content."""
    content = zipped({name: file.read_bytes() for name, file in files.items()})
    path = Path(_folder().name) / f"eo-{hashlib.sha256(content).hexdigest()[:_DIGITS]}.zip"
    if not path.exists():
        path.write_bytes(content)
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """There until this process ends: a driver hands its files out from where they are."""
    return tempfile.TemporaryDirectory(prefix="eo-modules-")
