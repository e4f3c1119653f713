"""Redis: what is written, what is refused before anything is, and what a failure leaves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.crc import key_slot

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.redis import EmbeddedRedis
from eo_pipeline.errors import (
    ConfigError,
    FencedError,
    RefusedError,
    SchemaChangeError,
)
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.redis.keys import KeyTemplate
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, dead_letters
from tests.sinks.redis.redis_world import (
    client_of,
    command,
    ids,
    observer,
    publish,
    rows,
    rows_in,
    sink,
    sink_at,
    started,
)
from tests.support.servers import wait_until

__all__ = ["observer", "sink"]


class TestWhatIsWritten:
    def test_every_key_is_in_one_slot_of_a_cluster(
        self, sink: RedisSink, observer: redis.Redis
    ) -> None:
        letters = dead_letters(1, [b"{"])
        batch = rows(id=["a", "{b}", "}c{"], n=[1, 2, 3])
        publish(sink, StagedOutput(batch.rows, letters))
        keys: Any = observer.keys()
        assert len(keys) == 6
        assert all(key.startswith(b"{p}:") for key in keys)
        assert len({key_slot(key) for key in keys}) == 1

    def test_a_hash_holds_text_and_no_field_for_a_null(
        self, sink: RedisSink, observer: redis.Redis
    ) -> None:
        publish(sink, rows(id=[7], name=["naïve"], tail=pa.array([None], pa.string())))
        found: Any = observer.hgetall("{p}:rows:7")
        assert found == {b"id": b"7", b"name": "naïve".encode()}

    def test_json_holds_one_object(self, redis_url: str) -> None:
        sink = sink_at(redis_url, **{"as": "json", "key": "row-{id}"})
        publish(sink, rows(id=[7], name=["naïve"], raw=[b"\xff"], tail=pa.array([None], "string")))
        with client_of(sink) as client:
            found: Any = client.get("{p}:rows:row-7")
        assert found.decode() == '{"id":7,"name":"naïve","raw":"/w==","tail":null}'

    def test_a_row_lives_as_long_as_it_is_told_from_its_last_writing(
        self, redis_url: str, observer: redis.Redis
    ) -> None:
        sink = sink_at(redis_url, ttl=0.2)
        publish(sink, rows(id=[1]))
        wait_until(lambda: ids(sink) == [])
        with sink.open("p") as session:
            head = session.head()
        assert head is not None
        assert head.version == 1
        assert observer.ttl("{p}:eo_ledger") == -1

    def test_a_row_with_very_many_columns_is_written(self, sink: RedisSink) -> None:
        publish(sink, rows(id=[1], **{f"c{n}": [n] for n in range(9000)}))
        assert rows_in(sink, "p")[0]["c8999"] == 8999

    def test_a_dead_letter_keeps_its_bytes(self, sink: RedisSink, observer: redis.Redis) -> None:
        publish(sink, StagedOutput(rows(id=[1]).rows, dead_letters(1, [b"\xff{"])))
        entries: Any = observer.xrange("{p}:eo_dead_letters")
        assert entries[0][1][b"value"] == b"\xff{"
        assert entries[0][1][b"headers"] == b'[{"key":"carrier","value":"AFVB"}]'

    def test_a_long_history_comes_in_pages(self, sink: RedisSink) -> None:
        with sink.open("p") as session:
            head = started(session)
            while head.version < 1003:
                head = child_of(head)
                session.publish(head, StagedOutput())
            assert [e.version for e in session.history()] == list(range(1004))
            assert [e.version for e in session.history(since=1002)] == [1002, 1003]


class TestKeys:
    @pytest.mark.parametrize(
        ("one", "other"),
        [(("a:b", "c"), ("a", "b:c")), (("a%3A", "b"), ("a:", "b")), (("", ":"), (":", ""))],
    )
    def test_different_rows_never_meet_in_one_key(
        self, one: tuple[str, str], other: tuple[str, str]
    ) -> None:
        template = KeyTemplate.of_columns(["x", "y"])
        keys = {template.render([part.encode() for part in pair]) for pair in (one, other)}
        assert len(keys) == 2

    def test_ordinary_values_stand_as_they_are(self) -> None:
        template = KeyTemplate.parse("flight:{carrier}:{number}@{day}!")
        assert template.render([b"UA", b"12-3", b"2013"]) == b"flight:UA:12-3@2013!"
        assert str(template) == "flight:{carrier}:{number}@{day}!"

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ("id", "in braces"),
            ((), "in braces"),
            ("{a}{b}", "mark between"),
            ("{a}2{b}", "mark between"),
            ("{a}%{b}", "'%' cannot"),
            ("{a}:{a}", "named twice"),
            ("{a}:{", "brace"),
        ],
    )
    def test_a_template_that_cannot_tell_rows_apart_is_said(self, key: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"sink\.key.*{message}"):
            sink_from_config({"type": "redis", "url": "redis://h", "key": key})


class TestConfiguration:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"url": "http://:s3cret@h"}, r"sink\.url: .*redis://user:\*\*\*@host"),
            ({"url": "redis://u:s3cret@h:12x"}, r"sink\.url"),
            ({"as": "list"}, r"sink\.as"),
            ({"prefix": "eo_rows"}, r"sink\.prefix: .*own keys"),
            ({"prefix": "a b"}, r"sink\.prefix"),
            ({"ttl": 0}, r"sink\.ttl"),
            ({"max_bytes": 2**30}, r"sink\.max_bytes"),
        ],
    )
    def test_a_wrong_field_is_named_and_no_secret_shown(
        self, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message) as error:
            sink_from_config({"type": "redis", "url": "redis://h", "key": ["id"], **settings})
        assert "s3cret" not in str(error.value)

    def test_what_is_described_says_where(self) -> None:
        sink = RedisSink(url="redis://me:s3cret@cache:6380/3", key="{id}", store_as="json")
        assert sink.describe() == {
            "kind": "redis",
            "host": "cache",
            "port": "6380",
            "database": "3",
            "table": "rows",
            "key": "{id}",
        }
        assert "s3cret" not in repr(sink)

    @pytest.mark.parametrize("change", [{"prefix": "other"}, {"as": "json"}, {"key": "x{id}"}])
    def test_a_ledger_speaks_for_one_set_of_keys(
        self, sink: RedisSink, redis_url: str, change: dict[str, Any]
    ) -> None:
        publish(sink, rows(id=[1]))
        with pytest.raises(ConfigError, match="a name of its own"):
            sink_at(redis_url, **change).open("p")

    def test_two_pipelines_have_keys_of_their_own(self, sink: RedisSink) -> None:
        publish(sink, rows(id=[1]))
        with sink.open("q") as session:
            assert session.head() is None

    def test_without_the_client_the_remedy_is_said_and_the_rest_works(self) -> None:
        code = (
            "import sys; sys.modules['redis'] = None\n"
            "import eo_pipeline\n"
            "from eo_pipeline.sinks.registry import sink_from_config\n"
            "sink = sink_from_config({'type': 'redis', 'url': 'redis://h', 'key': '{id}'})\n"
            "try: sink.open('p')\n"
            "except eo_pipeline.ConfigError as error: print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "pip install 'eo-pipeline[redis]'" in said.stdout, said.stderr

    def test_a_wrong_password_is_a_setting_and_is_not_shown(
        self, redis_server: EmbeddedRedis
    ) -> None:
        url = redis_server.start().url().replace("//", "//nobody:s3cret@")
        with pytest.raises(ConfigError, match="refused the login") as error:
            sink_at(url).open("p")
        assert "s3cret" not in str(error.value)

    def test_a_name_that_is_no_hash_tag_is_refused(self, sink: RedisSink) -> None:
        with pytest.raises(ConfigError, match="hash tag"):
            sink.open("a}b")


class TestRefused:
    @pytest.fixture
    def session(self, sink: RedisSink) -> Iterator[SinkSession]:
        with sink.open("p") as session:
            yield session

    def refuse(self, sink: RedisSink, batch: StagedOutput, *words: str) -> str:
        """Publish ``batch``, which is refused and leaves nothing; what was said."""
        with sink.open("p") as session:
            head = session.head() or started(session)
            before = rows_in(sink, "p")
            with pytest.raises(RefusedError) as error:
                session.publish(child_of(head, batch), batch)
            assert all(word in str(error.value) for word in words), error.value
            assert session.head() == session.entry(head.version)
            assert rows_in(sink, "p") == before
        return str(error.value)

    def test_more_rows_than_one_script_may_write(self, redis_url: str) -> None:
        sink = sink_at(redis_url, max_rows=9)
        self.refuse(sink, rows(id=range(10)), "source.max_records to at most 9", "sink.max_rows")
        publish(sink, rows(id=range(9)))

    @pytest.mark.parametrize("lineage", [True, False])
    def test_more_bytes_than_one_script_may_write(self, redis_url: str, lineage: bool) -> None:
        sink = sink_at(redis_url, max_bytes=1000)
        offsets = {"_eo_offset": range(10)} if lineage else {}
        self.refuse(sink, rows(id=range(10), text=["x" * 100] * 10, **offsets), "sink.max_bytes")

    def test_rows_that_nothing_puts_in_order(self, sink: RedisSink) -> None:
        self.refuse(sink, rows(id=[1, 2, 1]), "rows have the key '1'", "lineage")

    @pytest.mark.parametrize("elsewhere", [("t", 1), ("u", 0)])
    def test_rows_of_one_key_from_two_partitions(
        self, sink: RedisSink, elsewhere: tuple[str, int]
    ) -> None:
        """The older record has the greater offset where partitions were added in between."""
        topic, partition = elsewhere
        places = {"_eo_topic": ["t", topic], "_eo_partition": [0, partition]}
        records = rows(id=[1, 1], **places, _eo_offset=[1000, 3])
        self.refuse(sink, records, "the key '1'", "t partition 0", f"{topic} partition {partition}")

    @pytest.mark.parametrize("store_as", ["hash", "json"])
    def test_a_row_whose_predecessor_came_from_another_partition(
        self, redis_url: str, store_as: str
    ) -> None:
        sink = sink_at(redis_url, store_as=store_as)
        publish(sink, rows(id=[1, 2], **self.place(0, 1), _eo_offset=[1000, 7]))
        publish(sink, rows(id=[1, 2], **self.place(0, 1), _eo_offset=[1001, 3]))
        moved = rows(id=[1, 2], **self.place(5, 1), _eo_offset=[3, 8])
        self.refuse(sink, moved, ":1'", "t partition 0", "t partition 5", "DEL the key")
        with sink.open("p") as session:
            head = session.head()
        assert head is not None
        assert head.version == 2

    def place(self, *partitions: int) -> dict[str, list[object]]:
        return {"_eo_topic": ["t"] * len(partitions), "_eo_partition": [*partitions]}

    def test_a_key_of_several_texts(self, sink: RedisSink) -> None:
        self.refuse(sink, rows(id=[1.5]), "'id'", "part of a key")

    def test_a_key_that_is_not_there(self, sink: RedisSink) -> None:
        self.refuse(sink, rows(n=[1]), "sink.key", "id")

    def test_a_type_without_a_form(self, sink: RedisSink) -> None:
        self.refuse(sink, rows(id=[1], n=pa.array([1], pa.duration("s"))), "'n'", "duration")

    def test_a_column_that_changes_what_it_is(self, sink: RedisSink) -> None:
        publish(sink, rows(id=[1], n=[1]))
        said = self.refuse(sink, rows(id=[2], n=["one"]), "'n'", "integer", "text")
        assert "new pipeline" in said
        publish(sink, rows(id=[2], n=pa.array([1], pa.int16())))  # widths do not count

    @pytest.mark.parametrize("form", ["hash", "json"])
    def test_a_key_that_holds_something_else(
        self, redis_url: str, observer: redis.Redis, form: str
    ) -> None:
        observer.rpush("{p}:rows:3", "mine")
        sink = sink_at(redis_url, **{"as": form})
        with sink.open("p") as session:
            head = started(session)
            with pytest.raises(RefusedError, match="rows:3' holds a list"):
                session.publish(child_of(head, 3), rows(id=[1, 2, 3]))
        assert not observer.exists("{p}:rows:1")
        observer.delete("{p}:rows:3")
        publish(sink, rows(id=[1, 2, 3]))

    @pytest.mark.parametrize("key", ["eo_schema", "eo_dead_letters"])
    def test_an_own_key_that_holds_something_else(
        self, sink: RedisSink, observer: redis.Redis, key: str, session: SinkSession
    ) -> None:
        head = started(session)
        observer.delete(f"{{p}}:{key}")
        observer.rpush(f"{{p}}:{key}", "mine")
        with pytest.raises(RefusedError):
            session.publish(child_of(head, 1), rows(id=[1]))
        assert not observer.exists("{p}:rows:1")

    def test_a_stream_that_can_take_no_more(
        self, sink: RedisSink, observer: redis.Redis, session: SinkSession
    ) -> None:
        head = started(session)
        observer.xadd("{p}:eo_dead_letters", {"f": "v"}, id="18446744073709551615-1")
        staged = StagedOutput(rows(id=[1]).rows, dead_letters(1, [b""]))
        with pytest.raises(RefusedError, match="full stream"):
            session.publish(child_of(head, staged), staged)
        assert not observer.exists("{p}:rows:1")

    def test_a_head_that_moved_while_rows_were_prepared(
        self, sink: RedisSink, observer: redis.Redis, session: SinkSession
    ) -> None:
        """A backup came back, or somebody reset the pipeline: no entry is in the way, and the
        script alone sees it.
        """
        head = started(session)

        def move(point: CrashPoint) -> None:
            if point is CrashPoint.ENTRY_SENT:
                observer.hset("{p}:eo_ledger", "head", f"0 {'0' * 32}")

        with pytest.raises(FencedError):
            session.publish(child_of(head, 1), rows(id=[1]), move)
        assert not observer.exists("{p}:rows:1")

    @pytest.mark.parametrize(
        "limits",
        [["-xadd"], ["-pexpire"], ["-hset"], ["-del"], ["resetkeys", "~{p}:eo_*", "~{p}:rows:1*"]],
    )
    def test_a_user_who_may_not_write_everything_writes_nothing(
        self, redis_url: str, observer: redis.Redis, limits: list[str]
    ) -> None:
        """A permission that is missing halfway would leave rows without their entry."""
        publish(sink_at(redis_url, ttl=9), rows(id=[1]))
        command(observer, "ACL", "SETUSER", "writer", "on", ">pw", "+@all", "~*", *limits)
        limited = sink_at(redis_url.replace("//", "//writer:pw@"), ttl=9)
        try:
            self.refuse(limited, rows(id=[1, 2], n=[1, 2]), "ACL SETUSER")
        finally:
            command(observer, "ACL", "DELUSER", "writer")

    def test_the_rights_on_the_page_are_enough(self, redis_url: str, observer: redis.Redis) -> None:
        page = Path(__file__).parents[3] / "docs" / "sinks" / "redis.md"
        found = re.search(r"ACL SETUSER flights (.*)", page.read_text())
        assert found is not None
        rights = found[1].replace("{flights}", "{p}").replace(">secret", ">pw").split()
        command(observer, "ACL", "SETUSER", "writer", *rights)
        url = redis_url.replace("//", "//writer:pw@")
        try:
            for version, form in enumerate(("hash", "json"), 1):
                sink = sink_at(url, **{"as": form, "ttl": 60})
                batch = StagedOutput(rows(id=[version]).rows, dead_letters(1, [b"{"]))
                publish(sink, batch, batch)
                command(observer, "SCRIPT", "FLUSH")
                observer.flushdb()
        finally:
            command(observer, "ACL", "DELUSER", "writer")


def test_a_column_of_the_wrong_kind_is_a_schema_change(sink: RedisSink) -> None:
    publish(sink, rows(id=[1]))
    with sink.open("p") as session:
        head = session.head()
        assert head is not None
        with pytest.raises(SchemaChangeError):
            session.publish(child_of(head, 1), rows(id=["one"]))
