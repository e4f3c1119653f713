"""Folders named by a sink's configuration: validation, removal, and hard links to files."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from eo_pipeline.errors import ConfigError
from eo_pipeline.storage.paths import (
    Place,
    RemotePath,
    fsync,
    local_folder,
    names_in,
    new_file,
    remove_tree,
)

#: Errors of ``link`` where hard links do not exist, or not between these two folders.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


def check_folder(path: str, why_not: str) -> str:
    """``path``, for a pydantic validator; ``why_not`` says why a URL of another kind is refused.

    Raises:
        ValueError: it names no folder.
    """
    if not path.strip():
        raise ValueError("is empty")
    if local_folder(path) is None:
        raise ValueError(f"{urlsplit(path).scheme}:// {why_not}")
    return path


def folder(path: str) -> Path:
    """The folder that ``path`` names, which :func:`check_folder` let through."""
    local = local_folder(path)
    assert local is not None, "checked when the sink was made"
    return local


def refuse_file(root: Place, field: str) -> None:
    """Refuse a table's folder that is a file, or below one.

    Raises:
        ConfigError: ``field`` of the sink says where it is.
    """
    if isinstance(root, RemotePath):
        return
    existing = next((path for path in (root, *root.parents) if path.exists()), root.parent)
    if not existing.is_dir():
        raise ConfigError(f"sink.{field}: {root} is not a folder: {existing} is a file")


def refuse_misread(root: Place, misread: re.Pattern[str], field: str) -> None:
    """Refuse a table's folder that its format's library would take for another one.

    Raises:
        ConfigError: ``misread`` is in its name; ``field`` of the sink says where it is.
    """
    if odd := misread.search(str(root)):
        raise ConfigError(
            f"sink.{field}: {odd[0]!r} cannot be used in the name of the table's folder, "
            f"{str(root)!r}: the library that writes the table takes it for something else, and "
            "would read or write another folder. Rename the folder."
        )


def link_or_copy(source: Place, target: Place) -> None:
    """Hard-link the file under ``target``, or write a flushed copy where links do not exist."""
    if isinstance(target, RemotePath):
        _copy_into_bucket(source, target)
        return
    assert isinstance(source, Path), "a folder's rows are staged in folders"
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        fsync(target)


def _copy_into_bucket(source: Place, target: RemotePath) -> None:
    if isinstance(source, RemotePath) and source.bucket == target.bucket:
        source.copy_to(target)
        return
    with new_file(target) as file:
        file.write(source.read_bytes())


def remove_folder(root: Place, *, first: str, last: str) -> None:
    """Remove ``root`` and all in it: what is called ``first`` at once, since nothing can be read
    without it, and what is called ``last`` after everything else. Safe to be done again.

    Raises:
        OSError: it is not removed whole.
    """
    if isinstance(root, RemotePath):
        for name in sorted(names_in(root), key=lambda name: (name == last, name != first)):
            remove_tree(root / name)
        root.remove_empty_folders()
        return
    inside = list(root.iterdir()) if root.is_dir() else []
    for path in sorted(inside, key=lambda path: (path.name == last, path.name != first)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if root.is_dir():
        root.rmdir()
