"""Delta Lake: staged Parquet files become the table by reference, with the ledger's head in the
same commit.
"""

from eo_pipeline.sinks.delta.config import DeltaSink

__all__ = ["DeltaSink"]
