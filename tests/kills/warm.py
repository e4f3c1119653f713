"""Everything that a run imports, in the process of which operations are copies."""

from importlib import import_module

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
    "eo_pipeline.run.stage",
    "eo_pipeline.source.fetch",
    "eo_pipeline.spark.connect",
    *(
        f"eo_pipeline.sinks.{store}.session"
        for store in ("delta", "iceberg", "kafka", "mysql", "parquet", "postgres", "redis")
    ),
    "tests.kills.operations",
    "tests.kills.transforms",
):
    import_module(name)
