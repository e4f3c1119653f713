"""What the fixtures of stores have in common: a folder of a test's own, and how to get there. A
suite that every store must pass asks for ``store``, by :func:`on_stores`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import pytest
from pydantic import SecretStr

from eo_pipeline.embedded.ports import HOST
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import RemotePath
from tests.support.chaos import rest_is_chaos

#: Fixtures of stores, each of a :class:`StoreFolder`.
STORES = ("bucket", "azure", "google", "hdfs")


@dataclass(frozen=True, kw_only=True)
class StoreFolder(ABC):
    """A folder in a store, not made yet, and how to get there."""

    #: what the store's client is imported from, and of which extra of this package it comes
    MODULE: ClassVar[str] = "obstore.store"
    EXTRA: ClassVar[str]
    #: what is said of one that hangs
    SILENT: ClassVar[str] = "error sending request"

    uri: str
    #: fields of ``storage`` that are said otherwise than they lead there
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]:
        """Where the store listens; before it a proxy can stand."""

    @abstractmethod
    def files(self) -> set[str]:
        """What is below the folder, as an observer sees it: by name, from the folder on."""

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Of ``storage``: those that lead there."""

    def document(self, **more: Any) -> dict[str, Any]:
        """``storage`` as a document holds it."""
        return {**self._fields(), **self.said, **more}

    @property
    def storage(self) -> Storage:
        return Storage.model_validate(self.document())

    @property
    def place(self) -> RemotePath:
        found = self.storage.place(self.uri)
        assert isinstance(found, RemotePath)
        return found

    def options(self) -> dict[str, str]:
        """For an observer who reads a table there with delta-rs."""
        return dict(self.place.bucket.delta)

    def saying(self, **more: Any) -> Self:
        """The same folder, reached by other fields of ``storage``; None: not by this one."""
        return replace(self, said={**self.said, **more})

    def behind(self, port: int, **more: Any) -> Self:
        """The same folder, by way of ``port`` of this machine."""
        return self.saying(endpoint=f"http://{HOST}:{port}", **more)

    def apart(self) -> Self:
        """A folder that can be reached by a way of its own: Spark holds on to the way by which it
        first reached what has the folder, by its name.
        """
        return self

    def putting(self, name: str) -> re.Pattern[bytes]:
        """What a client sends when a file whose path ends so comes to be."""
        return re.compile(rb"PUT \S*" + re.escape(name.encode()))


def fields_of(storage: Storage) -> dict[str, Any]:
    """As a document holds them."""
    values = storage.model_dump(exclude_none=True)
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }


@pytest.fixture
def store(request: pytest.FixtureRequest) -> StoreFolder:
    """A folder of the test's own, in the store that :func:`on_stores` names."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, StoreFolder)
    return found


def on_stores(*names: str, chaos: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Runs a test, or every test of a class, on each of these stores, and on the others of
    ``chaos`` by `make chaos`.
    """
    each = [name for name in STORES if name in (*names, *chaos)]
    return pytest.mark.parametrize("store", rest_is_chaos(each, but=names), indirect=True)
