"""What Google's storage has alone, as far as an emulator is it: marks of folders, and the key of a
service account. What every store does is in test_stores.py.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from pathlib import Path

import pytest
from deltalake import DeltaTable

from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import RemotePath, files_below, remove_empty_folders, remove_tree
from tests.sinks.delta.delta_world import rows_of
from tests.support.google import GoogleBucket, service_account
from tests.support.proxy import Cut, Proxy


def mark(google: GoogleBucket, name: str) -> None:
    """What Spark's way there makes of a folder."""
    place = google.place / name
    path = f"/upload/storage/v1/b/{place.bucket.name}/o?uploadType=media&name={place.key}/"
    asked = urllib.request.Request(google.gateway.endpoint + path, data=b"", method="POST")
    urllib.request.urlopen(asked, timeout=60).close()


def test_the_marks_of_folders_are_no_files_and_go_with_what_is_in_them(
    google: GoogleBucket,
) -> None:
    """A Spark that was killed leaves such: objects whose names end with a slash."""
    for name in ("v=1-x/rows", "v=1-x/rows/_temporary/0", "empty/inside"):
        mark(google, name)
    (google.place / "v=1-x" / "rows" / "part").put(b"1")
    assert [place.name for place, _ in files_below(google.place)] == ["part"]
    assert not (google.place / "empty").exists()
    assert (google.place / "v=1-x").exists()
    remove_empty_folders(google.place)
    assert google.files() == {"v=1-x/rows/", "v=1-x/rows/part"}
    remove_tree(google.place / "v=1-x")
    assert google.files() == set()


def test_a_file_whose_removal_is_not_heard_of_is_gone(google: GoogleBucket) -> None:
    with Proxy(*google.address) as proxy:
        there = google.behind(proxy.port, request_timeout=5).place
        for name in ("one", "two", "three"):
            (there / name).put(b"?")
        proxy.cut_at(b"DELETE ", Cut.BEFORE_THE_REPLY)
        there.remove_tree()
        assert proxy.is_through
    assert google.files() == set()


def test_a_service_account_signs_what_is_asked(google: GoogleBucket) -> None:
    account = service_account(google.gateway)
    there = google.saying(service_account=json.dumps(account)).place
    google.gateway.presented()
    (there / "mark").put_new(b"mine")
    DeltaTable.create(f"{there}/t", rows_of(1).schema, storage_options=dict(there.bucket.delta))
    presented = {who.removeprefix("Bearer ") for who in google.gateway.presented()}
    assert presented
    for token in presented:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        assert said["iss"] == account["client_email"]


def test_what_spark_is_told_has_the_key_under_a_name_that_spark_hides(google: GoogleBucket) -> None:
    account = service_account(google.gateway)
    place = Storage.model_validate({"service_account": json.dumps(account)}).place("gs://abc/x")
    assert isinstance(place, RemotePath)
    named = [(n, v) for n, v in place.bucket.hadoop.items() if account["private_key"] in v]
    assert len(named) == 1
    # Spark's own rule, spark.redaction.regex
    assert re.search(r"(?i)secret|password|token|access[.]?key", named[0][0])


@pytest.mark.parametrize(
    "said", ["hunter2", '{"private_key": "hunter2"}', '"hunter2"', "/nowhere/hunter2.json"]
)
def test_what_is_no_key_of_a_service_account_is_refused_and_not_shown(said: str) -> None:
    storage = Storage.model_validate({"service_account": said})
    with pytest.raises(ValueError, match=r"storage\.service_account is n") as told:
        storage.place("gs://bucket/x")
    assert "hunter2" not in str(told.value)


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    key = {"client_email": "a@b", "private_key_id": "1", "private_key": "hunter2"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    for said in (json.dumps(key), str(tmp_path / "key.json")):
        place = Storage.model_validate({"service_account": said}).place("gs://bucket/x")
        assert isinstance(place, RemotePath)
        assert place.bucket.hadoop["fs.gs.auth.service.account.email"] == "a@b"
        assert "hunter2" not in repr(place)
