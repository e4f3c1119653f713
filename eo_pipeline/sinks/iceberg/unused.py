"""Files in a table's folder that none of its snapshots has, and nobody may still commit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from eo_pipeline import side_by_side
from eo_pipeline.bucket import BucketPath
from eo_pipeline.places import Found, Place, files_below, modified_at, relative_name
from eo_pipeline.sinks.iceberg.config import ROWS_FOLDER
from eo_pipeline.sinks.iceberg.store import pointer_of
from eo_pipeline.sinks.lake.upkeep import COMPACTED_FOLDER

#: What nobody ever committed is as old as this, in seconds: Iceberg's ``remove_orphan_files``.
_ORPHANS_KEPT_S = 3 * 24 * 3600

#: Requests at a time.
_AT_ONCE = 16

_FOLDERS = ("data", "metadata")
#: Manifests and lists of them. The table's metadata itself goes by its own settings.
_OURS_IN_METADATA = re.compile(r"metadata/.*\.avro")
_OF_ATTEMPT = re.compile(rf"{ROWS_FOLDER}/([^/]+)/(?:inline/\d+/)?(\d+)-")
_OF_TURN = re.compile(rf"{ROWS_FOLDER}/[^/]+/{COMPACTED_FOLDER}/(\d+)/")


def unused_files(root: Place, table: Table, oldest: float, turn: int) -> list[tuple[str, int]]:
    """Names below ``root``, and bytes.

    Args:
        oldest: seconds since 1970; younger files stay.
        turn: maintenance before this one commits no more.
    """
    listed = [found for folder in _FOLDERS for found in files_below(root / folder)]
    named = {relative_name(found.place, root): found for found in listed}
    free = named.keys() - {*_used(root, table)}
    candidates = {name: named[name] for name in free if _may_go(table, name, turn)}
    ages = zip(candidates, side_by_side.each(_modified, [*candidates.values()]), strict=True)
    return [
        (name, candidates[name].size)
        for name, modified in sorted(ages)
        if modified is not None and modified < _limit(name, oldest)
    ]


def _modified(found: Found) -> float | None:
    return modified_at(found.place)


def _limit(name: str, oldest: float) -> float:
    """Rows of runs are known by their version: they left the table. What else there is may have
    been written by somebody for a commit of his own.
    """
    known = _OF_ATTEMPT.match(name)
    return oldest if known else min(oldest, time.time() - _ORPHANS_KEPT_S)


def _used(root: Place, table: Table) -> Iterator[str]:
    """Whatever any snapshot refers to, as names below ``root``."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lists = pool.map(lambda s: (s, s.manifests(table.io)), table.metadata.snapshots)
        manifests: dict[str, ManifestFile] = {}
        for snapshot, found in lists:
            yield _below(root, snapshot.manifest_list)
            manifests |= {each.manifest_path: each for each in found}
        yield from (_below(root, path) for path in manifests)
        entries = pool.map(lambda m: m.fetch_manifest_entry(table.io), manifests.values())
        for found_entries in entries:
            yield from (_below(root, entry.data_file.file_path) for entry in found_entries)


def _below(root: Place, uri: str) -> str:
    """The name below ``root``; what lies elsewhere keeps its own."""
    url = urlsplit(uri)
    if isinstance(root, BucketPath):
        return f"{url.netloc}{url.path}".removeprefix(f"{root.bucket.name}/{root.key}/")
    path = uri.removeprefix("file://")
    return path.removeprefix(f"{root}/")


def _may_go(table: Table, name: str, turn: int) -> bool:
    """Not what a run, or another maintenance, may still make the table's."""
    if found := _OF_ATTEMPT.match(name):
        head = pointer_of(table, found[1])
        return head is not None and int(found[2]) <= head.version
    if found := _OF_TURN.match(name):
        return int(found[1]) < turn
    return not name.startswith("metadata/") or _OURS_IN_METADATA.fullmatch(name) is not None
