"""Files and folders named after a ledger entry, ``<version>-<transaction id>``, or a ledger."""

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


def ledger_ids_in(folder: Path) -> list[str]:
    """The ledgers that a folder in ``folder`` is named after, sorted. An entry's name has a dash,
    and what begins with a dot or an underscore is named after neither.
    """
    items = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(
        item.name
        for item in items
        if "-" not in item.name and not item.name.startswith(("_", ".")) and item.is_dir()
    )
