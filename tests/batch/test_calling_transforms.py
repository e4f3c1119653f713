"""What a transform may do to a run: raise whatever it likes, and it is said to be its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eo_pipeline import ConsoleSink, KafkaSource
from eo_pipeline.batch.stage import Stager
from eo_pipeline.errors import EoPipelineError, SetupError, TransformError

SOURCE = KafkaSource(bootstrap_servers="h:1", topics=["t"], value_format="raw")


def result_of(transform: Any) -> object:
    # the transforms here do not look at it
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf={}))
    return Stager(SOURCE, ConsoleSink(), transform, lineage=False).result(frame)


def raising(error: BaseException) -> Any:
    def transform(_: object) -> object:
        raise error

    return transform


def test_what_a_transform_raises_is_told_with_its_kind() -> None:
    with pytest.raises(TransformError, match="the transform raised KeyError: 'carrier'") as error:
        result_of(raising(KeyError("carrier")))
    assert isinstance(error.value.__cause__, KeyError)


def test_the_first_line_and_the_users_line_are_told_and_not_sparks_plan() -> None:
    with pytest.raises(TransformError) as error:
        result_of(raising(ValueError("no column named dealy\n'Project [...]\n+- Relation [...]")))
    line = raising.__code__.co_firstlineno + 2
    assert str(error.value) == (
        f"the transform raised ValueError: no column named dealy ({__file__}, line {line})"
    )


@pytest.mark.parametrize("error", [SetupError("no such file"), TransformError("mine")])
def test_an_error_of_ours_goes_through_as_it_is(error: EoPipelineError) -> None:
    with pytest.raises(type(error)) as raised:
        result_of(raising(error))
    assert raised.value is error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_fault_of_the_transform(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        result_of(raising(kind()))


def test_a_transform_that_returns_something_else_is_told_so() -> None:
    with pytest.raises(TransformError, match="returned int, a DataFrame is needed"):
        result_of(lambda _: 5)
