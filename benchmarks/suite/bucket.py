"""A bucket on this machine, as far away as one in the same region."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from pyarrow.fs import FileSelector, FileType, S3FileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from benchmarks.suite.link import SlowLink
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import RemotePath
from tests.support.rest_catalog import RestCatalogServer, rest_catalog_jars

#: A request's way there and back.
DELAY_S = 0.005
_NAME = "bench"
_REGION = "us-east-1"


def catalog_of(store: EmbeddedObjectStore, bucket: str, state: Path) -> RestCatalogServer:
    """A REST catalog of Iceberg tables in a store's bucket, not started; ``state``: where jars
    are.
    """
    place = store.storage.place(f"{bucket}/any")
    assert isinstance(place, RemotePath)
    return RestCatalogServer(store.folder / "catalog", rest_catalog_jars(state), place.bucket)


def iceberg_table(catalog: RestCatalogServer, storage: Storage, name: str) -> Table:
    """A table of such a catalog, to be read from outside."""
    assert storage.access_key_id is not None
    assert storage.secret_access_key is not None
    files = {
        "s3.endpoint": storage.endpoint,
        "s3.access-key-id": storage.access_key_id.get_secret_value(),
        "s3.secret-access-key": storage.secret_access_key.get_secret_value(),
        "s3.region": _REGION,
    }
    return load_catalog("rest", type="rest", uri=catalog.uri, **files).load_table(name)


class Bucket:
    """A running object store with one bucket, empty; everything below ``folder``. ``state``: where
    jars are.
    """

    def __init__(self, folder: Path, state: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._state = state
        self._catalog: RestCatalogServer | None = None
        self._catalog_link: SlowLink | None = None
        self._store = EmbeddedObjectStore(folder)
        self._store.start()
        self._store.bucket(_NAME)
        self._link = SlowLink(self._store.port, DELAY_S)

    def stop(self) -> None:
        """Remove all that is in it, too."""
        if self._catalog_link is not None:
            self._catalog_link.close()
        if self._catalog is not None:
            self._catalog.stop()
        self._link.close()
        self._store.stop()
        shutil.rmtree(self._store.folder, ignore_errors=True)

    def folder(self, name: str) -> str:
        """The URI of a folder, which need not be there."""
        return f"s3://{_NAME}/{name}"

    @property
    def endpoint(self) -> str:
        """The slow link, for peers."""
        return f"http://{self._store.host}:{self._link.port}"

    @property
    def catalog(self) -> str:
        """The URI of a REST catalog of Iceberg tables, by a slow link; started when it is first
        asked for.
        """
        if self._catalog_link is None:
            self._catalog = catalog_of(self._store, f"s3://{_NAME}", self._state)
            self._catalog.start()
            self._catalog_link = SlowLink(self._catalog.port, DELAY_S)
        return f"http://{self._store.host}:{self._catalog_link.port}"

    @property
    def keys(self) -> tuple[str, str]:
        """The access key and its secret."""
        storage = self._store.storage
        assert storage.access_key_id is not None
        assert storage.secret_access_key is not None
        return (
            storage.access_key_id.get_secret_value(),
            storage.secret_access_key.get_secret_value(),
        )

    def for_delta(self) -> Mapping[str, str]:
        """What delta-rs needs to read back, without the delay."""
        key, secret = self.keys
        return {
            "aws_access_key_id": key,
            "aws_secret_access_key": secret,
            "aws_region": _REGION,
            "aws_endpoint_url": f"http://{self._store.host}:{self._store.port}",
            "aws_allow_http": "true",
        }

    def files(self, uri: str) -> Sequence[str]:
        """The URIs of all files below a folder."""
        selector = FileSelector(uri.removeprefix("s3://"), allow_not_found=True, recursive=True)
        found = self._files().get_file_info(selector)
        return [f"s3://{each.path}" for each in found if each.type is FileType.File]

    def read(self, uris: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """The rows of Parquet files, without the delay."""
        files = self._files()
        parts = []
        for uri in uris:
            with files.open_input_stream(uri.removeprefix("s3://")) as stream:
                parts.append(pl.read_parquet(stream.read(), columns=[*columns]))
        return pl.concat(parts)

    def iceberg(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """The rows of an Iceberg table, without the delay."""
        assert self._catalog is not None, "its table is there"
        read = iceberg_table(self._catalog, self._store.storage, table)
        frame = pl.from_arrow(read.scan(selected_fields=tuple(columns)).to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _files(self) -> S3FileSystem:
        key, secret = self.keys
        return S3FileSystem(
            access_key=key,
            secret_key=secret,
            region=_REGION,
            scheme="http",
            endpoint_override=f"{self._store.host}:{self._store.port}",
        )
