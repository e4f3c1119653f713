"""What is asked of a store, asked of Azure's Blob endpoint as Azurite keeps it: what is put is
whole, once, and found again; and what Spark marks as a folder is none to us.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest

from eo_pipeline.bucket import BucketPath
from eo_pipeline.errors import ConfigError
from eo_pipeline.places import (
    files_below,
    folders_in,
    names_in,
    probe,
    relative_name,
    remove_empty_folders,
    remove_tree,
)
from eo_pipeline.storage import Storage
from eo_pipeline.stores.azure import AzureBlobs
from eo_pipeline.stores.base import StoreUnfitError, StoreUnreachableError
from tests.azure import AzureFolder
from tests.proxy import Cut, Proxy

#: A process that puts new files when it is told to, and says which were its own.
_RACER = """
import json, sys
from eo_pipeline.storage import Storage
folder = Storage.model_validate(json.loads(sys.argv[4])).place(sys.argv[1])
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


def behind(proxy: Proxy, azure: AzureFolder, **more: Any) -> BucketPath:
    """The place, by way of ``proxy``."""
    there = {"endpoint": f"http://127.0.0.1:{proxy.port}", **more}
    found = Storage.model_validate(azure.document(**there)).place(azure.uri)
    assert isinstance(found, BucketPath)
    return found


def mark(azure: AzureFolder, *folders: str) -> None:
    """Make folders as Spark's file system makes them."""
    store = azure.place.bucket.store
    assert isinstance(store, AzureBlobs)
    for name in folders:
        key = f"{azure.place.key}/{name}"
        obstore.put(store.client, key, b"", attributes={"hdi_isfolder": "true"})


def test_of_several_processes_that_put_one_new_file_one_is_let_in(azure: AzureFolder) -> None:
    keys = 30
    racers = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", _RACER, azure.uri, str(keys), f"racer {number}"),
                json.dumps(azure.document()),
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
        assert (azure.place / f"k{key}").read_text() == f"racer {winner}"
    assert azure.files() == {f"k{key}" for key in range(keys)}


def test_what_is_put_is_found_read_replaced_and_removed(azure: AzureFolder) -> None:
    folder = azure.place / "a"
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
    (folder / "two").unlink()
    (folder / "two").unlink()
    assert names_in(folder) == ["b"]
    with pytest.raises(FileNotFoundError):
        (folder / "two").read_bytes()


def test_of_many_that_are_removed_one_that_is_gone_already_keeps_none(azure: AzureFolder) -> None:
    places = [azure.place / f"{number:03}" for number in range(300)]  # more than a batch has
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(lambda place: place.put(b"?"), places)]
    places[0].unlink()
    places[280].unlink()
    BucketPath.remove_all(places)
    assert azure.files() == set()


def test_a_file_of_several_parts_arrives_whole(azure: AzureFolder, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB
    (tmp_path / "large").write_bytes(content)
    (azure.place / "large").put_file(tmp_path / "large")
    (azure.place / "large").copy_to(azure.place / "copy")
    assert (azure.place / "copy").read_bytes() == content


def test_a_new_file_is_its_own_if_it_is_put_again_and_not_anothers(azure: AzureFolder) -> None:
    place = azure.place / "mark"
    place.put_new(b"mine")
    place.put_new(b"mine")
    with pytest.raises(FileExistsError):
        place.put_new(b"another's")
    assert place.read_bytes() == b"mine"


def test_what_stands_for_a_folder_is_no_file(azure: AzureFolder) -> None:
    """Scenario: folders with files, and one without, as Spark marks them; and an empty file.
    Outcome: all that is asked of the place answers as if there were no marks.
    """
    mark(azure, "full", "full/inside", "hollow")
    (azure.place / "full" / "inside" / "1").put(b"?")
    (azure.place / "full" / "empty").put(b"")
    assert (azure.place / "full").size() is None
    assert not (azure.place / "hollow").is_file()
    assert (azure.place / "full" / "empty").is_file()
    assert (names_in(azure.place), folders_in(azure.place)) == (["full"], ["full"])
    assert names_in(azure.place / "full") == ["empty", "inside"]
    found = [relative_name(place, azure.place) for place, _ in files_below(azure.place)]
    assert found == ["full/empty", "full/inside/1"]


def test_no_folder_is_left_where_a_tree_was_removed_or_all_was_emptied(azure: AzureFolder) -> None:
    mark(azure, "full", "full/x", "emptied", "emptied/x", "emptied/x/y")
    full, emptied = azure.place / "full", azure.place / "emptied"
    for place in (full / "x" / "1", full / "2", emptied / "x" / "y" / "1", emptied / "2"):
        place.put(b"?")
    (emptied / "x" / "y" / "1").unlink()
    remove_empty_folders(emptied)
    remove_tree(full)
    remove_tree(full)
    store = azure.place.bucket.store
    assert isinstance(store, AzureBlobs)
    left = [each["path"] for batch in obstore.list(store.client, azure.place.key) for each in batch]
    assert left == [f"{azure.place.key}/emptied", f"{azure.place.key}/emptied/2"]


@pytest.mark.parametrize("cut", Cut)
def test_a_put_whose_answer_is_lost_is_made_once(azure: AzureFolder, cut: Cut) -> None:
    with Proxy(azure.server.host, azure.server.port) as proxy:
        there = behind(proxy, azure)
        proxy.cut_at(b"if-none-match: *", cut)
        (there / "mark").put_new(b"mine")
        assert proxy.is_through
        with pytest.raises(FileExistsError):
            (there / "mark").put_new(b"another's")
    assert azure.files() == {"mark"}
    assert (azure.place / "mark").read_bytes() == b"mine"


def test_a_store_that_hangs_is_given_up(azure: AzureFolder) -> None:
    with Proxy(azure.server.host, azure.server.port) as proxy:
        place = behind(proxy, azure, request_timeout=0.5) / "nothing"
        assert place.size() is None
        proxy.stall()
        with pytest.raises(StoreUnreachableError):
            place.size()
        proxy.stall(False)
        assert place.size() is None


def test_a_store_that_replaces_what_is_there_is_found_out(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(azure.place)
    assert azure.files() == set()
    monkeypatch.setattr(AzureBlobs, "put_new", AzureBlobs.put)
    with pytest.raises(StoreUnfitError, match="so that two runs could both be let in"):
        probe(azure.place)
    assert azure.files() == set()


def test_who_has_the_wrong_key_is_told_so_and_not_shown_it(azure: AzureFolder) -> None:
    wrong = "d3Jvbmc="
    storage = Storage.model_validate(azure.document(account_key=wrong))
    with pytest.raises(PermissionError) as told:
        probe(storage.place(azure.uri))
    assert wrong not in f"{told.value} {storage!r} {storage.place(azure.uri)!r}"


@pytest.mark.parametrize("mark", ["", "?"])
def test_a_token_lets_in_as_a_key_does_and_no_further(azure: AzureFolder, mark: str) -> None:
    def by(permissions: str) -> BucketPath:
        token = mark + azure.server.sas_token(azure.container, permissions)
        said = azure.document(account_key=None, sas_token=token)
        found = Storage.model_validate(said).place(azure.uri)
        assert isinstance(found, BucketPath)
        return found

    probe(by("racwdl"))
    (azure.place / "there").put(b"?")
    assert (by("rl") / "there").read_bytes() == b"?"
    with pytest.raises(PermissionError):
        (by("rl") / "new").put_new(b"?")


def test_the_environment_lets_in_and_a_field_says_otherwise(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"account_key": None}
    monkeypatch.setenv("AZURE_STORAGE_KEY", azure.server.key)
    probe(Storage.model_validate(azure.document(**said)).place(azure.uri))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "another")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(PermissionError):  # obstore looks for itself
        probe(Storage.model_validate(azure.document(**said)).place(azure.uri))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", azure.server.ACCOUNT)
    probe(azure.place)
    said = {"account_key": None, "sas_token": azure.server.sas_token(azure.container)}
    probe(Storage.model_validate(azure.document(**said)).place(azure.uri))


def test_without_the_package_it_is_named(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    place = Storage.model_validate(azure.document(request_timeout=7)).place(azure.uri)
    assert isinstance(place, BucketPath)
    with pytest.raises(ConfigError, match=r"obstore.*pip install 'eo-pipeline\[azure\]'"):
        place.exists()


def test_what_spark_is_told_has_secrets_under_names_that_spark_hides() -> None:
    secrets = {"account_key": "hunter2", "sas_token": "sig=hunter2"}
    for part, secret in secrets.items():
        place = Storage.model_validate({part: secret}).place(
            "abfss://lake@a00.dfs.core.windows.net/x"
        )
        assert isinstance(place, BucketPath)
        named = [name for name, value in place.bucket.hadoop.items() if secret in value]
        assert len(named) == 1
        # Spark's own rule, spark.redaction.regex
        assert re.search(r"(?i)secret|password|token|access[.]?key", named[0])
