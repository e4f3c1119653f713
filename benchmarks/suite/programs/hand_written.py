"""A loader as a careful engineer writes it for one table: COPY, offsets in the transaction.

For each line of stdin, ``{"bootstrap", "topic", "dsn", "table", "workload"}``: everything that is
new, in transactions of up to 500,000 records; prints the seconds it took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.suite.countries import COUNTRIES

BATCH = 500_000
POLL = 10_000
COLUMNS = "id, customer, country, amount, at_ms, note"
ENRICHED = "id, customer, country, country_name, region, amount_cents, at, note"
NAMES = {code: f"{name}\t{region}" for code, name, region in COUNTRIES}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def positions(database: psycopg.Connection, topic: str, table: str) -> dict[int, int]:
    """The next offset of each partition, as the last transaction into ``table`` left it."""
    database.execute(
        "CREATE TABLE IF NOT EXISTS loader_offsets"
        "(loaded text, topic text, part int, next bigint, PRIMARY KEY (loaded, topic, part))"
    )
    rows = database.execute(
        "SELECT part, next FROM loader_offsets WHERE loaded = %s AND topic = %s FOR UPDATE",
        [table, topic],
    )
    return {int(part): int(following) for part, following in rows}


def remaining(consumer: Consumer, topic: str, known: dict[int, int]) -> dict[int, tuple[int, int]]:
    """What is new, as ``[start, end)`` of each partition that has anything."""
    found = {}
    for part in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=30)
        start = known.get(part, low)
        if start < high:
            found[part] = (start, high)
    return found


def batches(consumer: Consumer, ends: dict[int, int]) -> Iterator[list[tuple[int, int, bytes]]]:
    """Partition, offset and value of every record up to ``ends``."""
    unfinished = dict(ends)
    while unfinished:
        batch = []
        messages: list[Any] = consumer.consume(POLL, timeout=0.05)
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            part, offset = message.partition(), message.offset()
            if offset < ends[part]:
                batch.append((part, offset, message.value()))
            if offset + 1 >= ends[part]:
                unfinished.pop(part, None)
        if batch:
            yield batch


def load(bootstrap: str, topic: str, dsn: str, table: str, workload: str) -> None:
    """One run: until the ends that it saw at its start."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "hand-written",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 8_388_608,
        }
    )
    with psycopg.connect(dsn) as database:
        new = remaining(consumer, topic, positions(database, topic, table))
        if not new:
            return
        consumer.assign([TopicPartition(topic, part, start) for part, (start, _) in new.items()])
        source = batches(consumer, {part: end for part, (_, end) in new.items()})
        while copied(database, source, topic, table, workload):
            database.commit()
    consumer.close()


def copied(
    database: psycopg.Connection,
    source: Iterator[list[tuple[int, int, bytes]]],
    topic: str,
    table: str,
    workload: str,
) -> int:
    """The records of one transaction, and where they end; not committed yet."""
    seen: dict[int, int] = {}
    records = 0
    columns, text_of = TEXTS[workload]
    into = table
    if workload == "upsert":
        into = "fresh"
        database.execute(f"CREATE TEMP TABLE fresh (LIKE {table}, place bigserial) ON COMMIT DROP")
    statement = f"COPY {into} ({columns}) FROM STDIN"
    with database.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in source:
            copy.write(text_of(batch))
            for part, offset, _ in batch:
                seen[part] = offset + 1
            records += len(batch)
            if records >= BATCH:
                break
    if workload == "upsert":
        replaced = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns.split(", "))
        database.execute(
            f"INSERT INTO {table} ({columns})"
            f" SELECT DISTINCT ON (id) {columns} FROM fresh ORDER BY id, place DESC"
            f" ON CONFLICT (id) DO UPDATE SET {replaced}"
        )
    for part, following in seen.items():
        database.execute(
            "INSERT INTO loader_offsets VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (loaded, topic, part) DO UPDATE SET next = EXCLUDED.next",
            [table, topic, part, following],
        )
    return records


def plain(batch: list[tuple[int, int, bytes]]) -> str:
    """Rows in COPY's text format. (A backslash in a text would have to be doubled.)"""
    loads = json.loads
    rows = (loads(value) for _, _, value in batch)
    return "".join(
        f"{r['id']}\t{r['customer']}\t{r['country']}\t{r['amount']}\t{r['at_ms']}\t{r['note']}\n"
        for r in rows
    )


def enriched(batch: list[tuple[int, int, bytes]]) -> str:
    """Rows of the records that pass the filter, with what is derived and looked up."""
    loads = json.loads
    rows = (loads(value) for _, _, value in batch)
    return "".join(
        f"{r['id']}\t{r['customer'].upper()}\t{r['country']}\t{NAMES[r['country']]}\t"
        f"{round(r['amount'] * 100)}\t{EPOCH + timedelta(milliseconds=r['at_ms'])}\t{r['note']}\n"
        for r in rows
        if r["country"] != "ZA"
    )


#: By workload: the columns, and what makes rows of records.
TEXTS: dict[str, tuple[str, Callable[[list[tuple[int, int, bytes]]], str]]] = {
    "plain": (COLUMNS, plain),
    "upsert": (COLUMNS, plain),
    "transform": (ENRICHED, enriched),
}


def main() -> None:
    """A run for each line."""
    for line in sys.stdin:
        started = time.perf_counter()
        load(**json.loads(line))
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
