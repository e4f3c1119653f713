"""Which documents a command works on, and the pipelines in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eo_pipeline.documents import Document, documents_in
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline

#: Files or folders, separated as in PATH.
VARIABLE = "EO_PIPELINES"

_SUFFIXES = (".yaml", ".yml")
_DAGSTER = ("defs.yaml", "defs.yml")
_PROJECT_FILE = "pyproject.toml"


@dataclass(frozen=True)
class Chosen:
    """One pipeline and the document it comes from."""

    document: Document
    pipeline: Pipeline


def choose(files: Sequence[Path] | None, name: str | None) -> Chosen:
    """The one pipeline a command works on.

    Raises:
        ConfigError: there is none or several of them, or its document is not valid.
    """
    found = documents(files, name)
    if len(found) > 1:
        names = ", ".join(sorted(document.name for document in found))
        raise ConfigError(f"there are several pipelines: {names}. Choose one with --pipeline.")
    return Chosen(found[0], load(found[0]))


def documents(files: Sequence[Path] | None, name: str | None) -> list[Document]:
    """Every document, or those of the pipeline ``name``; at least one.

    Raises:
        ConfigError: there is none, two have one name, or a file is not YAML.
    """
    paths = list(files or _from_the_environment() or _in_the_working_directory())
    found = [document for path in paths for document in _at(path)]
    if not found:
        where = ", ".join(map(str, paths)) or f"{Path.cwd()}"
        raise ConfigError(
            f"no pipeline document in {where}. Name one with --file or {VARIABLE}; `eo init` "
            "writes one."
        )
    by_name = _by_name(found)
    if name is None:
        return found
    if name not in by_name:
        raise ConfigError(f"no pipeline {name!r}; there are {', '.join(sorted(by_name))}")
    return [by_name[name]]


def load(document: Document) -> Pipeline:
    """The pipeline, with its transform imported.

    Raises:
        ConfigError: the document is not valid; the message names the file and every wrong field.
    """
    _make_importable(document.path)
    return Pipeline.from_document(document)


def _by_name(found: Sequence[Document]) -> dict[str, Document]:
    by_name: dict[str, Document] = {}
    for document in found:
        other = by_name.setdefault(document.name, document)
        if other is not document:
            raise ConfigError(
                f"two documents are called {document.name!r}: {other.path} and {document.path}"
            )
    return by_name


def _from_the_environment() -> list[Path]:
    named = os.environ.get(VARIABLE, "")
    return [Path(part) for part in named.split(os.pathsep) if part]


def _in_the_working_directory() -> list[Path]:
    folder = Path("pipelines")
    if folder.is_dir() and list(_yaml_files(folder)):
        return [folder]
    if Path("pipeline.yaml").is_file():
        return [Path("pipeline.yaml")]
    return sorted(_dagster_documents(Path()))


def _at(path: Path) -> Iterator[Document]:
    if not path.is_dir():
        yield from documents_in(path)
        return
    for file in [*_yaml_files(path), *_dagster_documents(path)]:
        yield from documents_in(file)


def _yaml_files(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    return sorted(path for path in files if path.name not in _DAGSTER)


def _dagster_documents(root: Path) -> list[Path]:
    """Every defs.yaml below ``root``, outside hidden folders and virtual environments."""
    found = []
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if not _foreign(Path(folder, name)))
        found += [Path(folder, name) for name in files if name in _DAGSTER]
    return found


def _foreign(folder: Path) -> bool:
    return folder.name.startswith(".") or (folder / "pyvenv.cfg").exists()


def _make_importable(path: Path) -> None:
    """Put the project's root and the working directory on the import path, as Dagster does."""
    parents = path.absolute().parents
    root = next((p for p in parents if (p / _PROJECT_FILE).is_file()), parents[0])
    for folder in (root / "src", root, Path.cwd()):
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
