"""What sinks share whose staged Parquet files become the table: the ledger chain and the commit.

:mod:`eo_pipeline.sinks.lake.ledger` keeps the entries, :mod:`eo_pipeline.sinks.lake.frame` the
order of a publication.
"""
