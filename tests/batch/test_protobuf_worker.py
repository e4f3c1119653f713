"""What Spark's Python workers make of batches of messages, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.batch import protobuf_worker
from eo_pipeline.batch.protobuf_worker import Columns, Message, WriterPlan, batches_decoder
from eo_pipeline.formats.protobuf import Protobuf, plain_files
from tests.support.registry import messages

SECOND = """
syntax = "proto2"; package shop;
message Row { required int32 id = 1; optional P p = 2; repeated string many = 3; }
message P { required int32 lat = 1; }
"""
THIRD = SECOND.replace("proto2", "proto3").replace("required ", "").replace("optional P", "P")


def decoded(text: str, *bodies: bytes | None) -> list[dict[str, Any]]:
    message = Message(plain_files(Protobuf("").self_contained(text, {})), "shop.Row")
    columns = Columns("body", "writer", "row", "unknown")
    decode = batches_decoder(message, [WriterPlan(message, {(4,): "gone"})], columns)
    writers = [None if body is None else 0 for body in bodies]
    batch = pa.record_batch(
        {"body": pa.array(bodies, pa.binary()), "writer": pa.array(writers, pa.int32())}
    )
    (result,) = decode([batch])
    assert result.schema.names == ["writer", "row", "unknown"]
    return [{**row, "writer": None} for row in result.to_pylist()]


def told(row: Any = None, unknown: Any = None) -> dict[str, Any]:
    return {"writer": None, "row": row, "unknown": unknown}


@pytest.mark.parametrize("at_once", [1 << 20, 8, 0], ids=["together", "few", "one by one"])
def test_messages_are_decoded_alike_together_and_alone(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protobuf_worker, "_AT_ONCE", at_once)
    row = messages(THIRD)("shop.Row")
    long = "x" * 300
    whole = row(id=1, many=["a", "b"], p={"lat": 2}).SerializeToString()
    bodies = [
        whole,
        None,
        b"",
        whole[:-1],
        whole + b"\x20\x01",
        row(many=[long]).SerializeToString(),
    ]
    read = {"id": 1, "p": {"lat": 2}, "many": ["a", "b"]}
    nothing: dict[str, Any] = {"id": 0, "p": None, "many": []}
    assert decoded(THIRD, *bodies) == [
        told(read),
        told(),
        told(nothing),
        told(),
        told(read, ["gone"]),
        told({**nothing, "many": [long]}),
    ]
    assert decoded(THIRD, None, None) == [told(), told()]
    assert decoded(THIRD, b"\x80") == [told()]


def test_a_message_that_lacks_what_must_be_there_is_none() -> None:
    row = messages(SECOND)("shop.Row")
    good = row(id=1, p={"lat": 2}).SerializeToString()
    within = row(id=1, p={}).SerializePartialToString()
    read = {"id": 1, "p": {"lat": 2}, "many": []}
    assert decoded(SECOND, good, b"", within, None) == [told(read), told(), told(), told()]


TIMES = """
syntax = "proto3"; package shop;
import "google/protobuf/duration.proto"; import "google/protobuf/timestamp.proto";
message Row {
  google.protobuf.Duration for = 1;
  repeated google.protobuf.Timestamp at = 2;
}
"""


def test_a_time_that_protobuf_does_not_allow_is_told_by_its_field() -> None:
    row, longest = messages(TIMES)("shop.Row"), {"seconds": 315_576_000_000, "nanos": 999_999_999}
    values: list[dict[str, Any]] = [
        {"for": longest},
        {"for": {"seconds": 315_576_000_001}},
        {"at": [{"seconds": 1}, {"seconds": 18_446_744_073_710}]},
        {},
    ]
    bodies = [bytes(row(**value).SerializeToString()) for value in values]
    bodies[3] += b"\x20\x01"
    assert decoded(TIMES, *bodies) == [
        told({"for": 315_576_000_000_999_999, "at": []}),
        told(None, ["for"]),
        told(None, ["at"]),
        told({"for": None, "at": []}, ["gone"]),
    ]
