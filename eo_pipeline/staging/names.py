"""Files and folders named after a ledger entry: ``<version>-<transaction id>``."""

from __future__ import annotations

from pathlib import Path

from eo_pipeline.ledger.entry import EntryId

#: Width of a version in a name, so that names sort by version.
_VERSION_DIGITS = 12


def name_of(entry_id: EntryId) -> str:
    """``000000000003-6f1c...`` for version 3."""
    return f"{entry_id.version:0{_VERSION_DIGITS}d}-{entry_id.transaction_id}"


def entry_ids_in(folder: Path) -> list[EntryId]:
    """The entries that something in ``folder`` is named after, sorted; none if there is no such
    folder. Other names are passed over.
    """
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    parts = [name.partition("-") for name in names]
    return sorted(
        EntryId(int(version), transaction_id)
        for version, dash, transaction_id in parts
        if dash and version.isdigit()
    )
