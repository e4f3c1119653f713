"""The command line ``eo``: the pipelines of YAML documents, looked at, run and taken back."""

from __future__ import annotations

import gc


def main() -> None:
    """The script ``eo``.

    Importing makes some hundred thousand objects, and all of them stay: to look through them for
    garbage again and again, and once more at the end, is a quarter of a command that finds nothing
    to do. So that is left until they are there, and they are never looked at again.
    """
    gc.disable()
    from eo_pipeline.cli.app import main as commands

    gc.freeze()
    gc.enable()
    commands()
