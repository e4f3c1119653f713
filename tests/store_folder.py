"""What the fixtures of stores have in common: a folder of a test's own, and how to get there."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from eo_pipeline.bucket import BucketPath
from eo_pipeline.storage import Storage


class StoreFolder:
    """A folder in a store, not made yet."""

    uri: str

    @property
    def storage(self) -> Storage:
        return Storage()

    def document(self) -> dict[str, Any]:
        """``storage`` as a document holds it."""
        values = self.storage.model_dump(exclude_none=True)
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in values.items()
        }

    @property
    def place(self) -> BucketPath:
        found = self.storage.place(self.uri)
        assert isinstance(found, BucketPath)
        return found

    def options(self) -> dict[str, str]:
        """For an observer who reads a table there with delta-rs."""
        return dict(self.place.bucket.delta)
