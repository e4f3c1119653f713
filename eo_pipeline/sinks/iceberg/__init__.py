"""Apache Iceberg: staged Parquet files become the table by reference, with the ledger's head in
the same commit.
"""

from eo_pipeline.sinks.iceberg.sink import IcebergCatalog, IcebergSink

__all__ = ["IcebergCatalog", "IcebergSink"]
