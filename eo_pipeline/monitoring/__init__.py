"""A pipeline's history as one HTML page, and its figures for Prometheus."""

from eo_pipeline.monitoring.report import page

__all__ = ["page"]
