"""What is asked of a store, asked of Google's as far as an emulator is it: what is put is whole,
once, and found again.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import ConfigError
from eo_pipeline.places import (
    files_below,
    folders_in,
    names_in,
    probe,
    remove_empty_folders,
    remove_tree,
)
from eo_pipeline.storage import Storage
from eo_pipeline.stores.base import StoreUnfitError, StoreUnreachableError
from eo_pipeline.stores.google import GoogleStore
from tests.google import GoogleBucket, service_account
from tests.google_gateway import HOST
from tests.proxy import Cut, Proxy
from tests.sinks.delta.delta_world import rows_of

#: A process that puts new files when it is told to, and says which were its own.
_RACER = """
import sys
from eo_pipeline.storage import Storage
folder = Storage(endpoint=sys.argv[4]).place(sys.argv[1])
folder.exists()
print("ready", flush=True)
sys.stdin.readline()
for key in range(int(sys.argv[2])):
    try:
        (folder / f"k{key}").put_new(sys.argv[3].encode())
    except FileExistsError:
        continue
    print(key)
"""


def mark(google: GoogleBucket, name: str) -> None:
    """What Spark's way there makes of a folder."""
    place = google.place / name
    path = f"/upload/storage/v1/b/{place.bucket.name}/o?uploadType=media&name={place.key}/"
    asked = urllib.request.Request(google.gateway.endpoint + path, data=b"", method="POST")
    urllib.request.urlopen(asked, timeout=60).close()


def test_of_several_processes_that_put_one_new_file_one_is_let_in(google: GoogleBucket) -> None:
    keys = 30
    racers = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", _RACER, google.uri, str(keys)),
                *(f"racer {number}", google.gateway.endpoint),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(len(racers)) as pool:
        said = [*pool.map(lambda racer: racer.communicate("\n", timeout=120)[0], racers)]
    won = {int(key): number for number, lines in enumerate(said) for key in lines.split()}
    assert Counter(int(key) for lines in said for key in lines.split()) == Counter(range(keys))
    for key, winner in won.items():
        assert (google.place / f"k{key}").read_text() == f"racer {winner}"
    assert google.files() == {f"k{key}" for key in range(keys)}


def test_what_is_put_is_found_read_replaced_and_removed(google: GoogleBucket) -> None:
    folder = google.place / "a"
    assert (names_in(folder), folder.exists(), folder.size()) == ([], False, None)
    (folder / "b" / "one").put(b"123")
    (folder / "two").put(b"")
    assert (names_in(folder), folders_in(folder)) == (["b", "two"], ["b"])
    found = [(place.relative_to(folder), size) for place, size in folder.below()]
    assert found == [("b/one", 3), ("two", 0)]
    assert (folder / "two").read_bytes() == b""
    (folder / "b" / "one").put(b"other")
    assert (folder / "b" / "one").read_bytes() == b"other"
    with (folder / "b" / "one").open() as part:
        part.seek(2)
        assert part.read(2) == b"he"
    before = (folder / "two").identity()
    (folder / "two").put(b"!")
    assert (folder / "two").identity() != before
    (folder / "two").copy_to(folder / "three")
    assert (folder / "three").read_bytes() == b"!"
    BucketPath.remove_all([folder / "three", folder / "gone", folder / "two"])
    assert google.files() == {"a/b/one"}
    remove_tree(folder)
    remove_tree(folder)
    assert google.files() == set()


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


@pytest.mark.parametrize("cut", Cut)
def test_a_file_whose_answer_is_lost_is_made_once(google: GoogleBucket, cut: Cut) -> None:
    with Proxy(HOST, google.gateway.port) as proxy:
        there = Storage(endpoint=f"http://{HOST}:{proxy.port}", request_timeout=5).place(google.uri)
        assert isinstance(there, BucketPath)
        proxy.cut_at(b"PUT ", cut)
        (there / "mark").put_new(b"mine")
        assert proxy.is_through
        with pytest.raises(FileExistsError):
            (there / "mark").put_new(b"another's")
    assert google.files() == {"mark"}
    assert (google.place / "mark").read_bytes() == b"mine"


def test_a_file_whose_removal_is_not_heard_of_is_gone(google: GoogleBucket) -> None:
    with Proxy(HOST, google.gateway.port) as proxy:
        there = Storage(endpoint=f"http://{HOST}:{proxy.port}", request_timeout=5).place(google.uri)
        assert isinstance(there, BucketPath)
        for name in ("one", "two", "three"):
            (there / name).put(b"?")
        proxy.cut_at(b"DELETE ", Cut.BEFORE_THE_REPLY)
        there.remove_tree()
        assert proxy.is_through
    assert google.files() == set()


def test_a_store_that_hangs_is_given_up(google: GoogleBucket) -> None:
    with Proxy(HOST, google.gateway.port) as proxy:
        there = Storage(endpoint=f"http://{HOST}:{proxy.port}", request_timeout=0.3)
        place = there.place(google.uri)
        assert isinstance(place, BucketPath)
        assert not place.exists()
        proxy.stall()
        with pytest.raises(StoreUnreachableError):
            place.exists()


def test_a_store_that_replaces_what_is_there_is_found_out(
    google: GoogleBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(google.place)
    assert google.files() == set()
    monkeypatch.setattr(GoogleStore, "put_new", GoogleStore.put)
    with pytest.raises(StoreUnfitError, match="so that two runs could both be let in"):
        probe(google.place)
    assert google.files() == set()


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    place = Storage(request_timeout=7).place("gs://bucket/x")
    assert isinstance(place, BucketPath)
    with pytest.raises(ConfigError, match=r"obstore.*pip install 'eo-pipeline\[gcs\]'"):
        place.exists()


def test_a_service_account_signs_what_is_asked(google: GoogleBucket) -> None:
    account = service_account(google.gateway)
    storage = google.document(service_account=json.dumps(account))
    there = Storage.model_validate(storage).place(google.uri)
    assert isinstance(there, BucketPath)
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
    assert isinstance(place, BucketPath)
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
        assert isinstance(place, BucketPath)
        assert place.bucket.hadoop["fs.gs.auth.service.account.email"] == "a@b"
        assert "hunter2" not in repr(place)
