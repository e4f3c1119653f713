"""Options shared by several commands, and the parsing of their values."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from eo_pipeline.config.documents import Document, documents_in
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        help="A pipeline document, or a folder of them; may be repeated. Default: EO_PIPELINES, "
        "else pipelines/, pipeline.yaml, or the project's defs.yaml files.",
    ),
]
Name = Annotated[
    str | None, typer.Option("--pipeline", "-p", help="The pipeline's name, if there are several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Reason = Annotated[
    str, typer.Option("--reason", help="Reason for the change; stored in the ledger.")
]
AcceptCompacted = Annotated[
    bool,
    typer.Option("--accept-compacted", help="Proceed even if compaction may have removed records."),
]
Version = Annotated[int, typer.Argument(min=0, help="A version of the ledger.")]
RunId = Annotated[
    str | None,
    typer.Option("--run-id", help="Run id stored with each commit; generated if absent."),
]


def version_or_time(text: str) -> int | datetime:
    """Parse ``7``, or a time with its zone: ``2026-01-31T12:00Z``.

    Raises:
        ConfigError: the text is neither of the two.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither a version nor a time such as 2026-01-31T12:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"{text} names no time zone; add one, Z for UTC")
    return moment


_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float | None:
    """Parse ``45s``, ``30m`` or ``2h``, more than nothing; None for another text."""
    match = re.fullmatch(r"([1-9]\d*)([smh])", text)
    return float(int(match[1]) * _UNITS[match[2]]) if match else None


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse ``["key=value", ...]`` into a mapping.

    Raises:
        ConfigError: an item has no ``=``. The message omits the item, which may be a secret.
    """
    values = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} takes key=value")
        values[key] = value
    return values


def user() -> str:
    """Return the user's name for the ledger; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # which one depends on Python's version
        return ""


#: Variable with files or folders, separated as in PATH.
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
    """Return the one pipeline that a command works on.

    Raises:
        ConfigError: there is none, there are several, or the document is not valid.
    """
    chosen = documents(files, name)
    if len(chosen) > 1:
        names = ", ".join(sorted(document.name for document in chosen))
        raise ConfigError(f"there are several pipelines: {names}. Choose one with --pipeline.")
    return Chosen(chosen[0], load(chosen[0]))


def documents(files: Sequence[Path] | None, name: str | None) -> list[Document]:
    """Return all documents, or the one of the pipeline ``name``; at least one.

    Raises:
        ConfigError: there is none, two have the same name, or a file is not YAML.
    """
    paths = list(files or _paths_from_environment() or _paths_in_working_directory())
    listed = [document for path in paths for document in _documents_at(path)]
    if not listed:
        where = ", ".join(map(str, paths)) or f"{Path.cwd()}"
        raise ConfigError(
            f"no pipeline document in {where}. Name one with --file or {VARIABLE}; `eo init` "
            "writes one."
        )
    by_name = _by_name(listed)
    if name is None:
        return listed
    if name not in by_name:
        raise ConfigError(f"no pipeline {name!r}; there are {', '.join(sorted(by_name))}")
    return [by_name[name]]


def load(document: Document) -> Pipeline:
    """Return the pipeline, with its transform imported.

    Raises:
        ConfigError: the document is not valid; the message names the file and every wrong field.
    """
    _make_importable(document.path)
    return Pipeline.from_document(document)


def _by_name(listed: Sequence[Document]) -> dict[str, Document]:
    by_name: dict[str, Document] = {}
    for document in listed:
        other = by_name.setdefault(document.name, document)
        if other is not document:
            raise ConfigError(
                f"two documents are called {document.name!r}: {other.path} and {document.path}"
            )
    return by_name


def _paths_from_environment() -> list[Path]:
    value = os.environ.get(VARIABLE, "")
    return [Path(part) for part in value.split(os.pathsep) if part]


def _paths_in_working_directory() -> list[Path]:
    folder = Path("pipelines")
    if folder.is_dir() and list(_yaml_files(folder)):
        return [folder]
    if Path("pipeline.yaml").is_file():
        return [Path("pipeline.yaml")]
    return sorted(_dagster_documents(Path()))


def _documents_at(path: Path) -> Iterator[Document]:
    if not path.is_dir():
        yield from documents_in(path)
        return
    for file in [*_yaml_files(path), *_dagster_documents(path)]:
        yield from documents_in(file)


def _yaml_files(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    return sorted(path for path in files if path.name not in _DAGSTER)


def _dagster_documents(root: Path) -> list[Path]:
    """Return every defs.yaml below ``root``, outside hidden folders and virtual environments."""
    documents = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not _is_excluded(Path(folder, name)))
        documents += [Path(folder, name) for name in files if name in _DAGSTER]
    return documents


def _is_excluded(folder: Path) -> bool:
    return folder.name.startswith(".") or (folder / "pyvenv.cfg").exists()


def _make_importable(path: Path) -> None:
    """Put the project's root and the working directory on the import path, as Dagster does."""
    parents = path.absolute().parents
    root = next((p for p in parents if (p / _PROJECT_FILE).is_file()), parents[0])
    for folder in (root / "src", root, Path.cwd()):
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
