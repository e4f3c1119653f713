"""How long a topic keeps its records, for people."""

from __future__ import annotations

from collections.abc import Mapping


def retention_in_words(settings: Mapping[str, str]) -> str:
    """Return what a topic's ``settings`` say of it."""
    kept = []
    if "compact" in settings["cleanup.policy"]:
        kept.append("compacted: the last record of each key")
    if "delete" in settings["cleanup.policy"]:
        milliseconds, size = int(settings["retention.ms"]), int(settings["retention.bytes"])
        # as days: some keep records for Long.MAX of milliseconds, which is no timedelta
        days = milliseconds / 86_400_000
        kept.append("for ever" if milliseconds < 0 else f"{days:,.2f} days")
        if size >= 0:
            kept.append(f"at most {size:,} bytes a partition")
    return ", ".join(kept)
