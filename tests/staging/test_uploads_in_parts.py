"""What Spark stages in a bucket in several parts, over a link that breaks between them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from http import HTTPStatus

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eo_pipeline.bucket import BucketPath
from eo_pipeline.embedded.objects import EmbeddedObjectStore
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.places import files_below
from tests.proxy import Cut, Proxy

#: The least that S3 takes for any part but the last.
PART_BYTES = 5 * 1024**2


def uploads_left(server: EmbeddedObjectStore, bucket: str) -> list[str]:
    """Uploads of parts that nobody finished or gave up, as the store itself keeps them."""
    asked = urllib.request.Request(
        f"{server.filer}/buckets/{bucket}/.uploads/?limit=100",
        headers={"Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as said:
            return [each["FullPath"] for each in json.load(said)["Entries"] or ()]
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:  # there never was one
            return []
        raise


def test_a_part_whose_connection_breaks_is_sent_again_and_nothing_is_left(
    objects: EmbeddedObjectStore, spark_server: EmbeddedSpark
) -> None:
    """Scenario: one task's file of several parts; the link breaks at the second part, once before
    the store hears it and once before it answers, and at the request that puts them together.
    Outcome: the rows are there, once, and no part of an upload waits for ever.
    """
    name = f"parts-{uuid.uuid4().hex[:8]}"  # Spark holds on to where a bucket was
    objects.bucket(name)
    session = SparkSession.builder.remote(spark_server.remote).getOrCreate()
    with Proxy(objects.host, objects.port) as proxy:
        storage = objects.storage_by(f"http://127.0.0.1:{proxy.port}")
        place = storage.place(f"s3://{name}/rows")
        assert isinstance(place, BucketPath)
        options = {**place.bucket.hadoop, "fs.s3a.multipart.size": str(PART_BYTES)}
        rows = session.range(0, 2_500_000, 1, 1).select("id", F.rand(7).alias("x"))
        for number, (word, cut) in enumerate(
            [
                (b"partNumber=2", Cut.BEFORE_THE_REQUEST),
                (b"partNumber=2", Cut.BEFORE_THE_REPLY),
                (b"<CompleteMultipartUpload", Cut.BEFORE_THE_REQUEST),
            ]
        ):
            proxy.cut_at(word, cut)
            uri = f"s3a://{name}/rows/{number}"
            rows.write.options(**options).parquet(uri)
            assert proxy.is_through
            assert sum(size for _, size in files_below(place / str(number))) > 3 * PART_BYTES
            assert session.read.options(**options).parquet(uri).count() == 2_500_000
    assert uploads_left(objects, name) == []
