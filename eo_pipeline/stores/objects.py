"""A bucket of an object store, spoken to by obstore (the ``object_store`` crate)."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from eo_pipeline.stores.base import (
    Head,
    Listed,
    Names,
    StoreUnreachableError,
    first_sentence,
)


@dataclass(frozen=True)
class ObjectStore:
    """``client`` is one of obstore's, and ``root`` the URI of its bucket, for messages. There are
    no folders: they are what keys have before their slashes.
    """

    client: Any
    root: str

    def head(self, key: str) -> Head | None:
        import obstore

        try:
            with self._errors(key):
                found = obstore.head(self.client, key)
        except FileNotFoundError:
            return None
        size, changed = int(found["size"]), found["last_modified"]
        return Head(size, changed.timestamp(), (found["e_tag"], changed, size))

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=2):
                if any(each["path"] != key for each in batch):
                    return True
        return False

    def names(self, key: str) -> Names:
        import obstore

        with self._errors(key):
            found = obstore.list_with_delimiter(self.client, key)
        folders = [PurePosixPath(path).name for path in found["common_prefixes"]]
        paths = [each["path"] for each in found["objects"]]
        return Names(folders, [PurePosixPath(path).name for path in paths if path != key])

    def below(self, key: str) -> list[Listed]:
        import obstore

        with self._errors(key):
            return [
                Listed(each["path"], each["size"])
                for batch in obstore.list(self.client, key)
                for each in batch
            ]

    def get(self, key: str) -> bytes:
        import obstore

        with self._errors(key):
            return bytes(obstore.get(self.client, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        import obstore

        with self._errors(key):
            return bytes(obstore.get_range(self.client, key, start=start, length=length))

    def put(self, key: str, content: bytes) -> None:
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, content, use_multipart=False)

    def put_file(self, key: str, file: Path) -> None:
        """Large ones in parts."""
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, file)

    def put_new(self, key: str, content: bytes) -> None:
        import obstore

        with self._errors(key):
            obstore.put(self.client, key, content, mode="create", use_multipart=False)

    def copy(self, key: str, target: str) -> None:
        """Within the store, where no byte of it is seen."""
        import obstore

        with self._errors(key):
            obstore.copy(self.client, key, target)

    def delete(self, keys: Iterable[str]) -> None:
        """Azure and Google mind that one is gone already, and may then have left others."""
        found = sorted(set(keys))
        if not found:
            return
        try:
            self._delete(found)
        except FileNotFoundError:
            for key in found:
                with suppress(FileNotFoundError):
                    self._delete([key])

    def delete_tree(self, key: str) -> None:
        self.delete(each.key for each in self.below(key))

    def delete_empty_folders(self, key: str) -> None:
        """There are none."""

    def _delete(self, keys: list[str]) -> None:
        import obstore

        with self._errors(keys[0]):
            obstore.delete(self.client, keys)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """obstore's errors as those that the same call on a file would raise."""
        from obstore import exceptions

        place = f"{self.root}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", place) from error
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "there is one already", place) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _text(error), place) from error
        except exceptions.BaseError as error:
            raise StoreUnreachableError(errno.EIO, _text(error), place) from error


def _text(error: Exception) -> str:
    """The sentence of it; Rust's own notation of the same follows."""
    return first_sentence(str(error).split("\n\nDebug source")[0])
