"""What a run that died had promised, before a command that changes the ledger."""

from __future__ import annotations

import signal

import pytest

from eo_pipeline.crashpoints import CrashPoint
from tests.cli.shell import Shell, eo

__all__ = ["eo"]


@pytest.mark.parametrize("command", [("rewind", "1"), ("replay", "1"), ("accept-loss",)])
def test_a_promise_is_kept_said_and_what_was_asked_for_is_done(
    eo: Shell, command: tuple[str, ...]
) -> None:
    bench = eo.bench
    bench.topic.write(20, partitions=range(4))
    bench.pipeline().run()
    bench.topic.write(20, partitions=range(4))
    killed = bench.run_in_a_process("--crash-at", CrashPoint.PRE_COMMITTED, "1")
    assert killed.wait(240) == -signal.SIGKILL
    eo.document()

    dry = eo(*command, "--dry-run")
    assert eo.versions() == [0, 1]
    assert "died" not in dry.err

    done = eo(*command, "--yes", "--reason", "a test")

    assert "forward" in done.err
    assert "recovered from a run that died" in done.err
    if command[0] == "accept-loss":
        assert "there is no loss" in done.err
        assert eo.versions() == [0, 1, 2]
    else:
        assert done.code == 0, done.err
        assert eo.versions() == [0, 1, 2, 3]
        bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)
