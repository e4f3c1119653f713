"""Tests of eo_pipeline.storage."""
