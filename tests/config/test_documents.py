"""What a wrong document says, and that no secret is ever shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql.types import LongType, StructField, StructType

from eo_pipeline import ConfigError, KafkaSource, Pipeline, PostgresSink, SparkSettings
from eo_pipeline.batch.read import read_ranges
from eo_pipeline.kafka.source import LossKind, StartAtTimestamp, librdkafka_settings, spark_settings
from eo_pipeline.ledger.offsets import OffsetRange
from tests.support.registry import record

GOOD: dict[str, Any] = {
    "name": "orders",
    "source": {
        "bootstrap_servers": "localhost:9092",
        "topics": ["orders"],
        "value_schema": "id BIGINT",
    },
    "sink": {"type": "postgres", "dsn": "postgresql://u:hunter2@localhost/db", "table": "orders"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """``GOOD`` with one field, ``a.b`` or ``a``, set."""
    part, _, field = path.partition(".")
    if not field:
        return {**GOOD, part: value}
    return {**GOOD, part: {**GOOD[part], field: value}}


def source(**fields: Any) -> KafkaSource:
    return KafkaSource(**{**GOOD["source"], **fields})


def test_a_good_document_is_a_pipeline() -> None:
    pipeline = Pipeline.from_config(GOOD)
    assert pipeline.name == "orders"
    assert pipeline.source.topics == ("orders",)
    assert pipeline.sink.table_name == "orders"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("name", "Not A Name", "name: "),
        ("source.max_records", 0, "source.max_records: "),
        ("source.start", "yesterday", "source.start"),
        ("source.start", {"timestamp": "2026-01-01T00:00:00"}, "source.start.timestamp.timestamp"),
        ("source.start", {"offsets": {"orders": {"0": -2}}}, "source.start.offsets"),
        ("source.topic_pattern", "x", "either topics or topic_pattern"),
        ("source.topics", ["orders", "orders"], "one topic twice"),
        ("source.value_schema", None, "either registry or value_schema"),
        ("source.misspelt", 1, "source.misspelt: "),
        ("source.client", {"group.id": "mine"}, "decided by the pipeline: group.id"),
        ("source.spark_options", {"kafka.auto.offset.reset": "latest"}, "auto.offset.reset"),
        ("transform", "no_such_module:f", "transform: "),
        ("transform", "tests.runs.transforms", "package.module:function"),
        ("spark", {"cores": 3}, "spark.cores: "),
        ("sink.type", "floppy", "sink.type"),
        ("sink.mode", "replace", "mode"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        Pipeline.from_config(changed(path, value))
    assert said in str(wrong.value)
    assert "hunter2" not in str(wrong.value)


def test_every_wrong_field_is_named_at_once() -> None:
    config = {**GOOD, "name": "NO", "lineage": "perhaps", "inline_records": -1}
    with pytest.raises(ConfigError) as wrong:
        Pipeline.from_config(config)
    assert all(
        f"  {field}: " in str(wrong.value) for field in ("name", "lineage", "inline_records")
    )


def test_what_is_wrong_in_source_and_sink_and_beside_them_is_told_at_once() -> None:
    config = {
        "name": "NO",
        "source": {**GOOD["source"], "max_records": 0, "start": {"offsets": {"t": {"0": -1}}}},
        "sink": {**GOOD["sink"], "mode": "upset", "colour": 1, "lock_timeout": "hunter2"},
        "spark": {"cores": 3},
        "transform": "no_such_module:f",
    }
    with pytest.raises(ConfigError) as wrong:
        Pipeline.from_config(config)
    heading, *lines = str(wrong.value).splitlines()
    assert heading == "the pipeline's configuration is not valid:"
    assert [line.partition(": ")[0].strip() for line in lines] == [
        "name",
        "source.start.offsets.offsets.t.0",
        "source.max_records",
        "sink.mode",
        "sink.lock_timeout",
        "sink.colour",
        "transform",
        "spark.cores",
    ]
    assert "hunter2" not in str(wrong.value)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ({"type": "floppy"}, "sink.type: no sink 'floppy'; there are "),
        ({"table": "orders"}, "sink.type: is required, one of "),
        ("postgres", "sink: Input should be "),
        (None, "sink: Input should be "),
    ],
)
def test_a_sink_that_is_none_hides_nothing_else(sink: Any, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        Pipeline.from_config({**GOOD, "name": "NO", "sink": sink})
    assert "\n  name: " in str(wrong.value)
    assert f"\n  {said}" in str(wrong.value)


@pytest.mark.parametrize(
    ("construct", "said"),
    [
        (lambda: source(max_records=0), ["KafkaSource is not valid:", "max_records: "]),
        (lambda: source(topics=()), ["KafkaSource is not valid:", "give either topics or "]),
        (
            lambda: PostgresSink(dsn="postgresql://u:hunter2@h/db", table="t", mode="x"),
            ["PostgresSink is not valid:", "mode: "],
        ),
        (
            lambda: Pipeline(**{**GOOD, "name": "NO", "source": {"topics": ["hunter2"]}}),
            ["Pipeline is not valid:", "name: ", "source.bootstrap_servers: "],
        ),
        (lambda: SparkSettings(cores=3), ["SparkSettings is not valid:", "cores: "]),  # type: ignore[call-arg]
    ],
)
def test_in_python_too_every_wrong_field_is_named_and_no_value_shown(
    construct: Callable[[], object], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as wrong:
        construct()
    lines = str(wrong.value).splitlines()
    assert len(lines) == len(said)
    assert all(line.strip().startswith(text) for line, text in zip(lines, said, strict=True))
    assert "hunter2" not in str(wrong.value)


def test_a_pattern_that_is_no_regular_expression_is_an_error() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        Pipeline.from_config(
            {**GOOD, "source": {**GOOD["source"], "topics": [], "topic_pattern": "("}}
        )


def test_secrets_never_show() -> None:
    client = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "hunter2"}
    pipeline = Pipeline.from_config(changed("source.client", client))
    for shown in (repr(pipeline), str(pipeline), pipeline.model_dump_json(), str(pipeline.sink)):
        assert "hunter2" not in shown
    assert "hunter2" not in str(pipeline.sink.describe())


def test_a_yaml_document_takes_its_secrets_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(
        "name: orders\n"
        "source: {bootstrap_servers: '${BROKERS:-localhost:9092}', topics: [orders],"
        " value_schema: 'id BIGINT'}\n"
        "sink: {type: postgres, dsn: '${ORDERS_DSN}', table: orders}\n"
    )
    with pytest.raises(ConfigError, match="ORDERS_DSN"):
        Pipeline.from_yaml(path)
    monkeypatch.setenv("ORDERS_DSN", "postgresql://u:hunter2@localhost/db")
    assert Pipeline.from_yaml(path).source.bootstrap_servers == "localhost:9092"


@pytest.mark.parametrize("text", ["a: [", "- a list", "just text", ""])
def test_a_file_that_is_no_pipeline_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        Pipeline.from_yaml(path)
    with pytest.raises(ConfigError, match="No such file"):
        Pipeline.from_yaml(tmp_path / "absent.yaml")


def test_a_struct_type_is_as_good_as_ddl() -> None:
    schema = StructType([StructField("id", LongType(), False)])
    assert source(value_schema=schema).value_schema == schema.json()


def test_a_schema_may_stand_in_a_file_beside_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order.ddl").write_text("id BIGINT NOT NULL,\n  name STRING\n")
    (tmp_path / "order.avsc").write_text(record(("id", "long")))
    document = tmp_path / "orders.yaml"
    monkeypatch.chdir(tmp_path.root)

    def read(file: str, **source: str) -> KafkaSource:
        values = {**GOOD, "source": {**GOOD["source"], **source, "value_schema": {"file": file}}}
        document.write_text(yaml.safe_dump(values))
        return Pipeline.from_yaml(document).source

    assert read("schemas/order.ddl").value_schema == "id BIGINT NOT NULL,\n  name STRING"
    assert read("order.avsc", value_format="avro").value_schema == record(("id", "long"))
    absent = str(tmp_path / "no.ddl")
    with pytest.raises(ConfigError, match=rf"source\.value_schema: {absent} cannot be read: "):
        read("no.ddl")


def test_start_modes_are_told_apart() -> None:
    start = source(start={"timestamp": "2026-01-31T12:00:00Z"}).start
    assert isinstance(start, StartAtTimestamp)
    assert source().start == "earliest"


def test_a_pattern_matches_whole_names_and_never_internal_topics() -> None:
    pattern = source(topics=(), topic_pattern="order.*|__.*")
    assert pattern.matches("orders")
    assert not pattern.matches("my-orders")
    assert not pattern.matches("__consumer_offsets")


def test_one_topic_needs_no_list() -> None:
    assert source(topics="orders").topics == ("orders",)
    assert source(topics="orders") == source(topics=["orders"])
    with pytest.raises(ConfigError, match="topic"):
        source(topics="")


def test_each_kind_of_loss_has_its_policy() -> None:
    lenient = source(on_retention="continue")
    assert [lenient.policy(kind) for kind in LossKind] == ["continue", *["fail"] * 4]


def test_the_consumer_group_is_fixed_per_pipeline_and_changes_with_what_is_read_and_how() -> None:
    settings = {"kafka.isolation.level": "read_committed", "kafka.sasl.jaas.config": "secret"}
    group = source().consumer_group("p", {"orders": "uuid-1"}, settings)
    assert group == source().consumer_group("p", {"orders": "uuid-1"}, settings)
    assert group != source().consumer_group("p", {"orders": "uuid-2"}, settings)
    assert group != source().consumer_group("q", {"orders": "uuid-1"}, settings)
    for changed in ({"kafka.isolation.level": "x"}, {"kafka.sasl.jaas.config": "rotated"}):
        other = source().consumer_group("p", {"orders": "uuid-1"}, settings | changed)
        assert other != group
        assert other.startswith("eo-p-")


def test_settings_reach_both_clients_each_in_its_own_words() -> None:
    both = source(
        client={
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": 'with "quotes" and \\',
            "ssl.endpoint.identification.algorithm": "none",
            "socket.keepalive.enable": True,
        }
    )
    admin, spark = librdkafka_settings(both), spark_settings(both)
    assert admin["sasl.mechanisms"] == "SCRAM-SHA-512"
    assert admin["socket.keepalive.enable"] == "true"
    assert spark["kafka.security.protocol"] == "SASL_SSL"
    assert spark["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert 'password="with \\"quotes\\" and \\\\";' in spark["kafka.sasl.jaas.config"]
    assert "ScramLoginModule" in spark["kafka.sasl.jaas.config"]
    assert "kafka.sasl.password" not in spark


class Conf(dict[str, str]):
    """Stands in for the settings of a session."""

    set = dict.__setitem__


class Reader:
    """Stands in for Spark's reader, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.conf = Conf()

    @property
    def read(self) -> Reader:
        return self

    def format(self, name: str) -> Reader:
        assert name == "kafka"
        return self

    def options(self, **options: str) -> Reader:
        self.told = options
        return self

    def load(self) -> Reader:
        return self


@pytest.mark.parametrize(
    ("given", "told"), [({}, "1"), ({"kafka.fetch.max.wait.ms": "250"}, "250")]
)
def test_spark_is_told_not_to_wait_half_a_second_at_the_end_of_a_log(
    given: dict[str, str], told: str
) -> None:
    reader: Any = Reader()
    ranges = [OffsetRange("orders", 0, 3, 5)]
    read_ranges(reader, source(spark_options=given), ranges, pipeline="p", topic_ids={})
    assert reader.told["kafka.fetch.max.wait.ms"] == told


def test_sasl_without_its_password_is_an_error() -> None:
    half = source(client={"sasl.mechanism": "PLAIN", "sasl.username": "me"})
    with pytest.raises(ConfigError, match=r"PLAIN also needs sasl\.password"):
        spark_settings(half)


@pytest.mark.parametrize(
    "option",
    [
        "startingTimestamp",
        "startingtimestamp",
        "startingOffsetsByTimestamp",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "failOnDataLoss",
        "includeHeaders",
        "subscribePattern",
        "groupIdPrefix",
        "kafka.group.id",
        "KAFKA.isolation.level",
        "kafka.interceptor.classes",
        "kafka.bootstrap.servers",
        "fetch.max.bytes",
    ],
)
def test_no_option_of_spark_decides_which_records_are_read(option: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"(?i){option}.* Allowed are .*minPartitions"
    ) as refused:
        source(spark_options={option: "1"})
    assert "kafka.fetch.max.bytes" in str(refused.value)


@pytest.mark.parametrize(
    "option",
    ["minPartitions", "minpartitions", "kafka.fetch.max.bytes", "kafka.sasl.jaas.config"],
)
def test_spark_may_be_told_how_to_divide_fetch_and_log_in(option: str) -> None:
    assert spark_settings(source(spark_options={option: "1"}))[option] == "1"
