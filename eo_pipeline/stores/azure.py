"""A container of Azure's, by its Blob endpoint: an object store that has folders after all."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from eo_pipeline.stores.base import Head, Listed, Names
from eo_pipeline.stores.objects import ObjectStore

#: What Hadoop, and Azure's own folders, write on a blob that stands for a folder.
_FOLDER = "hdi_isfolder"


@dataclass(frozen=True)
class AzureBlobs(ObjectStore):
    """Spark's file system marks each folder that it makes by a blob under its name, which holds
    nothing. Where the account has a hierarchical namespace it is a folder indeed: it stays when
    it is emptied, is given away by its name before a slash alone, and is deleted like a blob.
    """

    def head(self, key: str) -> Head | None:
        found = super().head(key)
        return None if found is not None and not found.size and self._is_folder(key) else found

    def names(self, key: str) -> Names:
        """A folder that holds nothing but its mark is none."""
        import obstore

        with self._errors(key):
            found = obstore.list_with_delimiter(self.client, key)
        folders = {*found["common_prefixes"]}
        files = [
            each["path"]
            for each in found["objects"]
            if each["size"] or not (each["path"] in folders or self._is_folder(each["path"]))
        ]
        return Names(
            [PurePosixPath(path).name for path in sorted(folders)],
            [PurePosixPath(path).name for path in files],
        )

    def below(self, key: str) -> list[Listed]:
        found = super().below(key)
        if all(each.size for each in found):
            return found
        above = {str(parent) for each in found for parent in PurePosixPath(each.key).parents}
        return [
            each
            for each in found
            if each.size or not (each.key in above or self._is_folder(each.key))
        ]

    def delete_tree(self, key: str) -> None:
        self.delete(each.key for each in super().below(key))
        for folder in (*self._folders_below(key), key):
            self._delete_folder(folder)

    def delete_empty_folders(self, key: str) -> None:
        files = {each.key for each in self.below(key)}
        full = {str(parent) for file in files for parent in PurePosixPath(file).parents}
        marks = {each.key for each in super().below(key)} - files
        for folder in sorted({*marks, *self._folders_below(key), key} - full, reverse=True):
            self._delete_folder(folder)

    def _folders_below(self, key: str) -> list[str]:
        """Those that are listed by their names before a slash, the innermost first."""
        found = [f"{key}/{name}" for name in super().names(key).folders]
        return [each for folder in found for each in (*self._folders_below(folder), folder)]

    def _delete_folder(self, key: str) -> None:
        """That it cannot be is no error: an empty folder harms nobody, and a full one stays."""
        with suppress(OSError):
            self._delete([key])

    def _is_folder(self, key: str) -> bool:
        """Of a blob that holds nothing."""
        import obstore

        with suppress(FileNotFoundError), self._errors(key):
            return obstore.get(self.client, key).attributes.get(_FOLDER) == "true"
        return False
