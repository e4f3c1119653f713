"""Redis, its network and its cluster at their worst: what is reported, what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from eo_pipeline.embedded import redis as embedded_redis
from eo_pipeline.embedded.ports import free_port
from eo_pipeline.embedded.redis import EmbeddedRedis
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    SetupError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.redis.session import check_server
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput
from eo_pipeline.testing import child_of, first_entry
from tests.sinks.redis.redis_world import (
    COMMITTED,
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
from tests.support.proxy import Cut, Proxy
from tests.support.servers import is_gone, wait_until

__all__ = ["observer", "sink"]

ALREADY_COMMITTED = CommitOutcome.ALREADY_COMMITTED


class TestServer:
    def set_back(self, observer: redis.Redis, name: str, value: str) -> Callable[[], object]:
        """Set a directive; calling the result sets it back."""
        before: Any = observer.config_get(name)
        observer.config_set(name, value)
        return lambda: observer.config_set(name, before[name])

    def unavailable_then_fine(self, sink: RedisSink, heal: Callable[[], object]) -> None:
        """Publishing leaves nothing, and the same entry lands once the server is well again."""
        with sink.open("p") as session:
            head = session.head()
            assert head is not None
            entry, before = child_of(head, 2), ids(sink)
            batch = rows(id=[1, 2])
            try:
                with pytest.raises(SinkUnavailableError):
                    session.publish(entry, batch)
                assert ids(sink) == before
                assert session.entry(entry.version) is None
            finally:
                heal()
            assert session.publish(entry, batch) is COMMITTED
        assert ids(sink) == [1, 2]

    def test_full_memory(self, sink: RedisSink, observer: redis.Redis) -> None:
        """Also where the script's first own write would be a DEL, which is never denied."""
        publish(sink, rows(id=[1]))
        with sink.open("p"):
            self.unavailable_then_fine(sink, self.set_back(observer, "maxmemory", "1"))

    def test_too_few_replicas(self, sink: RedisSink, observer: redis.Redis) -> None:
        publish(sink, rows(id=[1]))
        self.unavailable_then_fine(sink, self.set_back(observer, "min-replicas-to-write", "1"))

    def test_a_server_that_drops_keys_is_refused(
        self, sink: RedisSink, observer: redis.Redis
    ) -> None:
        back = self.set_back(observer, "maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(ConfigError, match=r"allkeys-lru.*noeviction"):
                sink.open("p")
        finally:
            back()

    def test_a_replica_takes_no_writes(self, sink: RedisSink, observer: redis.Redis) -> None:
        publish(sink, rows(id=[1]))
        with sink.open("p") as session:
            head = session.head()
            assert head is not None
            command(observer, "REPLICAOF", "127.0.0.1", "1")
            try:
                with pytest.raises(SinkUnavailableError):
                    session.publish(child_of(head, 1), rows(id=[2]))
                with pytest.raises(SinkUnavailableError, match="replica"):
                    sink.open("p")
            finally:
                command(observer, "REPLICAOF", "NO", "ONE")
        assert ids(sink) == [1]

    def test_scripts_that_the_server_forgot_are_given_again(
        self, sink: RedisSink, observer: redis.Redis
    ) -> None:
        with sink.open("p") as session:
            head = started(session)
            observer.script_flush()
            assert session.publish(child_of(head, 1), rows(id=[1])) is COMMITTED

    def test_a_server_busy_with_another_script_is_unavailable(
        self, sink: RedisSink, observer: redis.Redis, redis_url: str
    ) -> None:
        back = self.set_back(observer, "busy-reply-threshold", "10")
        with sink.open("p") as session, client_of(sink) as other:
            head = started(session)

            def spin() -> None:
                with pytest.raises(redis.ResponseError):
                    other.eval("while true do end", 0)

            spinning = Thread(target=spin)
            spinning.start()
            try:
                wait_until(lambda: _is_busy(observer))
                with pytest.raises(SinkUnavailableError, match=r"BUSY|busy"):
                    session.publish(child_of(head, 1), rows(id=[1]))
            finally:
                observer.script_kill()
                spinning.join()
                back()
            assert session.publish(child_of(head, 1), rows(id=[1])) is COMMITTED


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"redis_version": "6.2.7"}, ConfigError, "6.2.7 is too old"),
        ({"maxmemory_policy": "volatile-ttl"}, ConfigError, "volatile-ttl"),
        ({"role": "slave"}, SinkUnavailableError, "replica"),
    ],
)
def test_a_server_that_cannot_keep_the_promise_is_refused(
    said: dict[str, str], error: type[EoPipelineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_server({"redis_version": "7.0.15", **said})


def test_a_server_that_keeps_no_log_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check_server({"redis_version": "7.0.15", "aof_enabled": 1})
    assert not caplog.messages
    check_server({"redis_version": "7.0.15", "aof_enabled": 0})
    assert "appendonly yes" in caplog.text


def _is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError:
        return True
    return False


class TestNetwork:
    @pytest.fixture
    def proxy(self, redis_server: EmbeddedRedis) -> Iterator[Proxy]:
        with Proxy(redis_server.host, redis_server.port) as proxy:
            yield proxy

    @pytest.fixture
    def session(
        self, sink: RedisSink, redis_server: EmbeddedRedis, proxy: Proxy
    ) -> Iterator[SinkSession]:
        url = sink.url.get_secret_value().replace(str(redis_server.port), str(proxy.port))
        with sink_at(url).open("p") as session:
            yield session

    def test_a_lost_reply_is_unknown_and_found_committed(
        self, sink: RedisSink, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = child_of(started(session), 2)
        proxy.cut_at(b"EVALSHA", Cut.BEFORE_THE_REPLY)
        with pytest.raises(CommitUnknownError, match=entry.transaction_id):
            session.publish(entry, rows(id=[1, 2]))
        with sink.open("p") as other, pytest.raises(FencedError):
            other.publish(child_of(first_entry("p")), rows(id=[7]))
        assert session.publish(entry, rows(id=[1, 2])) is ALREADY_COMMITTED
        assert ids(sink) == [1, 2]

    def test_a_request_that_was_never_heard_is_unknown_and_lands_when_repeated(
        self, sink: RedisSink, proxy: Proxy, session: SinkSession
    ) -> None:
        entry = child_of(started(session), 2)
        proxy.cut_at(b"EVALSHA", Cut.BEFORE_THE_REQUEST)
        with pytest.raises(CommitUnknownError):
            session.publish(entry, rows(id=[1, 2]))
        assert ids(sink) == []
        assert session.publish(entry, rows(id=[1, 2])) is COMMITTED

    def test_a_question_is_asked_again_on_a_new_connection(
        self, proxy: Proxy, session: SinkSession
    ) -> None:
        start = started(session)
        proxy.cut()
        head = session.head()
        assert head is not None
        assert head.id == start.id
        proxy.cut()
        assert session.publish(child_of(start, 1), rows(id=[1])) is COMMITTED

    def test_a_server_that_cannot_be_reached_is_unavailable(
        self, proxy: Proxy, session: SinkSession
    ) -> None:
        start = started(session)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(SinkUnavailableError):
            session.publish(child_of(start, 1), rows(id=[1]))
        proxy.refuse(False)
        assert session.publish(child_of(start, 1), rows(id=[1])) is COMMITTED


class TestCrashesOfTheServer:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[EmbeddedRedis]:
        """A server that a test may ruin."""
        with EmbeddedRedis(tmp_path / "redis", settings={"appendfsync": "always"}) as server:
            yield server

    def consistent(self, sink: RedisSink) -> int:
        """Rows and ledger agree; the head's version."""
        with sink.open("p") as session:
            head = session.head()
        found = sorted((row[CHECKPOINT_COLUMN], row["id"]) for row in rows_in(sink, "p"))
        version = head.version if head else 0
        assert found == [(v, 10 * v + n) for v in range(1, version + 1) for n in range(10)]
        return version

    def batch(self, version: int) -> StagedOutput:
        return rows(id=[10 * version + n for n in range(10)], **{CHECKPOINT_COLUMN: [version] * 10})

    def test_killed_while_checkpoints_are_published_it_comes_back_whole(
        self, server: EmbeddedRedis
    ) -> None:
        sink = sink_at(server.url())
        seen: list[int] = []
        enough = Event()

        def go_on() -> None:
            with sink.open("p") as session:
                head = started(session)
                while True:
                    entry = child_of(head, 10)
                    session.publish(entry, self.batch(entry.version))
                    head = entry
                    seen.append(head.version)
                    if len(seen) == 50:
                        enough.set()

        errors: list[BaseException] = []

        def watched() -> None:
            try:
                go_on()
            except EoPipelineError as error:
                errors.append(error)

        running = Thread(target=watched)
        running.start()
        assert enough.wait(240)
        pid = server.pid
        server.kill()
        assert is_gone(pid)
        running.join(240)
        assert isinstance(errors[0], CommitUnknownError | SinkUnavailableError)
        server.start()
        assert self.consistent(sink) in (seen[-1], seen[-1] + 1)

    def test_a_log_that_was_cut_short_ends_between_two_checkpoints(
        self, server: EmbeddedRedis
    ) -> None:
        """What a power cut leaves: the end of the append-only file is missing, at any byte."""
        sink = sink_at(server.url())
        publish(sink, *(self.batch(version) for version in (1, 2, 3)))
        server.stop()
        (log,) = (server.folder / "data").rglob("*.incr.aof")
        heads = []
        for missing in (1, 40, 300, 700, 1500):
            log.write_bytes(log.read_bytes()[:-missing])
            server.start()
            heads.append(self.consistent(sink))
            server.stop()
        assert heads[0] == 2
        assert heads == sorted(heads, reverse=True)
        assert heads[-1] < heads[0]


class TestCluster:
    @pytest.fixture
    def nodes(self, tmp_path: Path) -> Iterator[list[EmbeddedRedis]]:
        """Two masters that share the slots."""
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
        # the usual one, 10,000 above a node's own, may be any client's end of a connection
        bus_a, bus_b = ({"cluster-port": str(free_port())} for _ in range(2))
        with (
            EmbeddedRedis(tmp_path / "a", settings=settings | bus_a) as a,
            EmbeddedRedis(tmp_path / "b", settings=settings | bus_b) as b,
        ):
            for node, first, last in ((a, 0, 8191), (b, 8192, 16383)):
                with node.connect() as client:
                    command(client, "CLUSTER", "ADDSLOTSRANGE", first, last)
            with a.connect() as client:
                command(client, "CLUSTER", "MEET", b.host, b.port, bus_b["cluster-port"])
            for node in (a, b):
                wait_until(lambda node=node: _is_clustered(node))  # type: ignore[misc]
            yield [a, b]

    def test_the_node_that_has_the_slot_works_and_the_other_names_it(
        self, nodes: list[EmbeddedRedis]
    ) -> None:
        right = nodes[key_slot(b"p") > 8191]
        wrong = nodes[key_slot(b"p") <= 8191]
        publish(sink_at(right.url()), rows(id=[1, 2]))
        with pytest.raises(ConfigError, match=rf"Cluster.*{right.host}:{right.port}"):
            sink_at(wrong.url()).open("p")


def _is_clustered(node: EmbeddedRedis) -> bool:
    with node.connect() as client:
        info = command(client, "CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_size:2" in info


class TestEmbedded:
    def test_it_comes_back_with_its_data_at_the_same_address(self, tmp_path: Path) -> None:
        with EmbeddedRedis(tmp_path) as server:
            url = server.url()
            with server.connect() as client:
                client.set("a", "b")
            for end in (server.kill, server.stop):
                end()
                assert not server.alive
                server.start()
                with server.connect() as client:
                    assert client.get("a") == b"b"
            assert server.url() == url

    def test_it_says_how_to_get_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded_redis, "_BINARY", "no-such-server")
        with pytest.raises(SetupError, match="apt-get install redis-server"):
            EmbeddedRedis(tmp_path).start()
