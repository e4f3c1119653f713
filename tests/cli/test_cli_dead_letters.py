"""``eo dead-letters``: looked at, read again after the mend."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell, eo
from tests.operations.test_dead_letters import IN_THE_TABLE, MENDED, STRICT, half_read

__all__ = ["eo", "half_read"]


@pytest.mark.core
def test_they_are_listed_shown_and_redriven(eo: Shell, half_read: object) -> None:
    source = eo.bench.config["source"]
    eo.document(source={**source, **STRICT["source"]})

    listed = eo("dead-letters", "list")
    assert listed.code == 0, listed.err
    head, *lines = [line.split() for line in listed.out.splitlines() if line]
    assert head[0] == "version"
    # by checkpoint, then by reason, the most frequent first
    assert [line[:2] for line in lines] == [["1", "5"], ["3", "3"], ["7", "it"], ["1", "the"]]
    assert "it has fields that the schema does not name: more" in listed.out

    [record] = eo("dead-letters", "show", "3", "--json", "-n", "1").json()["dead_letters"]
    assert record["checkpoint"] == 3
    assert "no JSON" in eo("dead-letters", "show").out
    without = eo("dead-letters", "show", "2").out
    assert "version 2 has no dead letters; the newest versions that have: 1, 3" in without
    unknown = eo("dead-letters", "show", "99")
    assert unknown.code != 0
    assert "there is no version 99; the newest is 3" in unknown.err

    dry = eo("dead-letters", "redrive", "--dry-run")
    assert dry.code == 0, dry.err
    assert eo.bench.table.query(IN_THE_TABLE) == [(8,)]
    assert eo("dead-letters", "redrive").code == 2  # nobody can be asked

    eo.document(source={**source, **MENDED["source"]})
    done = eo("dead-letters", "redrive", "--yes", "--reason", "fields may come")
    assert done.code == 0, done.err
    assert "8 dead letters read again: 1 still invalid" in done.out
    eo.bench.table.assert_holds_once(eo.bench.topic.written)
    again = eo("dead-letters", "list", "--json").json()
    assert again["checkpoints"] == [
        {"version": 3, "written_by": 5, "dead_letters": 1, "records": 23}
    ]
    assert list(again["reasons"].values()) == [1]
