"""Records a second that the Kafka sink publishes: ``python benchmarks/bench_kafka_sink.py``.

1,000,000 records of 200 bytes, staged as Parquet the way Spark's projection leaves them, go to a
topic of four partitions in one transaction with the ledger record, on an embedded broker of this
machine; and by several shards in one transaction each. Timed from the look at the ledger to the
moment read_committed readers reach the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files

RECORD_BYTES = 200
PARTITIONS = 4
SOURCES = 12
TARGET = 150_000

#: What a record holds beside its random part.
_FRAME = '{"id": %9d, "noise": "%s"}'


def staged(records: int, folder: Path, *, keyed: bool) -> StagedTable:
    """JSON values whose half is noise, so that compression has work and not a gift."""
    noise_bytes = RECORD_BYTES - len(_FRAME % (0, ""))
    noise = np.random.default_rng(7).bytes(records * noise_bytes // 2).hex()
    values = [
        (_FRAME % (n, noise[n * noise_bytes : (n + 1) * noise_bytes])).encode()
        for n in range(records)
    ]
    columns = {"_eo_value": pa.array(values, pa.binary())}
    if keyed:
        columns["_eo_key"] = pa.array([b"%d" % (n % 10_000) for n in range(records)], pa.binary())
    columns["_eo_checkpoint"] = pa.array(np.ones(records, np.int64))
    columns["_eo_topic"] = pa.array(["source"] * records, pa.string())
    # as Spark leaves them: one source partition after the other
    columns["_eo_partition"] = pa.array(np.arange(records) * SOURCES // records, pa.int32())
    return to_files(StagedTable.in_memory(pa.table(columns)), folder, files=PARTITIONS)


def publish(
    server: EmbeddedKafka, topic: str, rows: StagedTable, *, keyed: bool, shards: int
) -> float:
    """Seconds for one checkpoint."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    config = {"bootstrap_servers": server.bootstrap_servers, "topic": topic}
    key = "key" if keyed else None
    sink = KafkaSink.model_validate({**config, "key": key, "shards": shards})
    with sink.open("bench") as session:
        start = first_entry("bench")
        session.publish(start, StagedOutput())
        started = time.perf_counter()
        outcome = session.publish(child_of(start, rows.rows), StagedOutput(rows=rows))
        seconds = time.perf_counter() - started
    if outcome is not CommitOutcome.COMMITTED:
        raise RuntimeError(f"not committed: {outcome}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    state = Path(__file__).parents[1] / ".eo"
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(Path(folder) / "kafka", jars=kafka_broker_jars(state)) as server,
    ):
        for keyed in (False, True):
            rows = staged(options.records, Path(folder) / f"rows-{keyed}", keyed=keyed)
            for shards, run in product(options.shards, range(options.runs)):
                cpu = time.process_time()
                topic = f"bench-{keyed}-{shards}-{run}"
                seconds = publish(server, topic, rows, keyed=keyed, shards=shards)
                cpu = time.process_time() - cpu
                rate = options.records / seconds
                label = f"{'with' if keyed else 'no'} keys, {shards} shard{'s' * (shards > 1)}"
                sys.stdout.write(
                    f"{label:>20}: {seconds:6.2f} s  {rate:10,.0f} records/s  "
                    f"{rate / TARGET:4.1f} x the target; this process {cpu:.2f} s of CPU\n"
                )


if __name__ == "__main__":
    main()
