"""The command line ``eo``: inspects, runs and rewinds the pipelines of YAML documents."""

from __future__ import annotations

import gc


def main() -> None:
    """Entry point of the script ``eo``.

    Imports create some hundred thousand objects that are never freed. Searching them for garbage,
    repeatedly and once more at the end, takes a quarter of a command without work. So the collector
    is off during imports and ignores these objects afterwards.
    """
    gc.disable()
    from eo_pipeline.cli.app import main as commands

    gc.freeze()
    gc.enable()
    commands()
