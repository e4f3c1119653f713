"""A Kafka cluster that does not answer: told soon, and with the reason that librdkafka knows."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from eo_pipeline.source.client_options import silent_logger

T = TypeVar("T")

#: Seconds that a cluster may be away of which every known broker fails: told before five are over.
PATIENCE_S = 3.0

#: ... so that an address which swallows everything fails within that time, too.
_SETTINGS = {"socket.connection.setup.timeout.ms": 2_700}

_LOOK_S = 0.1

#: How long the first byte took, and in which state, is for those who read librdkafka's source.
_STATE = re.compile(r" \(after \d+ms in state \w+[^)]*\)")

#: What to do about an error, by its code; anything else is a matter of brokers and addresses.
_REMEDIES = {
    KafkaError._RESOLVE: "Correct the name in bootstrap_servers, or see that it can be resolved.",
    KafkaError._SSL: "Correct the ssl settings of the client, or the brokers' certificate.",
    KafkaError._AUTHENTICATION: "Correct the user or password among the client's sasl settings.",
    KafkaError._BAD_MSG: "What listens there speaks no Kafka, or wants another security.protocol.",
}
_HANGS_UP = "Correct the address or security.protocol; a proxy needs a broker behind it."
_REMEDY = "Check that the brokers run, the address, and the client's credentials."


#: How librdkafka says that nobody answered.
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


class Why(NamedTuple):
    """Why a question has no answer, in a clause, and what to do about it, in a sentence."""

    reason: str
    remedy: str


class NoAnswerError(Exception):
    """Nobody answered in time."""


@dataclass
class _Heard:
    """What librdkafka said. It does not know the client: that is gone, with its threads, when
    nobody has it any more, and not when somebody collects circles.
    """

    #: of a broker, since the last question
    said: KafkaError | None = None
    #: whether every broker failed since the last question ...
    all_down: bool = False
    #: ... and ever
    were_down: bool = False

    def hear(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.were_down = self.all_down = True
        else:
            self.said = error

    def is_away(self) -> bool:
        """That all are down is said once, that one still is each time it is tried."""
        return self.all_down or (self.were_down and self.said is not None)


class AskedClient:
    """An admin client that is asked, and what librdkafka says while nobody answers."""

    def __init__(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard = _Heard()
        told = _SETTINGS | {"error_cb": self._heard.hear} | dict(settings)
        self.client = AdminClient(told, logger=silent_logger())

    def wait_for(self, answers: Collection[Future[Any]]) -> None:
        """Return when all ``answers`` are there, or errors in their place.

        Raises:
            NoAnswerError: they are not, in time.
        """
        self._forget()
        began = time.monotonic()
        while wait(answers, _LOOK_S).not_done:
            self._give_up_if_away(time.monotonic() - began, self._timeout_s + 5)

    def answer(self, future: Future[T]) -> T:
        """The one answer.

        Raises:
            NoAnswerError: it does not come in time.
            KafkaException: it is an error.
        """
        self.wait_for([future])
        return future.result()

    def topics(self) -> ClusterMetadata:
        """The metadata of all topics.

        Raises:
            NoAnswerError: no answer in time.
        """
        self._forget()
        began = time.monotonic()
        while True:
            try:
                return self.client.list_topics(timeout=1.0)
            except KafkaException as error:
                if error.args[0].code() not in _NO_ANSWER:
                    raise
            self._give_up_if_away(time.monotonic() - began, self._timeout_s)

    def meant(self, error: Exception) -> KafkaError | None:
        """What ``error`` means: the broker's answer; if none came, what librdkafka says of that,
        if anything.
        """
        told = error.args[0] if isinstance(error, KafkaException) else None
        return self._heard.said or told if told is None or told.code() in _NO_ANSWER else told

    def why(self, error: Exception) -> Why:
        """The same in words, and what to do about it."""
        told = self.meant(error)
        if told is None and self._heard.all_down:
            return Why("who listens there ends each connection at once", _HANGS_UP)
        if told is None:
            return Why("no answer in time", _REMEDY)
        reason = _STATE.sub("", told.str()).replace("/bootstrap:", ":").rstrip(".")
        # who answers TLS by hanging up is disconnected, to librdkafka
        kind = KafkaError._SSL if "SSL" in reason else told.code()
        return Why(reason, _REMEDIES.get(kind, _REMEDY))

    def _forget(self) -> None:
        """What went wrong since the last question, a connection that idled for example."""
        self.client.poll(0)
        self._heard.said, self._heard.all_down = None, False

    def _give_up_if_away(self, spent_s: float, timeout_s: float) -> None:
        self.client.poll(0)
        if spent_s > (PATIENCE_S if self._heard.is_away() else timeout_s):
            raise NoAnswerError
