"""What leaves the package: its own errors, and those of functions that were handed in."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from eo_pipeline.boundary import boundary, callers
from eo_pipeline.errors import ConfigError, NothingToDoError, SetupError, UnexpectedError
from tests.support.engine import Bench


def raising(error: Exception) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def test_an_error_nobody_expected_is_one_of_ours_and_says_where_it_was() -> None:
    with (
        pytest.raises(UnexpectedError, match=r"'p': .* KeyError: 'entry' \(in .*boundary.py") as it,
        boundary("p"),
    ):
        raising(KeyError("entry"))()
    assert isinstance(it.value.__cause__, KeyError)
    assert not it.value.retryable


def test_a_full_disk_is_a_matter_of_the_machine() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/staging/x")
    with pytest.raises(SetupError, match=r"/staging/x .*No space left"), boundary("p"):
        raise full


def test_our_own_errors_pass_as_they_are() -> None:
    error = NothingToDoError("nothing to do")
    with pytest.raises(NothingToDoError) as it, boundary("p"):
        raise error
    assert it.value is error


def test_what_the_callers_functions_raise_passes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), boundary("p"):
        callers(raising(ZeroDivisionError()))()


def test_a_listener_that_fails_is_not_called_a_fault_of_the_pipeline(bench: Bench) -> None:
    bench.topic.write(10)

    def listener(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.pipeline().run(on_checkpoint=listener)
    bench.pipeline().run()
    bench.table.assert_holds_once(bench.topic.written)


def test_staging_that_cannot_be_used_is_found_before_anything_is_committed(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("a file")
    for inline_records in (0, 10_000):
        with pytest.raises(SetupError, match=r"Pipeline\.staging") as unusable:
            bench.pipeline(staging=str(file / "below"), inline_records=inline_records).run()
        assert str(file) in str(unusable.value)
    assert bench.pipeline().head() is None


@pytest.mark.parametrize("checkpoints", [0, -1])
def test_a_run_of_no_checkpoints_is_refused(bench: Bench, checkpoints: int) -> None:
    bench.topic.write(10)
    with pytest.raises(ConfigError, match="max_checkpoints"):
        bench.pipeline().run(max_checkpoints=checkpoints)
    assert bench.pipeline().head() is None
