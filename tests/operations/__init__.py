"""Tests of eo_pipeline.operations."""
