"""Files and folders named after a ledger entry, ``<version>-<transaction id>``, or a ledger."""

from __future__ import annotations

from eo_pipeline.ledger.entry import EntryId
from eo_pipeline.places import Place, folders_in, names_of_what_is_in

#: Width of a version in a name, so that names sort by version.
_VERSION_DIGITS = 12


def name_of(entry_id: EntryId) -> str:
    """``000000000003-6f1c...`` for version 3."""
    return f"{entry_id.version:0{_VERSION_DIGITS}d}-{entry_id.transaction_id}"


def entry_ids_in(folder: Place) -> list[EntryId]:
    """The entries that something in ``folder`` is named after, sorted; none if there is no such
    folder. Other names are passed over.
    """
    parts = [name.partition("-") for name in names_of_what_is_in(folder)]
    return sorted(
        EntryId(int(version), transaction_id)
        for version, dash, transaction_id in parts
        if dash and version.isdigit()
    )


def ledger_ids_in(folder: Place) -> list[str]:
    """The ledgers that a folder in ``folder`` is named after, sorted. An entry's name has a dash,
    and what begins with a dot or an underscore is named after neither.
    """
    return sorted(
        name for name in folders_in(folder) if "-" not in name and not name.startswith(("_", "."))
    )
