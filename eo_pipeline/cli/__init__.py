"""The command line ``eo``: the pipelines of YAML documents, looked at, run and taken back."""

from eo_pipeline.cli.app import main

__all__ = ["main"]
