"""Parts of sinks whose staged Parquet files become the table: the ledger chain and the commit.

:mod:`eo_pipeline.sinks.lake.ledger` keeps the entries, :mod:`eo_pipeline.sinks.lake.session` takes
the steps of a publication.
"""
