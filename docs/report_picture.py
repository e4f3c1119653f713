"""Takes the picture of `eo report`: ``python docs/report_picture.py``.

A broker, a PostgreSQL and a Spark of its own in a folder that is gone afterwards; a pipeline that
follows a topic, goes back, goes on and replays. Prints what `eo costs` says of it, and writes
docs/images/report.png from headless Chromium, CHROMIUM names it.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from PIL import Image
from playwright.sync_api import sync_playwright

from eo_pipeline.embedded.jars import kafka_broker_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark.connector import spark_connector_jars

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
STATE = ROOT / ".eo"


def publish(servers: str, count: int) -> None:
    """So many orders."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(count):
        value = {"id": number, "amount": round(random.random() * 90, 2), "currency": "EUR"}
        producer.produce("orders", json.dumps(value).encode(), str(number % 97).encode())
        producer.poll(0)
    producer.flush(120)


def create_topic(servers: str) -> None:
    """Of three partitions."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 3)])["orders"].result(60)


def eo(folder: Path, *arguments: str) -> str:
    """What the command says."""
    command = [sys.executable, "-m", "eo_pipeline.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def history(folder: Path, servers: str) -> None:
    """Runs, a rewind and what follows it, replays."""

    def runs(*counts: int) -> None:
        for count in counts:
            publish(servers, count)
            eo(folder, "run")

    runs(40_000, 12_000, 25_000, 31_000, 18_000, 22_000)
    eo(folder, "rewind", "3", "--yes", "--reason", "wrong currency since 09:00")
    runs(9_000, 14_000, 21_000)
    eo(folder, "replay", "2", "3", "--yes", "--reason", "the rates were corrected")
    runs(16_000, 11_000, 24_000, 13_000)
    publish(servers, 3_500)


def document(folder: Path, servers: str, dsn: str) -> None:
    """The pipeline that all this is about."""
    (folder / "pipeline.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "orders",
                "source": {
                    "bootstrap_servers": servers,
                    "topics": ["orders"],
                    "value_schema": "id BIGINT NOT NULL, amount DECIMAL(12,2), currency STRING",
                    "max_records": 30_000,
                },
                "sink": {"type": "postgres", "dsn": dsn, "table": "orders"},
            }
        )
    )


def shoot(page: Path, image: Path) -> None:
    """The page as a browser shows it, in few colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": 1200, "height": 900}
        shown = browser.new_page(viewport=size)
        shown.goto(page.as_uri())
        shot = Image.open(io.BytesIO(shown.screenshot(full_page=True))).convert("RGB")
        browser.close()
    few = shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(image, optimize=True)
    sys.stdout.write(f"{image.name} {image.stat().st_size:,} bytes\n")


def main() -> None:
    """All of it."""
    with (
        tempfile.TemporaryDirectory() as name,
        # PostgreSQL's own user must get in
        tempfile.TemporaryDirectory(prefix="eo-postgres-") as data,
        EmbeddedKafka(Path(name) / "kafka", jars=kafka_broker_jars(STATE)) as kafka,
        EmbeddedPostgres(Path(data)) as postgres,
        EmbeddedSpark(Path(name) / "spark", jars=spark_connector_jars(STATE)) as spark,
    ):
        os.environ["SPARK_REMOTE"] = spark.remote
        folder = Path(name)
        create_topic(kafka.bootstrap_servers)
        document(folder, kafka.bootstrap_servers, postgres.dsn)
        history(folder, kafka.bootstrap_servers)
        sys.stdout.write(eo(folder, "costs") + "\n" + eo(folder, "costs", "--by", "day") + "\n")
        sys.stdout.write(eo(folder, "report"))
        shoot(folder / "orders.html", IMAGES / "report.png")


if __name__ == "__main__":
    main()
