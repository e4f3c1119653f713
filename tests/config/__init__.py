"""Tests of eo_pipeline.config."""
