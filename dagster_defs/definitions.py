"""The code location: every pipeline declared below ``defs/``."""

from pathlib import Path

import dagster as dg

from eo_pipeline.dagster.definitions import load_pipelines


@dg.definitions
def defs() -> dg.Definitions:
    """Load ``defs/``."""
    return load_pipelines(Path(__file__).parent)
