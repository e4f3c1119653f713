"""By which policy bad records stop a run, and what is said of them. No Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, cast

import pytest

from eo_pipeline.batch.counting import ReadCounts
from eo_pipeline.batch.stage import Stager
from eo_pipeline.errors import BadRecordError
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.sinks.console import ConsoleSink
from eo_pipeline.testing import child_of, first_entry

FIRST = {"topic": "t", "partition": 3, "offset": 17, "error": "not JSON", "value": "{"}
ENTRY = child_of(first_entry("p"))


class LookedAtError(Exception):
    """The records were looked at once more, to be set aside."""


class Records:
    """Of the bad ones nothing is known yet."""

    def dead_letters(self, version: int) -> Any:
        raise LookedAtError


def refused(bad: int, **policy: Any) -> str:
    """What stops a run that has seen so many bad records; empty if they are set aside."""
    common = {"bootstrap_servers": "h:1", "topics": ("t",), "value_format": "raw"}
    source = KafkaSource.model_validate({**common, **policy})
    seen = ReadCounts(9, 0, 0, 9 - bad, bad, 0, json.dumps(FIRST), 0, (), {})
    stager = Stager(source, ConsoleSink(), None, False)
    with suppress(LookedAtError):
        try:
            stager._dead_letters(cast(Any, Records()), seen, ENTRY, None, "error")
        except BadRecordError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("bad", "policy", "said"),
    [
        (0, {}, ""),
        (1, {}, "Correct the producer"),
        (1, {"on_bad_record": "fail", "dead_letter_limit": 5}, "Correct the producer"),
        (5, {"on_bad_record": "dead_letter", "dead_letter_limit": 5}, ""),
        (
            6,
            {"on_bad_record": "dead_letter", "dead_letter_limit": 5},
            "raise source.dead_letter_limit (5 a checkpoint)",
        ),
    ],
)
def test_bad_records_stop_the_run_by_policy_or_by_their_number(
    bad: int, policy: dict[str, Any], said: str
) -> None:
    text = refused(bad, **policy)
    assert bool(text) is bool(said)
    assert said in text
    if said:
        assert f"{bad} bad record(s), for example t[3] offset 17: not JSON" in text
        assert "Nothing was committed" in text
