"""Several topics filled by one transaction while a partition of one of them changes its leader."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock, Thread

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.ports import HOST
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import EoPipelineError
from tests.support.servers import STATE, wait_until
from tests.tables.test_kafka_tables import KafkaShop

pytestmark = pytest.mark.chaos

PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "auto.leader.rebalance.enable": "false",
}


class Broker(EmbeddedKafka):
    """A broker of a cluster whose ``first`` broker, number 1, has the controller."""

    def __init__(self, folder: Path, number: int = 1, first: Broker | None = None) -> None:
        options = ["-XX:TieredStopAtLevel=1"]
        jars = kafka_broker_jars(STATE)
        super().__init__(folder, jars=jars, properties=PROPERTIES, java_options=options)
        self._number, self._first = number, first
        if first is not None:
            self._properties |= {
                "process.roles": "broker",
                "node.id": str(number),
                "listeners": f"PLAINTEXT://{HOST}:{self._port}",
                "controller.quorum.voters": f"1@{HOST}:{first._controller_port}",
            }

    def _format(self, data: Path) -> None:
        if self._first is None:
            super()._format(data)
            return
        data.mkdir()
        cluster = self._first._cluster_id()
        told = f"version=1\nnode.id={self._number}\ncluster.id={cluster}\n"
        (data / "meta.properties").write_text(told)


class Cluster:
    """Three brokers. Topics made here prefer 2 as the leader of partition 0, and 3 of the next."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = dict(enumerate(brokers, 1))
        self.servers = ",".join(broker.bootstrap_servers for broker in brokers)
        self._starting = Lock()
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def start(self) -> None:
        """Start whatever was killed, once it is not being started."""
        with self._starting:
            for broker in self.brokers.values():
                broker.start()

    def make(self, partitions: int = 1, replicas: int = 3) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        turns = [([2, 3, 1], [3, 1, 2])[number % 2][:replicas] for number in range(partitions)]
        self.admin.create_topics([NewTopic(name, partitions, replica_assignment=turns)])[
            name
        ].result()
        wait_until(lambda: self.leader(name) == 2)
        return name

    def leader(self, topic: str) -> int:
        """The broker that leads partition 0."""
        known = self.admin.list_topics(timeout=60).topics
        return int(known[topic].partitions[0].leader) if topic in known else -1

    def moved(self, topic: str) -> None:
        """Kill the leader of partition 0, and wait until another one leads."""
        self.brokers[2].kill()
        wait_until(lambda: self.leader(topic) not in (-1, 2))

    def moved_back(self, topic: str) -> None:
        """Make the preferred replica of partition 0 the leader again, in an orderly way."""
        place = TopicPartition(topic, 0)
        wait_until(lambda: self._in_sync(topic) == 3)
        self.admin.elect_leaders(ElectionType.PREFERRED, [place]).result()
        wait_until(lambda: self.leader(topic) == 2)

    def _in_sync(self, topic: str) -> int:
        return len(self.admin.list_topics(timeout=60).topics[topic].partitions[0].isrs)


@pytest.fixture(scope="module")
def running_cluster_of_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("brokers")
    with ExitStack() as stack:
        first = stack.enter_context(Broker(folder / "1"))
        others = [stack.enter_context(Broker(folder / str(n), n, first)) for n in (2, 3)]
        yield Cluster([first, *others])


@pytest.fixture
def brokers(running_cluster_of_brokers: Cluster) -> Cluster:
    """All of them, also those that a test has killed."""
    running_cluster_of_brokers.start()
    return running_cluster_of_brokers


class Move:
    """Changes the leader of partition 0 of a topic once ``point`` is reached in a transaction."""

    def __init__(self, point: CrashPoint, act: Callable[[], object]) -> None:
        self._point, self._act, self.done = point, act, False

    def __call__(self, reached: CrashPoint) -> None:
        if reached is self._point and not self.done:
            self.done = True
            self._act()


def killed(cluster: Cluster, topic: str) -> Callable[[], object]:
    """The leader is killed; another one has taken over before the run goes on."""
    return lambda: cluster.moved(topic)


def elected(cluster: Cluster, topic: str) -> Callable[[], object]:
    """Another one is elected, in an orderly way."""
    cluster.moved(topic)
    cluster.brokers[2].start()
    return lambda: cluster.moved_back(topic)


def away(cluster: Cluster, topic: str) -> Callable[[], object]:
    """The only replica is killed, and comes back while the run goes on."""
    del topic

    def act() -> None:
        cluster.brokers[2].kill()
        Thread(target=cluster.start).start()

    return act


@pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
@pytest.mark.parametrize(("way", "replicas"), [(killed, 3), (elected, 3), (away, 1)])
def test_a_leader_that_moves_while_topics_are_filled_leaves_all_rows_once(
    spark_server: EmbeddedSpark,
    brokers: Cluster,
    tmp_path: Path,
    point: CrashPoint,
    way: Callable[[Cluster, str], Callable[[], object]],
    replicas: int,
) -> None:
    targets = {name: brokers.make(2, replicas) for name in ("orders", "order_lines", "customers")}
    orders, customers = brokers.make(4), brokers.make()
    shop = KafkaShop(brokers.servers, orders, customers, targets, tmp_path / "staging")
    shop.config["sink"] |= {"ledger_topic": f"{orders}._eo_ledger", "request_timeout": 10}
    shop.config["source"]["request_timeout"] = 10
    shop.write(60)
    shop.pipeline().run()
    shop.write(60)
    move = Move(point, way(brokers, targets["order_lines"]))
    with reaching(move), suppress(EoPipelineError):
        shop.pipeline().run()
    assert move.done
    brokers.start()
    shop.pipeline().run()
    shop.holds_once(120)
