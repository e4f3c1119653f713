"""Data files that the table's log names and its folder does not hold, or not whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from eo_pipeline.arrow import pa
from eo_pipeline.errors import DamagedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.places import Place, sizes_of
from eo_pipeline.wording import some_of

#: Files and checkpoints a message names before it only counts them.
_NAMED_MAX = 5


def damage(table: DeltaTable, root: Place, *, upserts: bool) -> DamagedError | None:
    """What is wrong with the files of this version of the table; ``None``: nothing.

    They do not come back by themselves. A replay writes the rows of an appended checkpoint again.
    """
    found = list(_damaged(table, root))
    if not found:
        return None
    files = some_of([f"{path} {what}" for path, what, _ in found], _NAMED_MAX)
    numbers = sorted({number for _, _, held in found for number in held})
    held = f"checkpoint {some_of(numbers, _NAMED_MAX)}" if numbers else "no checkpoint"
    replay = (
        f" or, while Kafka still has their records, read them again: {_replays(numbers)}."
        if numbers and not upserts
        else "."
    )
    return DamagedError(
        f"{root}: data files of the table are damaged: {files}. They hold rows of {held}. Nothing "
        f"was changed. Bring the files back from a backup{replay}"
    )


def _damaged(table: DeltaTable, root: Place) -> Iterator[tuple[str, str, range]]:
    """Path, what is wrong with it, and the checkpoints whose rows it has by the log."""
    low, high = f"min.{CHECKPOINT_COLUMN}", f"max.{CHECKPOINT_COLUMN}"
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    sizes = _sizes(root, [action["path"] for action in actions])
    for action in actions:
        size, expected = sizes[action["path"]], action["size_bytes"]
        if size != expected:
            what = "is gone" if size is None else f"has {size} of {expected} bytes"
            yield action["path"], what, _range(action, low, high)


def _range(action: dict[str, Any], low: str, high: str) -> range:
    first, last = action.get(low), action.get(high)
    return range(first, last + 1) if first is not None and last is not None else range(0)


def _sizes(root: Place, paths: list[str]) -> dict[str, int | None]:
    """By path, which the log may have encoded; ``None``: there is no such file."""
    found = sizes_of(root, [name for path in paths for name in (path, unquote(path))])
    return {path: found.get(path, found.get(unquote(path))) for path in paths}


def _replays(numbers: list[int]) -> str:
    """``eo replay 3``; a stretch where they are many."""
    last = f" {numbers[-1]}" if len(numbers) > 1 else ""
    return f"`eo replay {numbers[0]}{last}`"
