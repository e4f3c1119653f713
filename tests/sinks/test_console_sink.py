"""The console: what it shows, and a ledger that is exact although the rows are not."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import CrashRequested, child_of, dead_letters, first_entry, raise_at
from eo_pipeline.testing.contract import COMMITTED, SinkContract, killed_while_publishing

_CELL = re.compile(r"│ *(\d+) *│ *([^│]*?) *│ *([\d.]+) *│ *(\d+) *│")


class TestConsole(SinkContract):
    tells_lineage: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def terminal(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        self._capture = capfd
        self._shown = ""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return ConsoleSink(ledger=tmp_path / "ledger", max_rows=1000)

    def shown(self) -> str:
        """Everything on the terminal so far."""
        self._shown += self._capture.readouterr().out
        return self._shown

    def read_rows(self, sink: Sink) -> list[dict[str, Any]]:
        return [
            {"id": int(id_), "name": name, "amount": Decimal(money), CHECKPOINT_COLUMN: int(c)}
            for id_, name, money, c in _CELL.findall(self.shown())
        ]

    def test_a_reset_drops_the_ledger_of_this_pipeline_alone(
        self, sink: ConsoleSink, session: SinkSession
    ) -> None:
        self.start(session)
        other = sink.open("other")
        other.publish(first_entry("other"), StagedOutput())
        [said] = session.reset(dry_run=True)
        assert said.startswith("1 versions of the ledger")
        assert session.head() is not None
        session.reset(dry_run=False)
        assert session.head() is None
        assert other.head() is not None
        assert session.reset(dry_run=False) == ()

    @pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
    def test_who_is_killed_after_printing_prints_again(
        self, sink: Sink, session: SinkSession, point: CrashPoint
    ) -> None:
        """At least once, as it says: no row is missing, every row is there twice."""
        entry = child_of(self.start(session), self.rows)
        killed_while_publishing(sink, self.pipeline, entry, self.staged(1), point, prints=True)
        with sink.open(self.pipeline) as next_run:
            head = next_run.recover()
            assert head is not None
            assert head.version == 0
            assert next_run.publish(entry, self.staged(1)) is COMMITTED
        assert self.visible(sink) == sorted(self.rows_of(1) * 2)

    def test_what_a_killed_run_left_is_tidied_once_its_version_is_taken(
        self, sink: ConsoleSink, session: SinkSession
    ) -> None:
        start = self.start(session)
        killed_while_publishing(
            sink, self.pipeline, child_of(start, self.rows), self.staged(1), CrashPoint.ENTRY_SENT
        )
        left = {path.name for path in sink.ledger.rglob(".*")}
        assert len(left) == 1
        session.recover()
        assert {path.name for path in sink.ledger.rglob(".*")} == left  # it may be alive
        self.forward(session, start)
        session.recover()
        assert not list(sink.ledger.rglob(".*"))


class TestWhatIsShown:
    @pytest.fixture
    def sink(self, tmp_path: Path) -> ConsoleSink:
        return ConsoleSink(ledger=tmp_path, max_rows=3)

    def publish(self, sink: ConsoleSink, staged: StagedOutput) -> None:
        with sink.open("p") as session:
            start = first_entry("p")
            session.publish(start, StagedOutput())
            session.publish(child_of(start, staged), staged)

    def rows(self, **columns: Any) -> StagedTable:
        return StagedTable.in_memory(pa.table(columns))

    def test_the_first_rows_and_how_many_more(
        self, sink: ConsoleSink, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.publish(sink, StagedOutput(self.rows(tail=[f"N{n}" for n in range(10)])))
        shown = capsys.readouterr().out
        assert "p, checkpoint 1: 10 rows" in shown
        assert "N2" in shown
        assert "N3" not in shown
        assert "... and 7 more" in shown

    def test_markup_and_nulls_are_shown_as_they_are(
        self, sink: ConsoleSink, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.publish(sink, StagedOutput(self.rows(word=["[red]no colour[/red]", None])))
        assert "[red]no colour[/red]" in capsys.readouterr().out

    def test_dead_letters_are_shown_apart(
        self, sink: ConsoleSink, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.publish(sink, StagedOutput(self.rows(n=[1]), dead_letters(1, [b"{"])))
        assert "checkpoint 1: 1 dead letters" in capsys.readouterr().out


class TestLedgerFiles:
    def test_a_pipelines_name_cannot_leave_the_folder(self, tmp_path: Path) -> None:
        with ConsoleSink(ledger=tmp_path / "ledger").open("../..") as session:
            session.publish(first_entry("../.."), StagedOutput())
        assert [path.name for path in tmp_path.iterdir()] == ["ledger"]

    def test_a_folder_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ConfigError, match="file"):
            ConsoleSink(ledger=tmp_path / "file").open("p")

    def test_an_entry_is_there_as_a_whole_or_not_at_all(self, tmp_path: Path) -> None:
        with ConsoleSink(ledger=tmp_path).open("p") as session:
            with pytest.raises(CrashRequested):
                session.publish(first_entry("p"), StagedOutput(), raise_at(CrashPoint.ENTRY_SENT))
            assert session.head() is None
        assert not list(tmp_path.rglob("*.json"))

    @pytest.mark.parametrize("versions", [1, 2, 3, 4, 7, 8, 9, 31])
    def test_the_head_is_found_in_a_ledger_of_any_length(
        self, tmp_path: Path, versions: int
    ) -> None:
        with ConsoleSink(ledger=tmp_path).open("p") as session:
            entry = first_entry("p")
            session.publish(entry, StagedOutput())
            for _ in range(versions - 1):
                entry = child_of(entry)
                session.publish(entry, StagedOutput())
            head = session.head()
            assert head is not None
            assert head.id == entry.id
