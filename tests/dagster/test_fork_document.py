"""The document that a fork hands back: ready, and without a secret."""

from __future__ import annotations

import pytest
import yaml

from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.dagster.jobs import fork_document
from eo_pipeline.dagster.launchpad import ForkRequest
from eo_pipeline.pipeline import Pipeline

DOCUMENT = """
name: orders
source:
  bootstrap_servers: "{{ env.BROKERS }}"
  topics: [orders]
  value_schema: "id BIGINT NOT NULL, amount DECIMAL(12,2)"
  client:
    sasl.password: %s
sink:
  type: postgres
  dsn: %s
  table: sales.orders
schedule: "*/15 * * * *"
lag_threshold: 100
group: sales
"""
SECRET = "correct-horse"


def forked(document: str, **asked: object) -> str:
    component = KafkaPipelineComponent.resolve_from_yaml(document)
    assert component._document is not None
    pipeline = Pipeline.from_config(component.pipeline_config())
    request = ForkRequest(at={"version": 3}, **asked)  # type: ignore[arg-type]
    return fork_document(component._document, pipeline, request)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKERS", "PASSWORD", "DSN", "OTHER", "ORDERS_B_DSN", "ORDERS_B_SASL_PASSWORD"):
        monkeypatch.setenv(name, "postgresql://h/db" if "DSN" in name else "broker:9092")


def test_it_is_this_pipelines_with_another_name_and_table_and_loads() -> None:
    text = forked(
        DOCUMENT % ('"{{ env.PASSWORD }}"', '"{{ env.DSN }}"'),
        name="orders_b",
        sink={"table": "sales.orders_b"},
    )
    told = yaml.safe_load(text)
    assert told["type"] == "eo_pipeline.dagster.KafkaPipelineComponent"
    attributes = told["attributes"]
    assert attributes["name"] == "orders_b"
    assert attributes["sink"] == {
        "type": "postgres",
        "dsn": "{{ env.DSN }}",
        "table": "sales.orders_b",
    }
    assert attributes["source"]["client"] == {"sasl.password": "{{ env.PASSWORD }}"}
    assert attributes["schedule"] == "*/15 * * * *"
    assert "group" not in attributes, "it would share the group's 'Materialize all'"
    assert told["requirements"] == {"env": ["BROKERS", "DSN", "PASSWORD"]}
    again = KafkaPipelineComponent.resolve_from_yaml(yaml.safe_dump(attributes))
    assert (again.name, again.lag_threshold) == ("orders_b", 100)
    assert again.sink["table"] == "sales.orders_b"


def test_a_secret_that_stands_in_clear_becomes_a_variable() -> None:
    dsn = f"postgresql://u:{SECRET}@h/db"
    text = forked(DOCUMENT % (SECRET, dsn), name="orders_b", sink={"table": "b"})
    assert SECRET not in text
    told = yaml.safe_load(text)
    assert told["attributes"]["sink"]["dsn"] == "{{ env.ORDERS_B_DSN }}"
    assert set(told["requirements"]["env"]) == {
        "BROKERS",
        "ORDERS_B_DSN",
        "ORDERS_B_SASL_PASSWORD",
    }


def test_a_whole_sink_takes_the_place_of_the_old_one_and_variables_become_templates() -> None:
    text = forked(
        DOCUMENT % ('"{{ env.PASSWORD }}"', '"{{ env.DSN }}"'),
        name="orders_b",
        sink={"type": "delta", "path": "${OTHER:-/lake}/orders"},
    )
    sink = yaml.safe_load(text)["attributes"]["sink"]
    assert sink == {"type": "delta", "path": "{{ env('OTHER', '/lake') }}/orders"}


def test_secrets_of_registries_and_of_sinks_clients_become_variables_too() -> None:
    login = f"basic.auth.user.info: 'u:{SECRET}'"
    source = f"""
  value_format: avro
  registry: {{url: "http://r", client: {{{login}}}}}
  client:
    sasl.password: %s
sink:
  type: kafka
  bootstrap_servers: broker:9092
  topic: made
  value_format: avro
  client: {{sasl.password: {SECRET}-sink}}
  registry: {{url: "http://r", client: {{{login}}}}}
"""
    head, _, rest = DOCUMENT.partition("  value_schema:")
    document = head + source.lstrip("\n") + rest.partition("  table: sales.orders\n")[2]
    text = forked(document % SECRET, name="orders_b", sink={"topic": "other"})
    assert SECRET not in text
    told = yaml.safe_load(text)
    assert told["attributes"]["sink"]["client"] == {
        "sasl.password": "{{ env.ORDERS_B_SINK_CLIENT_SASL_PASSWORD }}"
    }
    assert set(told["requirements"]["env"]) == {
        "BROKERS",
        "ORDERS_B_SASL_PASSWORD",
        "ORDERS_B_SINK_CLIENT_SASL_PASSWORD",
        "ORDERS_B_SINK_REGISTRY_CLIENT_BASIC_AUTH_USER_INFO",
        "ORDERS_B_SOURCE_REGISTRY_CLIENT_BASIC_AUTH_USER_INFO",
    }


def test_a_secret_that_the_request_brings_for_another_kind_of_sink_is_none_of_the_text() -> None:
    asked = {"type": "postgres", "dsn": f"postgresql://u:{SECRET}@h/db", "table": "b"}
    text = forked(DOCUMENT % ("x", "postgresql://h/db"), name="orders_b", sink=asked)
    assert SECRET not in text
    config = "spark: {config: {spark.hadoop.secret: %s}}\n" % SECRET  # noqa: UP031
    text = forked(
        DOCUMENT % ("x", "postgresql://h/db") + config, name="orders_b", sink={"table": "b"}
    )
    assert "env.ORDERS_B_SPARK_HADOOP_SECRET" in text
    lake = {"type": "delta", "path": "s3://b/t", "storage": {"secret_access_key": SECRET}}
    assert SECRET not in forked(DOCUMENT % ("x", "postgresql://h/db"), name="orders_b", sink=lake)
