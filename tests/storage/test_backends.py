"""What is asked of a store, asked of each: what is put is whole, once, and found again.

What one of them has alone is in test_azure_store.py, test_google_store.py and test_hdfs_store.py,
but for the folders of HDFS, which come last.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eo_pipeline.errors import ConfigError
from eo_pipeline.storage.backend import StoreUnfitError, StoreUnreachableError
from eo_pipeline.storage.paths import (
    RemotePath,
    files_below,
    folders_in,
    names_in,
    probe,
    remove_empty_folders,
    remove_tree,
)
from tests.support.hdfs import HdfsFolder
from tests.support.proxy import Cut, Proxy
from tests.support.store_folder import StoreFolder, on_stores

#: A process that puts new files when it is told to, and says which were its own.
_RACER = """
import json, sys
from eo_pipeline.storage.config import Storage
folder = Storage.model_validate(json.loads(sys.argv[2])).place(sys.argv[1])
folder.exists()
print("ready", flush=True)
sys.stdin.readline()
for key in range(int(sys.argv[3])):
    try:
        (folder / f"k{key}").put_new(sys.argv[4].encode())
    except FileExistsError:
        continue
    print(key)
"""

on_each = on_stores("azure", "google", "hdfs", chaos=["bucket"])


@on_each
def test_of_several_processes_that_put_one_new_file_one_is_let_in(store: StoreFolder) -> None:
    keys = 30
    told = (store.uri, json.dumps(store.document()), str(keys))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, *told, f"racer {number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
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
        assert (store.place / f"k{key}").read_text() == f"racer {winner}"
    assert store.files() == {f"k{key}" for key in range(keys)}  # nothing aside is left


@on_each
def test_what_is_put_is_found_read_replaced_copied_and_removed(store: StoreFolder) -> None:
    folder = store.place / "a"
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
    (folder / "two").unlink()
    (folder / "two").unlink()
    assert names_in(folder) == ["b", "three"]
    with pytest.raises(FileNotFoundError):
        (folder / "two").read_bytes()
    RemotePath.remove_all([folder / "three", folder / "gone", folder / "two"])
    assert [place.name for place, _ in files_below(store.place)] == ["one"]
    assert store.files() == {"a/b/one"}
    remove_tree(folder)
    remove_tree(folder)
    assert store.files() == set()


@on_stores("azure", "hdfs", chaos=["bucket"])  # Google's emulator takes no parts
def test_a_file_of_several_parts_arrives_whole(store: StoreFolder, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB
    (tmp_path / "large").write_bytes(content)
    (store.place / "large").put_file(tmp_path / "large")
    (store.place / "large").copy_to(store.place / "copy")
    assert (store.place / "copy").read_bytes() == content


@on_each
def test_a_new_file_is_its_own_if_it_is_put_again_and_not_anothers(store: StoreFolder) -> None:
    mark = store.place / "mark"
    mark.put_new(b"mine")
    mark.put_new(b"mine")
    with pytest.raises(FileExistsError):
        mark.put_new(b"another's")
    assert mark.read_bytes() == b"mine"


@on_each
@pytest.mark.parametrize("cut", Cut)
def test_a_put_whose_answer_is_lost_is_made_once(store: StoreFolder, cut: Cut) -> None:
    with Proxy(*store.address) as proxy:
        there = store.behind(proxy.port, request_timeout=5).place
        proxy.cut_at(store.putting("/mark"), cut)
        (there / "mark").put_new(b"mine")
        assert proxy.is_through
        with pytest.raises(FileExistsError):
            (there / "mark").put_new(b"another's")
    assert store.files() == {"mark"}
    assert (store.place / "mark").read_bytes() == b"mine"


@on_each
def test_a_store_that_hangs_is_given_up(store: StoreFolder) -> None:
    with Proxy(*store.address) as proxy:
        place = store.behind(proxy.port, request_timeout=0.3).place / "nothing"
        assert (place.size(), place.exists()) == (None, False)
        proxy.stall()
        with pytest.raises(StoreUnreachableError, match=store.SILENT):
            place.size()
        proxy.stall(False)
        assert place.size() is None


@on_each
def test_a_store_that_replaces_what_is_there_is_found_out(
    store: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(store.place)
    assert store.files() == set()
    kind = type(store.place.bucket.store)
    monkeypatch.setattr(kind, "put_new", kind.put)
    with pytest.raises(StoreUnfitError, match="so that two runs could both be let in"):
        probe(store.place)
    assert store.files() == set()


@on_each
def test_without_the_package_it_is_named(
    store: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, store.MODULE, None)
    # a client that was made before is kept: so this is one that nobody asked for
    place = store.saying(request_timeout=7).place
    package = store.MODULE.partition(".")[0]
    with pytest.raises(
        ConfigError, match=rf"{package}.*pip install 'eo-pipeline\[{store.EXTRA}\]'"
    ):
        place.exists()


# HDFS alone


def test_no_folder_is_left_where_a_tree_was_removed_or_all_was_emptied(hdfs: HdfsFolder) -> None:
    full, emptied = hdfs.place / "full", hdfs.place / "emptied"
    for place in (full / "x" / "1", full / "2", emptied / "x" / "y" / "1", emptied / "2"):
        place.put(b"?")
    (emptied / "x" / "y" / "1").unlink()
    assert folders_in(emptied) == ["x"]  # real folders stay
    remove_empty_folders(emptied)
    assert names_in(emptied) == ["2"]
    remove_tree(full)
    remove_tree(full)
    assert folders_in(hdfs.place) == ["emptied"]
    assert [place.name for place, _ in files_below(hdfs.place)] == ["2"]
