"""One pipeline's session with the terminal, and its ledger: a folder of JSON files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    LedgerDamagedError,
    RefusedError,
    SinkUnavailableError,
    printable,
)
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.console.config import ConsoleSink
from eo_pipeline.sinks.session import Publication, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import fsync


def show(console: Console, title: str, staged: StagedTable, rows_max: int) -> None:
    """Print a table of at most ``rows_max`` rows of ``staged`` below ``title``; count the rest."""
    table = Table(*map(escape, staged.schema.names), highlight=True)
    for row in islice(_rows(staged, rows_max), rows_max):
        table.add_row(*map(_text, row))
    console.print(title, table, sep="\n")
    if staged.rows > rows_max:
        console.print(f"... and {staged.rows - rows_max} more")


def _rows(staged: StagedTable, rows_max: int) -> Iterator[list[Any]]:
    for batch in staged.batches():
        for row in batch.slice(0, rows_max).to_pylist():
            yield list(row.values())


def _text(value: Any) -> str:
    return "" if value is None else escape(printable(str(value)))


class ConsoleSession(SinkSession):
    """The ledger is a folder with one file a version; a version is a name that can be taken once.

    A file is written whole under another name and then linked to its own, which fails if somebody
    has it (POSIX ``link``). Files are never changed or removed, so that a parent that was there
    when it was looked up is still there.
    """

    def __init__(self, sink: ConsoleSink, pipeline: str) -> None:
        super().__init__(pipeline)
        self.sink = sink
        # a name that is a path, or "..", must not leave the folder
        self.folder = sink.ledger / quote(pipeline, safe="").replace(".", "%2E")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"sink.ledger: {sink.ledger} cannot be a folder: {error}") from error
        except OSError as error:
            raise SinkUnavailableError(
                f"the ledger cannot be kept in {sink.ledger}: {error.strerror}"
            ) from error

    def recover(self) -> LedgerEntry | None:
        """Also removes what killed runs left for versions that are taken; others may be alive."""
        head = self.head()
        for path in self.folder.glob(".*-*"):
            version = int(path.name[1:].partition("-")[0])
            if head is not None and version <= head.version:
                path.unlink(missing_ok=True)
        return head

    def head(self) -> LedgerEntry | None:
        """Found by asking for versions 0, 1, 3, 7 ... and halving: versions have no gaps."""
        low, high = -1, 0
        while self.path(high).exists():
            low, high = high, 2 * high + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.path(middle).exists() else (low, middle)
        return self.entry(low) if low >= 0 else None

    def entry(self, version: int) -> LedgerEntry | None:
        try:
            return LedgerEntry.from_json(json.loads(self.path(version).read_text()))
        except FileNotFoundError:
            return None
        except ValueError as error:
            damage = f"cannot be read, in the ledger file {self.path(version)}: {error}"
            raise LedgerDamagedError(self.pipeline, version, damage) from error
        except OSError as error:
            raise SinkUnavailableError(f"the ledger cannot be read: {error.strerror}") from error

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        for version in count(since):
            entry = self.entry(version)
            if entry is None:
                return
            yield entry

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return ConsolePublication(self, entry, staged)

    def explain(self, error: Exception) -> EoPipelineError:
        if isinstance(error, OSError):
            return SinkUnavailableError(f"the ledger cannot be written: {error}")
        return super().explain(error)

    def check_going_back(self, entry: LedgerEntry) -> None:
        raise RefusedError(
            f"{entry.operation} is not possible: what was printed cannot be taken back. Nothing "
            "was changed; start a new pipeline (fork) to print it again."
        )

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        head = self.head()
        if not dry_run:
            # the newest first: whatever is left when this is interrupted is a whole ledger
            for version in range(head.version if head else -1, -1, -1):
                self.path(version).unlink(missing_ok=True)
            fsync(self.folder)
        return (f"{head.version + 1:,} versions of the ledger in {self.folder}",) if head else ()

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            "what was printed cannot be read back. An audit can only look at the ledger."
        )

    def close(self) -> None:
        """Nothing is held open."""

    def path(self, version: int) -> Path:
        return self.folder / f"{version}.json"


class ConsolePublication(Publication):
    """Rows are printed (4), the entry is written under another name (5) and linked to its own (6),
    which fails if somebody has it.
    """

    session: ConsoleSession
    _file: Path | None = None

    def write(self) -> None:
        console, version = Console(), self.entry.version
        tables = {"rows": self.staged.rows, "dead letters": self.staged.dead_letters}
        for what, table in tables.items():
            if table is not None and table.rows:
                title = f"{self.entry.pipeline}, checkpoint {version}: {table.rows} {what}"
                show(console, title, table, self.session.sink.max_rows)

    def enter(self) -> None:
        stamped = replace(self.entry, committed_at=datetime.now(UTC))
        folder = self.session.folder
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{self.entry.version}-")
        self._file = Path(name)
        with os.fdopen(handle, "w") as file:
            json.dump(stamped.to_json(), file)
            file.flush()
            os.fsync(file.fileno())

    def commit(self) -> None:
        assert self._file is not None, "entered before it is committed"
        try:
            os.link(self._file, self.session.path(self.entry.version))
            fsync(self.session.folder)
        except OSError as error:
            # taken by somebody, who may also have tidied this file away; or no link was made
            raise self.session.explain(error) from error

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002
        if self._file is not None:
            self._file.unlink(missing_ok=True)
