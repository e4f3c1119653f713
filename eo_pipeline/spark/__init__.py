"""Spark: sessions, start-up settings, interruption and errors."""

from eo_pipeline import _lazy

# a run without new records saves the import of pyspark, a sixth of a second
__all__, __getattr__ = _lazy.exports(__name__)
