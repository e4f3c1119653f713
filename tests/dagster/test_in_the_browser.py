"""What a person does in Dagster's pages and sees there: real Chromium, real runs, real servers.

One web server and one daemon serve the whole file; a test leaves the pipeline as it found it, or
says what it changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from tests.dagster.site import LOCATION, Browser, Site, browsing
from tests.support.engine import Topic
from tests.support.servers import own_kafka, wait_until

pytestmark = pytest.mark.slow

kafka = own_kafka

DATABASE = "shop"
TOPIC = "orders"
SCHEMA = "id BIGINT NOT NULL COMMENT 'the number of the order', name STRING"
#: Longer than anything here takes: the lag sensor looks, and starts nothing.
NEVER = 1_000_000_000

_NEWEST = """
{ runsOrError(limit: 1) { ... on Runs { results { runId status jobName } } } }
"""
_TERMINATE = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass
class Shop:
    """The pipeline ``orders`` in Dagster, and what is around it."""

    browser: Browser
    topic: Topic
    kafka: EmbeddedKafka
    dsn: str
    pipeline: dict[str, Any]

    @property
    def site(self) -> Site:
        return self.browser.site

    def declare(self, **changes: Any) -> None:
        """What runs do from now on."""
        automation = {"lag_threshold": NEVER, "lag_interval_seconds": 5, "lag_limit": 1_000}
        self.site.declare({**self.pipeline, **changes}, **automation)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> dict[int, int]:
        """How many rows each checkpoint has in the table."""
        counted = "select _eo_checkpoint, count(*) from orders group by 1 order by 1"
        return dict(self.query(counted))

    def newest_run(self) -> dict[str, str]:
        found = self.site.ask(_NEWEST)["runsOrError"]["results"]
        return dict(found[0]) if found else {"runId": "", "status": "", "jobName": ""}

    def launched(self, before: str) -> str:
        """The run that came after the run ``before``."""
        wait_until(lambda: self.newest_run()["runId"] != before)
        return self.newest_run()["runId"]

    def ended(self, before: str) -> dict[str, str]:
        """The run that came after the run ``before``, once it is over."""
        self.launched(before)
        wait_until(lambda: self.newest_run()["status"] in ENDED)
        return self.newest_run()

    def job(self, name: str, config: str) -> dict[str, str]:
        """Fills in the Launchpad of a job and launches it; the run, once it is over."""
        before = self.newest_run()["runId"]
        self.browser.open(f"/locations/{LOCATION}/jobs/{name}/playground")
        self.browser.page.locator(".CodeMirror").first.click()
        self.browser.page.keyboard.press("Control+a")
        self.browser.page.keyboard.insert_text(config)
        self.browser.sees("No errors")
        self.browser.press("Launch Run")
        run = self.ended(before)
        self.browser.open(f"/runs/{run['runId']}")
        return run


@pytest.fixture(scope="module")
def topic(kafka: EmbeddedKafka) -> Iterator[Topic]:
    admin = AdminClient({"bootstrap.servers": kafka.start().bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result()
    made = Topic(TOPIC, kafka.bootstrap_servers)
    made.write(300, partitions=range(2))
    yield made
    admin.delete_topics([TOPIC])[TOPIC].result()


@pytest.fixture(scope="module")
def shop(
    topic: Topic,
    kafka: EmbeddedKafka,
    postgres: EmbeddedPostgres,
    spark_server: EmbeddedSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    """Versions 1 to 3, of 100 records each, wait to be made."""
    folder: Path = tmp_path_factory.mktemp("site")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"create database {DATABASE}")
    pipeline = {
        "name": "orders",
        "source": {
            "bootstrap_servers": topic.bootstrap_servers,
            "topics": [TOPIC],
            "value_schema": SCHEMA,
            "max_records": 100,
            "request_timeout": 3,
        },
        "sink": {"type": "postgres", "dsn": postgres.dsn_of(DATABASE), "table": "orders"},
        "staging": str(folder / "staging"),
        "inline_records": 1_000,
    }
    site = Site(folder)
    # before the first load of the code location
    Shop(Browser(site, None), topic, kafka, "", pipeline).declare()  # type: ignore[arg-type]
    with site.running(), browsing(site) as browser:
        yield Shop(browser, topic, kafka, postgres.dsn_of(DATABASE), pipeline)


@pytest.fixture
def filled(shop: Shop) -> Shop:
    """With the versions 1 to 3, made by whoever came first."""
    if not shop.query("select to_regclass('orders') is not null")[0][0]:
        materialize(shop)
    return shop


def materialize(shop: Shop) -> None:
    before = shop.newest_run()["runId"]
    shop.browser.open("/assets/orders")
    shop.browser.press("Materialize")
    assert shop.ended(before)["status"] == "SUCCESS"


def test_materialize_fills_the_table_and_the_pages_tell_what_is_there(shop: Shop) -> None:
    materialize(shop)

    assert shop.rows() == {1: 100, 2: 100, 3: 100}
    shop.browser.open(f"/runs/{shop.newest_run()['runId']}")
    shop.browser.sees(re.compile("version 3: 100 records, 100 rows"))
    shop.browser.open("/assets/orders")
    shop.browser.sees(f"{DATABASE}.public.orders")
    shop.browser.sees("the number of the order")
    shop.browser.sees(re.compile("^bigint$"))  # as PostgreSQL calls it
    shop.browser.open("/assets/orders_offsets")
    shop.browser.page.get_by_text("Plots", exact=True).first.click()
    plots = ["lag_before", "records", "records_per_second", "rows", "seconds"]
    for name in plots:
        shop.browser.sees(re.compile(f"^{name}$"))
    assert shop.browser.page.locator("canvas").count() == len(plots)


def test_terminate_ends_a_run_and_says_what_stands(filled: Shop) -> None:
    shop, before = filled, filled.newest_run()["runId"]
    rows = shop.rows()
    shop.topic.write(10)
    shop.declare(transform="tests.runs.transforms:endless")
    try:
        shop.browser.open("/assets/orders")
        shop.browser.press("Materialize")
        run_id = shop.launched(before)
        shop.browser.open(f"/runs/{run_id}")
        shop.browser.sees(re.compile("STEP_START"))
        shop.browser.press("Terminate")
        shop.browser.press("Terminate 1 run")
        run = shop.ended(before)
    finally:
        shop.declare()
        shop.site.ask(_TERMINATE, id=shop.newest_run()["runId"])  # what follows would wait for it

    assert (run["runId"], run["status"]) == (run_id, "CANCELED")
    shop.browser.open(f"/runs/{run_id}")
    shop.browser.sees("Canceled")
    shop.browser.sees(re.compile(r"interrupted; version \d+ stands; nothing of version \d+ is"))
    assert shop.rows() == rows


def test_checkpoints_that_were_selected_are_replayed_by_one_run(filled: Shop) -> None:
    shop, page, before = filled, filled.browser.page, filled.newest_run()["runId"]
    shop.query("delete from orders where _eo_checkpoint in (1, 2) and _eo_partition = 1")
    shop.browser.open("/assets/orders_checkpoints?view=partitions")
    shop.browser.sees("Partitions Selected")
    shop.browser.press("Materialize…")
    page.get_by_text("Select a partition").click()
    for version in ("1", "2"):
        page.locator("[role=menu]").get_by_text(version, exact=True).first.click()
    page.get_by_text("Launch runs to materialize").click()  # closes the list
    shop.browser.sees("2 partitions")
    shop.browser.press("Launch backfill")

    assert shop.ended(before)["status"] == "SUCCESS"
    assert {version: shop.rows()[version] for version in (1, 2)} == {1: 100, 2: 100}
    shop.browser.open("/assets/orders_checkpoints?view=partitions")
    page.get_by_text("2", exact=True).first.click()
    shop.browser.sees("replay")
    shop.browser.open("/assets/orders_checkpoints")
    shop.browser.sees("each gap in the selection starts another")


def test_a_rewind_is_looked_at_by_a_dry_run_and_then_made(filled: Shop) -> None:
    shop, rows = filled, filled.rows()
    shop.browser.open(f"/locations/{LOCATION}/jobs/orders_rewind/playground")
    shop.browser.sees("No errors")

    dry = shop.job("orders_rewind", "to: {version: 2}\ndry_run: true\n")

    assert dry["status"] == "SUCCESS"
    shop.browser.sees(re.compile("Dry run: nothing was changed. Plan: rewind"))
    assert shop.rows() == rows
    made = shop.job("orders_rewind", "to: {version: 2}\nreason: wrong rates\ndry_run: false\n")
    assert made["status"] == "SUCCESS"
    assert shop.rows() == {1: 100, 2: 100}
    shop.browser.open("/assets/orders_offsets?view=events")
    shop.browser.sees("wrong rates")
    materialize(shop)
    assert sum(shop.rows().values()) == shop.topic.next_id


# without the browser: tests/dagster/test_going_back.py
@pytest.mark.chaos
def test_an_audit_that_fails_hands_over_the_job_that_repairs(filled: Shop) -> None:
    shop, page = filled, filled.browser.page
    shop.query("delete from orders where _eo_checkpoint = 1 and _eo_partition = 0")

    assert shop.job("orders_audit", "{}")["status"] == "FAILURE"

    shop.browser.sees(re.compile("missing"))
    shop.browser.open("/assets/orders?view=checks")
    shop.browser.sees("Failed")
    shop.browser.sees("missing_rows")
    before = shop.newest_run()["runId"]
    link = page.locator("a[href*='orders_replay/playground/setup']").first
    shop.browser.open(str(link.get_attribute("href")))
    shop.browser.sees("No errors")
    shop.browser.press("Launch Run")
    assert shop.ended(before)["jobName"] == "orders_replay"
    assert shop.rows()[1] == 100
    shop.browser.open("/assets/orders?view=checks")
    before = shop.newest_run()["runId"]
    shop.browser.press("Execute")
    assert shop.ended(before)["status"] == "SUCCESS"
    shop.browser.open("/assets/orders?view=checks")
    shop.browser.sees("Passed")


# without the browser: tests/dagster/test_looks.py
@pytest.mark.chaos
def test_a_broker_that_goes_away_is_red_on_the_topics_page_until_it_is_back(filled: Shop) -> None:
    shop, page = filled, filled.browser.page
    shop.browser.open(f"/locations/{LOCATION}/sensors/orders_lag")
    # the box itself is hidden behind a drawing of a switch
    page.locator("input[type=checkbox], [role=switch]").first.evaluate("it => it.click()")
    shop.browser.open("/assets/kafka/orders?view=checks")
    shop.browser.sees("Passed")
    shop.browser.sees(re.compile("Kafka is reachable; lag"))

    shop.kafka.stop()
    try:
        shop.browser.sees("Failed")
        shop.browser.sees(re.compile(re.escape(shop.topic.bootstrap_servers)))
    finally:
        shop.kafka.start()

    shop.browser.sees("Passed")
    shop.browser.open("/assets/kafka/orders")
    for shown in ("lag_of_orders", "7.00 days", shop.topic.bootstrap_servers):
        shop.browser.sees(shown)
