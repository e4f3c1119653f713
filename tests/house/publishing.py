"""Files and jumps of one publish, by trace: how far a reader has to go to follow a commit."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pyarrow as pa

from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.delta.config import DeltaSink
from eo_pipeline.sinks.postgres.config import PostgresSink
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.house.figures import ROOT

PACKAGE = ROOT / "eo_pipeline"

#: Values, configuration, errors, and what is called as the standard library is (paths, a parallel
#: map): read by their names, without following the call.
VALUES = (
    *("_lazy", "_process", "errors", "crashpoints", "config/", "ledger/", "staging/"),
    *("sinks/config", "sinks/arrow", "storage/paths"),
)
VALUES_IN_A_ROOM = ("/config", "/types")


@dataclass
class Trace:
    """Calls from one file of the package into another, values and errors apart."""

    files: Counter[str] = field(default_factory=Counter)
    jumps: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        callee = _file(frame)
        if event != "call" or callee is None or _is_value(callee):
            return
        above = frame.f_back
        while above is not None and (caller := _file(above)) is None:
            above = above.f_back
        if above is None or caller is None:
            self.files[callee] += 1
        elif caller != callee and not _is_value(caller):
            self.files[callee] += 1
            self.jumps[caller, callee] += 1

    def __str__(self) -> str:
        return f"{len(self.files)} files, {self.jumps.total()} calls from one into another"


def _file(frame: FrameType) -> str | None:
    """The package's file of ``frame``; None for another one."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def _is_value(file: str) -> bool:
    return file.startswith(VALUES) or file.endswith(VALUES_IN_A_ROOM)


def five_rows(checkpoint: int) -> StagedTable:
    """Rows of two columns and their checkpoint."""
    numbers = list(range(5))
    columns = {
        "id": numbers,
        "name": [f"n{n}" for n in numbers],
        CHECKPOINT_COLUMN: [checkpoint] * 5,
    }
    return StagedTable.in_memory(pa.table(columns))


def traced_publish(sink: Sink, pipeline: str = "p") -> Trace:
    """The publish of five rows as the second checkpoint of ``sink``'s table."""
    trace = Trace()
    with sink.open(pipeline) as session:
        entry = first_entry(pipeline)
        session.publish(entry, StagedOutput())
        for measured in (contextlib.nullcontext(), trace):
            staged = StagedOutput(rows=five_rows(entry.version + 1))
            entry = child_of(entry, staged)
            with measured:
                session.publish(entry, staged)
    return trace


def traces() -> dict[str, Trace]:
    """The publish into an embedded PostgreSQL and into a Delta table on disk."""
    with (
        tempfile.TemporaryDirectory(prefix="eo-house-") as folder,
        EmbeddedPostgres(Path(folder, "postgres"), settings={"fsync": "off"}) as server,
    ):
        return {
            "PostgreSQL": traced_publish(PostgresSink(dsn=server.dsn, table="t")),
            "Delta": traced_publish(DeltaSink(path=f"{folder}/t")),
        }
