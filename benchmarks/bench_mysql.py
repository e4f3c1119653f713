"""Bulk load into MariaDB against Spark's own JDBC writer: ``python benchmarks/bench_mysql.py``.

The same staged Parquet files go into two tables of one shape (index on ``_eo_checkpoint`` and all)
on an embedded server with durable settings: once as a checkpoint of the MySQL sink, once by
``df.write.format("jdbc")``, as it is and with its settings tried out. Rounds alternate; the best of
each counts. CPU seconds (of this process, the JVM and the server together) say how it compares on a
machine that is busy with something else. The JDBC writer does less: it commits a transaction a
task, so that a crash leaves part of its rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from eo_pipeline.embedded.mariadb import EmbeddedMariaDB
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.spark.maven import Artefact, resolved
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files

STATE = Path(__file__).parents[1] / ".eo"
DRIVERS = (
    Artefact("org.mariadb.jdbc", "mariadb-java-client", "3.5.3"),
    Artefact("com.mysql", "mysql-connector-j", "8.4.0"),
)
TARGET = 3.0
FILES = 2

MARIADB = {"driver": "org.mariadb.jdbc.Driver"}
MYSQL = {"driver": "com.mysql.cj.jdbc.Driver"}

#: What the JDBC writer can be told, by driver: nothing; to write all in one transaction, as the
#: sink does; larger batches; MariaDB's bulk protocol for more than inserts; MySQL's statements of
#: many rows.
JDBC_SETTINGS = {
    "MariaDB's driver": MARIADB,
    "MariaDB's driver, one transaction": {**MARIADB, "numPartitions": "1"},
    "MariaDB's driver, batchsize 10000": {**MARIADB, "batchsize": "10000"},
    "MariaDB's driver, useBulkStmts": {**MARIADB, "batchsize": "10000", "useBulkStmts": "true"},
    "MySQL's driver": MYSQL,
    "MySQL's driver, rewriteBatchedStatements": {**MYSQL, "rewriteBatchedStatements": "true"},
}

#: One double-quoted name is enough for MariaDB to refuse Spark's statements in its usual mode.
SESSION = "sessionVariables=sql_mode='ANSI'"
#: Spark knows how to quote names by the address; MariaDB's driver takes that one if it is told to.
SCHEME = "permitMysqlScheme=true"


def flights(count: int) -> pa.Table:
    """Records of about 130 bytes: numbers, texts, a time, a price."""
    numbers = np.arange(count)
    start = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    prices = [Decimal(n % 100_000) / 100 for n in range(count)]
    return pa.table(
        {
            "id": pa.array(numbers),
            "carrier": pa.array([("UA", "AA", "B6", "DL")[n % 4] for n in range(count)]),
            "tailnum": pa.array([f"N{n % 4000:05}" for n in range(count)]),
            "route": pa.array([f"EWR-{n % 97:03}-{'x' * (n % 40)}" for n in range(count)]),
            "departed": pa.array(start + numbers * 1_000_003, pa.timestamp("us", "UTC")),
            "delay": pa.array(numbers * 0.1),
            "price": pa.array(prices, pa.decimal128(12, 2)),
            "_eo_topic": pa.array(["flights"] * count),
            "_eo_partition": pa.array(numbers % 4, pa.int32()),
            "_eo_offset": pa.array(numbers // 4),
            "_eo_checkpoint": pa.array(np.ones(count, np.int64)),
        }
    )


class Cost(NamedTuple):
    """What one load took."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Cost:
        me = psutil.Process()
        used = [process.cpu_times() for process in (me, *me.children(recursive=True))]
        return cls(time.perf_counter(), sum(times.user + times.system for times in used))

    @classmethod
    def since(cls, start: Cost) -> Cost:
        end = cls.now()
        return cls(end.seconds - start.seconds, end.cpu_seconds - start.cpu_seconds)


def publish(server: EmbeddedMariaDB, rows: StagedTable, name: str, *, load_data: bool) -> Cost:
    """One checkpoint: from the look at the ledger to the reply to COMMIT."""
    sink = MySqlSink(
        host=server.host,
        port=server.port,
        user=server.USER,
        database=server.DATABASE,
        table=name,
        load_data=load_data,
    )
    with sink.open(name) as session:
        start = first_entry(name)
        session.publish(start, StagedOutput())
        entry = child_of(start, rows.rows)
        started = Cost.now()
        outcome = session.publish(entry, StagedOutput(rows=rows))
        cost = Cost.since(started)
    if outcome is not CommitOutcome.COMMITTED:
        raise SystemExit(f"{name}: {outcome}")
    return cost


def write_jdbc(
    spark: SparkSession, server: EmbeddedMariaDB, folder: Path, name: str, settings: dict[str, str]
) -> Cost:
    """What ``df.write`` takes, with a warm Spark; the table is there already."""
    df = spark.read.parquet(str(folder))
    address = f"jdbc:mysql://{server.host}:{server.port}/{server.DATABASE}"
    writer = df.write.format("jdbc").mode("append").option("dbtable", name)
    writer = writer.option("user", server.USER)
    writer = writer.option("url", f"{address}?{SCHEME}&{SESSION}").options(**settings)
    started = Cost.now()
    writer.save()
    return Cost.since(started)


def run(statement: str, server: EmbeddedMariaDB) -> int:
    with server.connect(server.DATABASE) as admin, admin.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def spark_session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    drivers = [jar for driver in DRIVERS for jar in resolved(driver, STATE)]
    jars = ",".join(map(str, drivers))
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    for name, value in {"ui.enabled": "false", "log.level": "ERROR"}.items():
        builder = builder.config(f"spark.{name}", value)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session: SparkSession = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    return session


def rounds(
    server: EmbeddedMariaDB, rows: StagedTable, folder: Path, count: int
) -> Iterator[tuple[str, Cost]]:
    """(way, cost), each way once a round, into tables that are dropped afterwards."""
    spark = spark_session()
    publish(server, rows, "shape", load_data=True)
    write_jdbc(spark, server, folder, "shape", MARIADB)  # warm up
    for number in range(count):
        for load_data in (True, False):
            name = f"sink_{number}_{load_data}".lower()
            way = "sink, LOAD DATA" if load_data else "sink, INSERT"
            yield way, publish(server, rows, name, load_data=load_data)
            check_and_drop(server, name, rows.rows)
        for label, settings in JDBC_SETTINGS.items():
            run("CREATE TABLE by_jdbc LIKE shape", server)
            yield f"JDBC, {label}", write_jdbc(spark, server, folder, "by_jdbc", settings)
            check_and_drop(server, "by_jdbc", rows.rows)


def check_and_drop(server: EmbeddedMariaDB, name: str, expected: int) -> None:
    found = run(f"SELECT count(*) FROM {name}", server)
    if found != expected:
        raise SystemExit(f"{name} holds {found} rows instead of {expected}")
    run(f"DROP TABLE {name}", server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    best: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = to_files(
            StagedTable.in_memory(flights(options.records)), folder / "rows", files=FILES
        )
        with EmbeddedMariaDB(folder / "mariadb") as server:
            for way, cost in rounds(server, rows, folder / "rows", options.rounds):
                best[way] = min(cost, best.get(way, cost))
    report(best, options.records)


def report(best: dict[str, Cost], records: int) -> None:
    for way, cost in sorted(best.items(), key=lambda item: item[1]):
        rate = f"{cost.seconds:7.2f} s {records / cost.seconds:10,.0f} rows/s"
        sys.stdout.write(f"{way:36} {rate} {cost.cpu_seconds:7.2f} s CPU\n")
    ours = best["sink, LOAD DATA"]
    for name in sorted((way for way in best if "JDBC" in way), key=lambda way: best[way]):
        ratio = best[name].seconds / ours.seconds
        cpu = best[name].cpu_seconds / ours.cpu_seconds
        verdict = "reached" if ratio >= TARGET else "missed"
        sys.stdout.write(
            f"LOAD DATA is {ratio:.1f} times as fast as '{name}' ({cpu:.1f} times less CPU); "
            f"target {TARGET:.0f}: {verdict}\n"
        )


if __name__ == "__main__":
    main()
