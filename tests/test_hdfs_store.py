"""What is asked of a store, asked of a real HDFS: what is put is whole, once, and found again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
from eo_pipeline.stores.hdfs import Hdfs
from tests.hdfs import DataNodes, HdfsFolder
from tests.proxy import Cut, Proxy

#: A process that puts new files when it is told to, and says which were its own.
_RACER = """
import sys
from eo_pipeline.storage import Storage
folder = Storage().place(sys.argv[1])
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

#: A process that puts a file, or gives up.
_PUTTING = """
import sys
from contextlib import suppress
from eo_pipeline.storage import Storage
from eo_pipeline.stores.base import StoreUnreachableError
with suppress(StoreUnreachableError):
    (Storage(request_timeout=1).place(sys.argv[1]) / "file").put_new(b"content")
print("over", flush=True)
"""


def test_of_several_processes_that_put_one_new_file_one_is_let_in(hdfs: HdfsFolder) -> None:
    keys = 30
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, hdfs.uri, str(keys), f"racer {number}"],
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
        assert (hdfs.place / f"k{key}").read_text() == f"racer {winner}"
    assert hdfs.files() == {f"k{key}" for key in range(keys)}  # nothing aside is left


def test_what_is_put_is_found_read_replaced_and_removed(hdfs: HdfsFolder) -> None:
    folder = hdfs.place / "a"
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


def test_a_file_of_several_parts_arrives_whole(hdfs: HdfsFolder, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB
    (tmp_path / "large").write_bytes(content)
    (hdfs.place / "large").put_file(tmp_path / "large")
    (hdfs.place / "large").copy_to(hdfs.place / "copy")
    assert (hdfs.place / "copy").read_bytes() == content


def test_a_new_file_is_its_own_if_it_is_put_again_and_not_anothers(hdfs: HdfsFolder) -> None:
    mark = hdfs.place / "mark"
    mark.put_new(b"mine")
    mark.put_new(b"mine")
    with pytest.raises(FileExistsError):
        mark.put_new(b"another's")
    assert mark.read_bytes() == b"mine"


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


@pytest.mark.parametrize("cut", Cut)
def test_a_put_whose_answer_is_lost_is_made_once(hdfs: HdfsFolder, cut: Cut) -> None:
    with Proxy(hdfs.server.host, hdfs.server.port) as proxy:
        there = Storage(request_timeout=5).place(
            hdfs.uri.replace(f":{hdfs.server.port}", f":{proxy.port}")
        )
        assert isinstance(there, BucketPath)
        proxy.cut_at(b"rename2", cut)
        (there / "mark").put_new(b"mine")
        assert proxy.is_through
        with pytest.raises(FileExistsError):
            (there / "mark").put_new(b"another's")
    assert hdfs.files() == {"mark"}
    assert (hdfs.place / "mark").read_bytes() == b"mine"


def test_files_are_put_and_read_while_a_data_node_is_dead_and_nobody_noticed(
    data_nodes: DataNodes,
) -> None:
    """The name node still sends clients to it, for each file on two nodes of two."""
    folder = data_nodes.folder.place
    (folder / "before").put(b"on both")
    dead = data_nodes.nodes[0]
    dead.kill()
    for number in range(6):
        (folder / f"k{number}").put_new(b"%d" % number)
    assert dead.address in (data_nodes.name_node.data_nodes() or ()), "nobody noticed"
    assert (folder / "before").read_bytes() == b"on both"
    assert [(folder / f"k{n}").read_bytes() for n in range(6)] == [b"%d" % n for n in range(6)]
    assert data_nodes.folder.files() == {"before", *(f"k{number}" for number in range(6))}
    there = data_nodes.name_node.client().list_status(f"/{folder.key}")
    assert {each.replication for each in there} == {2}, "HDFS makes the other copy"
    data_nodes.nodes[1].kill()
    hasty = Hdfs(f"hdfs://{data_nodes.name_node.authority}", waits=5, gives_up=0.1)
    with pytest.raises(StoreUnreachableError, match="no data node that has it answers"):
        hasty.get(f"{folder.key}/before")


def test_a_name_node_that_hangs_is_given_up(hdfs: HdfsFolder) -> None:
    with Proxy(hdfs.server.host, hdfs.server.port) as proxy:
        store = Hdfs(f"hdfs://127.0.0.1:{proxy.port}", waits=0.5, gives_up=1.5)
        assert store.head("nothing") is None
        proxy.stall()
        with pytest.raises(StoreUnreachableError, match=r"no answer within 0\.5 s"):
            store.head("nothing")
        proxy.stall(False)
        assert store.head("nothing") is None


def test_a_process_ends_though_nobody_answers_any_more(data_nodes: DataNodes) -> None:
    """Found before: Python closed the file that was given up, at the latest when the process ended,
    and waited for a name node that hung for as long as it did.
    """
    for each in data_nodes.nodes:
        each.kill()
    with Proxy(data_nodes.name_node.host, data_nodes.name_node.port) as proxy:
        proxy.stall_at(b"delete")
        uri = data_nodes.folder.uri.replace(f":{data_nodes.name_node.port}", f":{proxy.port}")
        putting = [sys.executable, "-c", _PUTTING, uri]
        root = Path(__file__).parents[1]
        told = subprocess.run(putting, capture_output=True, text=True, timeout=60, cwd=root)
        assert proxy.is_through
    assert told.stdout == "over\n", told.stderr


def test_a_store_that_replaces_what_is_there_is_found_out(
    hdfs: HdfsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(hdfs.place)
    assert hdfs.files() == set()
    monkeypatch.setattr(Hdfs, "put_new", Hdfs.put)
    with pytest.raises(StoreUnfitError, match="so that two runs could both be let in"):
        probe(hdfs.place)
    assert hdfs.files() == set()


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    place = Storage(request_timeout=7).place("hdfs://127.0.0.1:1/x")
    assert isinstance(place, BucketPath)
    with pytest.raises(ConfigError, match=r"hdfs_native.*pip install 'eo-pipeline\[hdfs\]'"):
        place.exists()
