"""A bucket of Google's. Spark's way there may leave marks of folders in it, which hold nothing:
objects whose names end with a slash, that no client of object_store can name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eo_pipeline.stores.base import Listed
from eo_pipeline.stores.objects import ObjectStore


@dataclass(frozen=True)
class GoogleStore(ObjectStore):
    """``mark_of`` makes a client to which the mark of a folder is the object without a name."""

    mark_of: Callable[[str], Any]

    def has_any(self, key: str) -> bool:
        import obstore

        with self._errors(key):
            for batch in obstore.list(self.client, key, chunk_size=50):
                found = (Listed(each["path"], each["size"]) for each in batch)
                if any(each.key != key and not self._is_mark(each) for each in found):
                    return True
        return False

    def below(self, key: str) -> list[Listed]:
        """A folder's mark is listed by the name that it has before its slash, where there is no
        object.
        """
        return [each for each in super().below(key) if not self._is_mark(each)]

    def delete_tree(self, key: str) -> None:
        found = super().below(key)
        marks = {each.key for each in found if self._is_mark(each)}
        self.delete(each.key for each in found if each.key not in marks)
        self._delete_marks(marks)

    def delete_empty_folders(self, key: str) -> None:
        found = super().below(key)
        marks = {each.key for each in found if self._is_mark(each)}
        files = [each.key for each in found if each.key not in marks]
        self._delete_marks(
            mark for mark in marks if not any(file.startswith(f"{mark}/") for file in files)
        )

    def _is_mark(self, listed: Listed) -> bool:
        return listed.size == 0 and self.head(listed.key) is None

    def _delete_marks(self, marks: Iterable[str]) -> None:
        import obstore

        for mark in sorted(marks, reverse=True):
            with suppress(FileNotFoundError), self._errors(mark):
                obstore.delete(self.mark_of(mark), "")
