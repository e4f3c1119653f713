"""Records whose rows the sink would refuse: seen while they are staged, and set aside by policy.

The look is part of the one staging job. Only if it finds something is anything done again: the
records are named by a second job, marked bad with the reason, and the batch is staged once more, so
that all rows of such a record stay away and it is counted among the bad ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.batch.counting import CountedColumn, ReadCounts, RowCounter
from eo_pipeline.batch.decode import KAFKA_COLUMN, Decoded
from eo_pipeline.batch.output import own_columns
from eo_pipeline.errors import BadRecord, BadRecordError, EoPipelineError, RefusedError
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.sinks.columns import Bound, beyond, with_utf8
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import interruptible

_WHY = "_eo_why"
_COORDINATES = ("topic", "partition", "offset")


@dataclass(frozen=True)
class InvalidRows:
    """The number of ``rows`` that do not fit, and one of them: its ``reason``, and where it came
    from unless the transform dropped that.
    """

    rows: int
    example: dict[str, Any]


Why = Callable[[DataFrame], Column | None]


def why_unfit(
    sink: Sink,
    never_null: Collection[str],
    bounds: Mapping[str, Bound],
    *,
    utf8: bool | str = False,
) -> Why:
    """Return the reason column of unfit rows; see :meth:`Sink.unfit`. ``bounds`` are the table's
    own; ``utf8``: its texts are, or the function that tells.
    """

    def why(result: DataFrame) -> Column | None:
        columns = own_columns(result)
        of_sink = sink.unfit(with_utf8(columns, utf8) if utf8 else columns, never_null)
        reasons = [reason for reason in (of_sink, beyond(columns, bounds)) if reason is not None]
        return F.coalesce(*reasons) if reasons else None

    return why


def mark_of(result: DataFrame, question: Why) -> CountedColumn | None:
    """Return the column that marks each unfit row of ``result``; None if every row fits."""
    why = question(result)
    if why is None:
        return None
    traced = _coordinates() if KAFKA_COLUMN in result.columns else []
    reason = F.col(_WHY)
    example = F.to_json(F.struct(*traced, reason.alias("reason")))
    metrics = (
        F.count(reason).alias("unfit"),
        F.min(F.when(reason.isNotNull(), example)).alias("example"),
    )
    return CountedColumn(_WHY, why, metrics)


def found(result: RowCounter) -> InvalidRows | None:
    """The rows that do not fit, of a result that was staged and counted."""
    rows = result.seen.get("unfit", 0)
    return InvalidRows(rows, json.loads(result.seen["example"])) if rows else None


def set_aside(
    unfit: InvalidRows,
    decoded: Decoded,
    result: Callable[[DataFrame], DataFrame],
    source: KafkaSource,
    sink: Sink,
    question: Why,
) -> Decoded:
    """``decoded`` with the records marked bad of which rows do not fit.

    Raises:
        BadRecordError: by the source's policy.
        RefusedError: the transform dropped where its rows came from.
    """
    if source.on_bad_record == "fail" or "topic" not in unfit.example:
        raise refused(unfit, source, sink)
    frame = result(decoded.good(decoded.all))
    why = question(frame)
    assert why is not None
    limit = source.dead_letter_limit
    listed = (
        frame.where(why.isNotNull())
        .groupBy(*_coordinates())
        .agg(F.min(_words(why, sink)).alias("error"))
        .limit(limit + 1)
    )
    records = interruptible(frame.sparkSession, listed.toArrow).to_pylist()
    if len(records) > limit:
        raise refused(unfit, source, sink, f"More than source.dead_letter_limit ({limit})")
    return decoded.marked(records)


def refused(
    unfit: InvalidRows, source: KafkaSource, sink: Sink, remedy: str = ""
) -> EoPipelineError:
    """The error of rows that do not fit, with an example of them."""
    example = unfit.example
    if "topic" not in example:
        return RefusedError(
            f"{unfit.rows} row(s) do not fit into {sink.table_name}: {example['reason']}. "
            f"Nothing was committed. Correct it in the transform; which record it comes from is "
            f"known if the transform keeps {KAFKA_COLUMN!r}."
        )
    if not remedy:
        remedy = "Correct it in the transform"
        if source.on_bad_record == "fail":
            remedy += ", or set source.on_bad_record: dead_letter"
    record = BadRecord(*(example[name] for name in (*_COORDINATES, "reason")))
    return BadRecordError(
        f"{unfit.rows} row(s) do not fit into {sink.table_name}, for example of {record}: "
        f"{record.reason}. {remedy}. Nothing was committed.",
        count=unfit.rows,
        example=record,
    )


def refuse_bad(seen: ReadCounts, source: KafkaSource) -> None:
    """Return if the source's policy sets so many bad records aside.

    Raises:
        BadRecordError: it does not.
    """
    if seen.bad and (source.on_bad_record == "fail" or seen.bad > source.dead_letter_limit):
        raise refused_records(seen.bad, json.loads(seen.first_bad or "{}"), source)


def refused_records(bad: int, first: Mapping[str, Any], source: KafkaSource) -> BadRecordError:
    """The error of so many ``bad`` records, with the ``first`` of them: its coordinates, ``error``
    and ``value``.
    """
    record = BadRecord(first["topic"], first["partition"], first["offset"], first["error"])
    value = first.get("value")
    shown = "no value" if value is None else f"value starts with {value!r}"
    limit = source.dead_letter_limit
    schema = "the registry" if source.registry else "source.value_schema"
    remedy = (
        f"Correct the producer or {schema}, or set source.on_bad_record: dead_letter"
        if source.on_bad_record == "fail"
        else f"Correct them, or raise source.dead_letter_limit ({limit} a checkpoint)"
    )
    return BadRecordError(
        f"{bad} bad record(s), for example {record}: {record.reason}; {shown}. {remedy}. "
        "Nothing was committed.",
        count=bad,
        example=record,
    )


def _words(why: Column, sink: Sink) -> Column:
    return F.concat(F.lit(f"its rows do not fit into {sink.table_name}: "), why)


def _coordinates() -> list[Column]:
    return [F.col(KAFKA_COLUMN)[name].alias(name) for name in _COORDINATES]
