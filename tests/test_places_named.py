"""What a document calls a folder or a place in a bucket: one rule, whichever field says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.places import Place

SOURCE = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "value_schema": "id BIGINT"}
DATABASE = {"type": "postgres", "dsn": "postgresql://u@127.0.0.1:1/x", "table": "t"}


def _iceberg(**more: Any) -> dict[str, Any]:
    return {"sink": {"type": "iceberg", "table": "a.b", **more}}


def _catalog(warehouse: str) -> dict[str, Any]:
    properties = {"type": "sql", "uri": "sqlite:////c.db", "warehouse": warehouse}
    return _iceberg(catalog={"name": "c", "properties": properties})


#: Fields that take both.
FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "staging": lambda place: {"sink": DATABASE, "staging": place},
    "sink.path": lambda place: {"sink": {"type": "delta", "path": place}},
    "sink.location": lambda place: _iceberg(location=place),
    "catalog.properties.warehouse": _catalog,
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
        ("abfss://c@account.dfs.core.windows.net/x", "abfss:// is not supported: a folder or s3:"),
        ("wasbs://c@account.blob.core.windows.net/x", "wasbs:// is not supported"),
        ("gs://bucket/x", "gs:// is not supported"),
        ("hdfs://name-node:9000/x", "hdfs:// is not supported"),
        # Hadoop's way to write it; a folder named hdfs: is what it is not
        ("hdfs:/x/y", r"hdfs:// is not supported.*if a folder is meant, write \./hdfs:/x/y"),
        ("gs:/bucket/x", "gs:// is not supported"),
        ("s3a://bucket/x", "write s3://bucket/path"),
        ("s3:/bucket/x", "names no bucket"),
        ("s3://bucket", "a place in a bucket has a name"),
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
    assert isinstance(found, BucketPath)
    assert str(found) in ("s3://bucket/x", "s3://bucket/x/a/b")
