"""A pipeline's history as one page of HTML, to be looked at."""

from eo_pipeline.monitoring.report import page

__all__ = ["page"]
