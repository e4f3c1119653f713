"""What a document calls a folder or a place in a bucket: one rule, whichever field says it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.spark import path_to_write
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import Place, RemotePath

SOURCE = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "value_schema": "id BIGINT"}
DATABASE = {"type": "postgres", "dsn": "postgresql://u@127.0.0.1:1/x", "table": "t"}


def _iceberg(**more: Any) -> dict[str, Any]:
    return {"sink": {"type": "iceberg", "table": "a.b", **more}}


def _catalog(warehouse: str) -> dict[str, Any]:
    properties = {"type": "sql", "uri": "sqlite:////c.db", "warehouse": warehouse}
    return _iceberg(catalog={"name": "c", "properties": properties})


#: Fields that take both.
TABLES: dict[str, Callable[[str], dict[str, Any]]] = {
    "sink.path": lambda place: {"sink": {"type": "delta", "path": place}},
    "sink.location": lambda place: _iceberg(location=place),
    "catalog.properties.warehouse": _catalog,
}

FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "staging": lambda place: {"sink": DATABASE, "staging": place},
    **TABLES,
}

#: And those that take folders only.
FOLDERS: dict[str, Callable[[str], dict[str, Any]]] = {
    **FIELDS,
    "sink.warehouse": lambda place: _iceberg(warehouse=place),
    "sink.path (parquet)": lambda place: {"sink": {"type": "parquet", "path": place}},
}


def place_of(config: dict[str, Any]) -> Place:
    pipeline = Pipeline.from_config({"name": "p", "source": SOURCE, **config})
    if "staging" in config:
        return pipeline.staging
    found: Place = pipeline.sink.root  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("field", FOLDERS)
@pytest.mark.parametrize(
    "written", ["file://{}", "file:{}", "FILE://{}", "file://localhost{}", "{}"]
)
def test_a_folder_may_be_written_as_a_url(field: str, written: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    text = written.format(folder)
    escaped = text.replace(" ", "%20") if ":" in written else text
    assert place_of(FOLDERS[field](escaped)) in (folder, folder / "a" / "b")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("written", "why"),
    [
        (
            "wasbs://c@account.blob.core.windows.net/x",
            "wasbs:// is not supported; use a folder, s3:",
        ),
        ("abfs://c@account.dfs.core.windows.net/x", "abfs:// is not supported"),
        ("s3a://bucket/x", "write s3://bucket/path"),
        ("s3:/bucket/x", "names no bucket"),
        ("s3://bucket", "a path in a bucket is required"),
        ("file://elsewhere/x", "another machine"),
        (" ", "is empty"),
    ],
)
def test_what_is_neither_is_refused_in_words_and_nothing_is_made(
    field: str, written: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"{field}: .*{why}"):
        place_of(FIELDS[field](written))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", FIELDS)
def test_a_bucket_is_one_for_all(field: str) -> None:
    found = place_of(FIELDS[field]("s3://bucket/x"))
    assert isinstance(found, RemotePath)
    assert str(found) in ("s3://bucket/x", "s3://bucket/x/a/b")


@pytest.mark.parametrize(
    ("written", "why"),
    [
        # Hadoop's ways to write it; a folder named hdfs: is what the first is not
        ("hdfs:/x/y", r"names no name node.*if a folder is meant, write \./hdfs:/x/y"),
        ("hdfs:///x/y", "names no name node: hdfs://host:port/path, or hdfs://service/path"),
        ("hdfs://ada@name-node:9000/x", "names no name node"),
        ("hdfs://name-node:9000", "a path in HDFS is required"),
        ("hdfs://name-node:9000/a b", "a path in HDFS is required"),
        ("gs:/bucket/x", "names no bucket"),
        ("gs://Bucket/x", "names no bucket"),
        ("gs://bucket", "a path in a bucket is required"),
    ],
)
def test_a_place_has_a_name_node_or_a_bucket_and_a_plain_name(written: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"staging: .*{why}"):
        place_of(FIELDS["staging"](written))


@pytest.mark.parametrize("field", ["staging", "sink.path"])
@pytest.mark.parametrize("written", ["hdfs://name-node:9000/x", "hdfs://service-1/a/b"])
def test_staging_and_a_delta_table_may_be_in_hdfs(field: str, written: str) -> None:
    found = place_of(FIELDS[field](written))
    assert isinstance(found, RemotePath)
    assert str(found) == path_to_write(found) == written


@pytest.mark.parametrize("field", ["staging", "sink.path"])
def test_staging_and_a_delta_table_may_be_in_a_bucket_of_google(field: str) -> None:
    found = place_of(FIELDS[field]("gs://bucket/x/y=1"))
    assert isinstance(found, RemotePath)
    assert str(found) == path_to_write(found) == "gs://bucket/x/y=1"


@pytest.mark.parametrize("field", [field for field in TABLES if field != "sink.path"])
def test_an_iceberg_table_is_not_in_a_bucket_of_google(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: .*takes no key of a service account there"):
        place_of(TABLES[field]("gs://bucket/x"))


@pytest.mark.parametrize("field", [field for field in TABLES if field != "sink.path"])
def test_an_iceberg_table_is_not_in_hdfs(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: .*PyIceberg reaches it by libhdfs alone"):
        place_of(TABLES[field]("hdfs://name-node:9000/x"))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("abfss://lake@account.blob.core.windows.net/x", "names no container: abfss://container@"),
        ("abfss://account.dfs.core.windows.net/lake/x", "names no container"),
        ("abfss://Lake@account.dfs.core.windows.net/x", "names no container"),
        ("abfss://la--ke@account.dfs.core.windows.net/x", "names no container"),
        ("abfss://lake:key@account.dfs.core.windows.net/x", "names no container"),
        ("abfss:/lake/x", r"names no container.*if a folder is meant, write \./abfss:/lake/x"),
        ("abfss://lake@account.dfs.core.windows.net", "a path in a container is required"),
        ("abfss://lake@account.dfs.core.windows.net/a b", "a path in a container is required"),
    ],
)
def test_a_place_in_azure_has_container_account_and_a_plain_name(written: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"staging: .*{why}"):
        place_of(FIELDS["staging"](written))


AZURE = "abfss://lake@account.dfs.core.windows.net/a/b"


@pytest.mark.parametrize("field", ["staging", "sink.path"])
def test_staging_and_a_delta_table_may_be_in_azure(field: str) -> None:
    found = place_of(FIELDS[field](AZURE))
    assert isinstance(found, RemotePath)
    assert str(found) == path_to_write(found) == AZURE


@pytest.mark.parametrize("field", [field for field in TABLES if field != "sink.path"])
def test_an_iceberg_table_is_not_in_azure(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: abfss:// is not supported here"):
        place_of(TABLES[field](AZURE))


def test_who_asks_azure_is_said_once() -> None:
    storage = {"account_key": "hunter2", "sas_token": "hunter2"}
    with pytest.raises(ConfigError, match="set only one of account_key") as told:
        place_of({**FIELDS["staging"](AZURE), "storage": storage})
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (AZURE, "region"),
        (AZURE, "path_style"),
        ("s3://bucket/x", "account_key"),
        ("s3://bucket/x", "hierarchical_namespace"),
        ("hdfs://name-node:9000/x", "sas_token"),
    ],
)
def test_what_azure_is_told_and_what_others_are_is_not_mixed(uri: str, said: str) -> None:
    known = {"path_style": False, "hierarchical_namespace": False}
    storage = {said: known.get(said, "hunter2")}
    with pytest.raises(ConfigError, match=f"does not use storage.{said}"):
        place_of({**FIELDS["staging"](uri), "storage": storage})


@pytest.mark.parametrize("said", ["endpoint", "region", "access_key_id", "path_style"])
def test_what_one_kind_of_store_is_told_another_does_not_know(said: str) -> None:
    known = {
        "endpoint": "http://127.0.0.1:1",
        "region": "eu-1",
        "access_key_id": "hunter2",
        "path_style": False,
    }
    storage = {said: known[said]}
    if said == "access_key_id":
        storage["secret_access_key"] = "hunter2"
    staging = FIELDS["staging"]("hdfs://name-node:9000/x")
    with pytest.raises(ConfigError, match=f"hdfs:// does not use .*storage.{said}") as told:
        place_of({**staging, "storage": storage})
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/x", "gs://bucket/x", "hdfs://name-node:9000/x", AZURE]
)
def test_a_place_goes_to_another_process_without_its_client(uri: str) -> None:
    found = Storage(request_timeout=9).place(uri)
    assert isinstance(found, RemotePath)
    assert found.bucket.store is found.bucket.store
    there: RemotePath = pickle.loads(pickle.dumps(found))
    assert there == found
    assert there.bucket.store is not found.bucket.store
