"""Tests of eo_pipeline.formats."""
