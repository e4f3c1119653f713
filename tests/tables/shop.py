"""Transforms of the tests' shop: an order, and its lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

#: An order with its lines, as its topic has it.
ORDER = "id BIGINT NOT NULL, customer BIGINT, lines ARRAY<STRUCT<item: STRING, amount: BIGINT>>"


def killed(config: Mapping[str, Any], *options: str) -> None:
    """Do what ``options`` say in a process of its own, see tests/runs/driver.py; which is killed at
    the point that they name.
    """
    driver = [sys.executable, "-m", "tests.runs.driver", json.dumps(config)]
    ended = subprocess.run([*driver, *options], capture_output=True, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]


def hold_once(
    count: int,
    orders: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    customers: Sequence[Mapping[str, Any]],
) -> None:
    """The rows are those of so many orders, each once, with two lines of its own checkpoint."""
    assert sorted(order["id"] for order in orders) == [*range(count)]
    assert Counter(line["order_id"] for line in lines) == dict.fromkeys(range(count), 2)
    assert sorted(row["id"] for row in customers) == [*range((count + 9) // 10)]
    versions = {order["id"]: order["_eo_checkpoint"] for order in orders}
    assert all(line["_eo_checkpoint"] == versions[line["order_id"]] for line in lines)


def orders(records: DataFrame) -> DataFrame:
    """Return a row for each order."""
    return records.select("id", "customer", "_kafka")


def lines(records: DataFrame) -> DataFrame:
    """Return a row for each line of an order."""
    line = F.explode("lines").alias("line")
    return records.select(F.col("id").alias("order_id"), line, "_kafka").select(
        "order_id", "line.item", "line.amount", "_kafka"
    )
