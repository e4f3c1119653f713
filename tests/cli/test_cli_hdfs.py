"""`eo doctor` where rows wait in HDFS: what a person reads of one that is there, or away, or lets
nobody of that name write.
"""

from __future__ import annotations

import time

import pytest

from tests.cli.shell import Shell, eo
from tests.support.chaos import rest_is_chaos
from tests.support.hdfs import HdfsFolder
from tests.support.proxy import Proxy

__all__ = ["eo"]


def test_the_doctor_tries_what_is_there_and_leaves_no_file(eo: Shell, hdfs: HdfsFolder) -> None:
    eo.document(staging=hdfs.uri)
    found = eo("doctor")
    assert found.code == 0, found.out
    assert "fail" not in found.out
    assert f"{hdfs.uri}: create-if-absent works, new files are listed at once" in found.out
    assert "the server has spark-sql-kafka-0-10_2.13, hadoop-client" in found.out
    assert hdfs.files() == set()
    eo.bench.topic.write(5)
    assert eo("run").code == 0


@pytest.mark.parametrize(
    "hangs", rest_is_chaos([False, True], but=[False]), ids=["nobody listens", "it hangs"]
)
def test_a_name_node_that_is_away_is_named_soon_and_the_next_checks_are_made(
    eo: Shell, hdfs: HdfsFolder, hangs: bool
) -> None:
    """Found before: a traceback after three minutes, whatever ``--timeout`` said."""
    with Proxy(*hdfs.address) as proxy:
        proxy.stall() if hangs else proxy.refuse()
        there = hdfs.behind(proxy.port).uri
        eo.document(staging=there)
        began = time.monotonic()
        ill = eo("doctor", "--timeout", "2", "--json")
        took = time.monotonic() - began
    assert ill.code == 3
    checks = {check["name"]: check for check in ill.json()["pipelines"]["events"]}
    assert checks["staging"]["state"] == "fail"
    assert f"{there}/events" in checks["staging"]["said"]
    assert "cannot be reached" in checks["staging"]["said"]
    assert checks["staging"]["remedy"] == "Start the store, or correct `staging`."
    assert {checks[name]["state"] for name in ("broker", "topic", "sink", "ledger")} == {"ok"}
    assert took < 60


def test_a_folder_that_may_not_be_written_is_told_with_who_asks(
    eo: Shell, hdfs: HdfsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/{hdfs.place.key}"
    hdfs.server.client().mkdirs(path, 0o555, True)
    hdfs.server.client().set_owner(path, "somebody", "else")
    eo.document(staging=hdfs.uri)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    ill = eo.process("doctor")  # whoever asks is read once in a process
    assert ill.code == 3
    assert f"fail     staging        the staging folder {hdfs.uri}/events cannot be used" in ill.out
    assert f'Permission denied: user=stranger, access=WRITE, inode="{path}"' in ill.out
    assert "ok       sink" in ill.out
