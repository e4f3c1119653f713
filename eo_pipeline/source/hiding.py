"""Secrets of Kafka clients and buckets, kept out of what Spark shows of a plan.

A Spark Connect server writes each plan down as text: in its pages, its event log, the description
of a job. Options are in it, with passwords and keys. Spark takes out of that text what the
session's ``spark.sql.redaction.string.regex`` finds; left to itself, nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.sql.redaction.string.regex"

#: The value of an option that may hold a secret, as Protobuf's text format writes it. It begins
#: with letters, by which Java passes over a plan with megabytes of rows several times as fast; and
#: is possessive, since Java's regular expressions recurse.
HIDDEN = (
    r'key: "[^"]{0,99}(?:jaas|password|secret|token|(?:keystore|access)\.key|credential)[^"]{0,99}"'
    r'\s+value: "[^"\\]*+(?:\\.[^"\\]*+)*+"'
)

_told: WeakSet[SparkSession] = WeakSet()


def hide_secrets(spark: SparkSession) -> None:
    """Have ``spark`` leave out secrets of plans it writes down; what it hides already, it goes on
    to hide.
    """
    if spark in _told:
        return
    before = spark.conf.get(_SETTING, "") or ""
    if HIDDEN not in before:
        spark.conf.set(_SETTING, f"{HIDDEN}|{before}" if before else HIDDEN)
    _told.add(spark)
