"""What is said where the package of a store's client is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eo_pipeline.errors import ConfigError
from eo_pipeline.wording import to_install


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """For an import.

    Raises:
        ConfigError: it fails; ``extra`` of this package has what is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store cannot be reached without the package {error.name}: {to_install(extra)}"
        ) from error
