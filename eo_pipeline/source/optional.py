"""Packages that only a pipeline with a schema registry takes."""

from __future__ import annotations

import importlib
from typing import Any

from eo_pipeline.errors import SetupError
from eo_pipeline.wording import to_install


def library(name: str) -> Any:
    """The module.

    Raises:
        SetupError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SetupError(
            f"A schema registry takes packages that are not installed ({error}): "
            f"{to_install('registry')}"
        ) from error
