"""A pipeline's history as one page of HTML, to be looked at."""

from eo_pipeline.report.page import page

__all__ = ["page"]
