"""How PyIceberg reaches a bucket: as it does by itself, but for how small files are put."""

from __future__ import annotations

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

_DELAYED = "allow_delayed_open"


class WholePutsFileIO(PyArrowFileIO):
    """Puts a file of less than a part's size in one request. By default Arrow begins an upload of
    parts for each manifest of some kilobytes: three requests, and whoever is killed between them
    leaves an upload that no list shows.
    """

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        made = super()._initialize_s3_fs(netloc)
        again, (options,) = made.__reduce__()
        if _DELAYED not in options:  # an Arrow that cannot
            return made
        found: FileSystem = again({**options, _DELAYED: True})
        return found
