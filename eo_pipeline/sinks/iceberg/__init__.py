"""Apache Iceberg: staged Parquet files become the table by reference, with the ledger's head in
the same commit.
"""

from eo_pipeline.sinks.iceberg.config import IcebergCatalog, IcebergSink

__all__ = ["IcebergCatalog", "IcebergSink"]
