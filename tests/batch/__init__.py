"""Tests of eo_pipeline.batch."""
