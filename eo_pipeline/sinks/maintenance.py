"""What maintenance of a table is asked for, what a session answers, and what it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import ByteSize, Field, TypeAdapter

from eo_pipeline.settings import Settings

_UNITS = {"h": "hours", "d": "days"}
_AGE = r"^[1-9]\d*[hd]$"


class Maintenance(Settings):
    """How a lake table is kept, by ``eo maintain``.

    Args:
        target_file_size: small files are put together up to this, ``128MB``.
        keep: hours or days, ``7d``, for which files that left the table stay: for readers of an
            older state, and for the rewind of an upserted table.
        ledger: hours or days, ``365d``, for which one can go back; what the ledger holds of the
            time before is removed. Absent: all of it is kept.
        rewrite_layout: of a partitioned Delta table, files that do not lie in folders
            ``name=value`` (those of earlier releases) are written anew too, however large.
    """

    target_file_size: str = Field(default="128MB", pattern=r"^[1-9]\d*([kKMG]i?)B$")
    keep: str = Field(default="7d", pattern=_AGE)
    ledger: str | None = Field(default=None, pattern=_AGE)
    rewrite_layout: bool = False

    @property
    def target_bytes(self) -> int:
        """Bytes."""
        return int(TypeAdapter(ByteSize).validate_python(self.target_file_size))

    @property
    def kept_for(self) -> timedelta:
        """At least an hour."""
        return _age(self.keep)

    @property
    def ledger_kept_for(self) -> timedelta | None:
        """At least an hour; None: for ever."""
        return None if self.ledger is None else _age(self.ledger)


def _age(text: str) -> timedelta:
    return timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


@dataclass(frozen=True)
class Upkeep:
    """One kind of work: ``files`` with ``bytes`` before it, and after it; of a dry run, as they
    would be, as far as that can be told.
    """

    work: str
    remark: str
    files: int = 0
    files_after: int = 0
    bytes: int = 0
    bytes_after: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


class Maintained:
    """The part of a session that keeps its table and ledger in order. Changes no row."""

    #: What is said of a store that needs nothing of this.
    keeps_itself: ClassVar[str] = "the store keeps its table by itself: nothing to do"
    #: Why entries are never removed from this store's ledger; None: :meth:`prune` does.
    keeps_ledger: str | None = "this store cannot remove entries"

    def maintain(self, rules: Maintenance, *, dry_run: bool) -> Iterator[Upkeep]:  # noqa: ARG002
        """Each kind of work as it was done; ``dry_run`` only looks. Safe beside runs, readers and
        other maintenance, and stopped at any moment: what was done stays, the next one goes on.

        Raises:
            SinkUnavailableError: the store does not answer, or another maintenance took over.
        """
        yield Upkeep("none", self.keeps_itself)

    def prune(self, *, dry_run: bool) -> int:
        """Remove what the store holds of entries below the head's floor; ``dry_run`` only looks.
        Returns how many. Done again it goes on with what is left.

        Raises:
            SinkUnavailableError: the store does not answer.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps its ledger: dry_run={dry_run}")
