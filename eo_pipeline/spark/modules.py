"""The user's Python modules, sent to Spark's Python workers.

A module's function is pickled by name, and a worker on another machine imports the module. The
user's own modules that a transform's functions name are therefore sent along as source: the modules
loaded from the root folder of the transform's module, and the files beside it. Installed packages
must be installed in the Python of the executors.
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
from eo_pipeline.spark.errors import SPARK_ERRORS, error_text, server_is_lost
from eo_pipeline.spark.launch import is_local
from eo_pipeline.storage.paths import zipped

_DIGITS = 12

#: Names of the archives sent to each session.
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def send_modules(frame: DataFrame, transform: Callable[..., Any] | None) -> None:
    """Send the user's modules that ``frame``, the result of ``transform``, needs. Sends nothing to
    a Spark with this process's import path, nor if no function names a module.
    """
    spark = frame.sparkSession
    if transform is None or not (is_connect(frame) or _is_elsewhere(spark)):
        return
    files = _files_of(transform)
    if files and _names_any(frame, files):
        _send(spark, _archive(files))


def send_files(spark: SparkSession, paths: Iterable[str]) -> None:
    """Send modules to the workers: files and archives (``.py``, ``.zip``, ``.egg``), or folders of
    packages.

    Raises:
        ConfigError: a file does not exist.
        SetupError: Spark refuses them.
        SparkUnavailableError: the server was lost.
    """
    for path in map(Path, paths):
        if not path.exists():
            raise ConfigError(f"spark.py_files: {path} is no file and no folder")
        try:
            _send(spark, _archive(_modules_in(path)) if path.is_dir() else path.absolute())
        except SPARK_ERRORS as error:
            if server_is_lost(spark):
                raise SparkUnavailableError(
                    f"Spark was lost while it was sent spark.py_files. {error_text(error)}"
                ) from error
            raise SetupError(
                f"spark.py_files: Spark does not take {path}. {error_text(error)}"
            ) from error


def _modules_in(folder: Path) -> dict[str, Path]:
    return {str(file.relative_to(folder.parent)): file for file in sorted(folder.rglob("*.py"))}


def _send(spark: SparkSession, path: Path) -> None:
    sent = _sent.setdefault(spark, set())
    if path.name in sent:
        return
    before = list(sys.path)
    spark.addArtifacts(str(path), pyfile=True)
    # pyspark also adds the archive to this process's import path
    sys.path[:] = before
    sent.add(path.name)


def _is_elsewhere(spark: SparkSession) -> bool:
    """Return whether a classic session has executors on other machines."""
    return not is_local(spark.conf.get("spark.master", "local") or "local")


def _names_any(frame: DataFrame, files: Mapping[str, Path]) -> bool:
    """Return whether a function in the plan names a module of ``files``: a pickled function
    contains the name. A classic session's plan is not accessible; True then.
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
    """Return the user's own modules by their names in an archive; cached at the first call."""
    module = inspect.getmodule(inspect.unwrap(getattr(transform, "func", transform)))
    root = _root_of(module) if module is not None else None
    if module is None or root is None or _is_installed(root):
        return {}
    siblings = Path(str(module.__file__)).parent.glob("*.py")
    files = {*_loaded_from(root), *siblings}
    packages = {
        folder / "__init__.py"
        for file in files
        for folder in file.parents
        if folder != root and folder.is_relative_to(root)
    }
    files |= {file for file in packages if file.is_file()}
    return {file.relative_to(root).as_posix(): file for file in sorted(files)}


def _root_of(module: ModuleType) -> Path | None:
    """Return the folder on the import path that has the module; None: it was not imported from a
    file.
    """
    attributes = vars(module)  # getattr would trigger the imports of lazy modules
    file, name = attributes.get("__file__"), str(attributes.get("__name__"))
    if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
        return None
    path = Path(file).absolute()
    levels = name.count(".") + (path.name == "__init__.py")
    return path.parents[levels] if levels < len(path.parents) else None


def _loaded_from(root: Path) -> Iterator[Path]:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _root_of(module) == root:
            yield Path(str(module.__file__)).absolute()


def _is_installed(root: Path) -> bool:
    schemes = ("stdlib", "platstdlib", "purelib", "platlib")
    return any(root.is_relative_to(sysconfig.get_path(scheme)) for scheme in schemes)


def _archive(files: Mapping[str, Path]) -> Path:
    """Create an archive named by its hash: Spark refuses a known name with other content."""
    content = zipped({name: file.read_bytes() for name, file in files.items()})
    path = Path(_folder().name) / f"eo-{hashlib.sha256(content).hexdigest()[:_DIGITS]}.zip"
    if not path.exists():
        path.write_bytes(content)
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that exists until this process ends: a driver serves files from it."""
    return tempfile.TemporaryDirectory(prefix="eo-modules-")
