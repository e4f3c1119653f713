"""Which message of a Protobuf schema `eo init --registry` names: that of the sampled records."""

from __future__ import annotations

import pytest

from eo_pipeline.cli.init import message_of
from eo_pipeline.formats.protobuf import Protobuf, messages_named
from eo_pipeline.ledger.schemas import AVRO, PROTOBUF

SCHEMA = Protobuf().self_contained(
    'syntax = "proto3"; package p; '
    "message A { int64 id = 1; message In { int32 x = 1; } } message B { string s = 1; }",
    {},
)
HEADER = b"\x00\x00\x00\x00\x07"
BODIES = (b"\x00\x08\x01", b"\x02\x00", b"\x02\x02", b"\x04\x00\x00")
A, ALSO_A, B, IN = (HEADER + body for body in BODIES)


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ([A, ALSO_A, None, b""], ["A"], ""),
        ([B, B, None], ["B"], "B"),
        ([IN], ["A.In"], "A.In"),
        # not one: whoever writes the document has to say which
        ([A, B], ["A", "B"], ""),
        ([b'{"id": 1}', None], [], ""),
    ],
)
def test_a_message_is_named_if_all_records_are_of_one_and_that_is_not_the_first(
    values: list[bytes | None], named: list[str], message: str
) -> None:
    assert messages_named(SCHEMA, values) == named
    assert message_of(PROTOBUF, SCHEMA, values) == message
    assert message_of(AVRO, "{}", values) == ""
