"""Everything that a run imports, in the process of which operations are copies."""

import time
from importlib import import_module
from types import SimpleNamespace

for name in (
    "confluent_kafka.admin",
    "deltalake",
    "obstore",
    "psycopg",
    "pyarrow.parquet",
    "pyiceberg.catalog.sql",
    "pymysql",
    "pyspark.sql.connect.session",
    "redis",
    "eo_pipeline.batch.stage",
    "eo_pipeline.kafka.fetch",
    "eo_pipeline.spark.connect",
    *(
        f"eo_pipeline.sinks.{store}.session"
        for store in ("delta", "iceberg", "kafka", "mysql", "parquet", "postgres", "redis")
    ),
    "tests.kills.operations",
    "tests.kills.transforms",
):
    import_module(name)

# gRPC counts its deadlines from Python's clock and waits for them by the kernel's: one that was
# turned in between would be waited for an hour long. It keeps the kernel's for both: clock.c
_OFF = time.time() - time.monotonic()
for name in ("grpc._channel", "grpc._common", "grpc._utilities"):
    kernels = SimpleNamespace(time=lambda: time.monotonic() + _OFF, perf_counter=time.perf_counter)
    vars(import_module(name))["time"] = kernels
