"""What a real HDFS has alone: data nodes that may die. The rest is in test_stores.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eo_pipeline.storage.backend import StoreUnreachableError
from eo_pipeline.storage.hdfs import Hdfs
from tests.support.hdfs import DataNodes
from tests.support.proxy import Proxy

#: A process that puts a file, or gives up.
_PUTTING = """
import sys
from contextlib import suppress
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.backend import StoreUnreachableError
with suppress(StoreUnreachableError):
    (Storage(request_timeout=1).place(sys.argv[1]) / "file").put_new(b"content")
print("over", flush=True)
"""


def test_files_are_put_and_read_while_a_data_node_is_dead_and_nobody_noticed(
    data_nodes: DataNodes,
) -> None:
    """The name node still sends clients to it, for each file on two nodes of two."""
    # hdfs-native may wait for the dead one until it is given up, 30 s by default
    folder = data_nodes.folder.saying(request_timeout=8).place
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
    hasty = Hdfs(f"hdfs://{data_nodes.name_node.authority}", timeout_s=5, retry_s=0.1)
    with pytest.raises(StoreUnreachableError, match="no data node that has it answers"):
        hasty.get(f"{folder.key}/before")


def test_a_process_ends_though_nobody_answers_any_more(data_nodes: DataNodes) -> None:
    """Found before: Python closed the file that was given up, at the latest when the process ended,
    and waited for a name node that hung for as long as it did.
    """
    for each in data_nodes.nodes:
        each.kill()
    with Proxy(*data_nodes.folder.address) as proxy:
        proxy.stall_at(b"delete")
        putting = [sys.executable, "-c", _PUTTING, data_nodes.folder.behind(proxy.port).uri]
        root = Path(__file__).parents[2]
        told = subprocess.run(putting, capture_output=True, text=True, timeout=60, cwd=root)
        assert proxy.is_through
    assert told.stdout == "over\n", told.stderr
