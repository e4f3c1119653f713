"""One YAML document, one pipeline; and what happens when the document is wrong."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from eo_pipeline.dagster.component import KafkaPipelineComponent
from eo_pipeline.dagster.definitions import load_pipelines, pipeline_definitions
from eo_pipeline.dagster.naming import AssetKind
from eo_pipeline.dagster.yaml_values import resolve_texts
from eo_pipeline.errors import ConfigError
from eo_pipeline.pipeline import Pipeline
from tests.dagster.projects import write_project

MINIMAL = """
name: orders
source:
  bootstrap_servers: broker:9092
  topics: [orders, returns]
  value_format: raw
sink:
  type: postgres
  dsn: postgresql://user:%s@host/db
  table: orders
"""
SECRET = "correct-horse"


def project(folder: Path, *documents: str) -> dg.Definitions:
    """A project with these documents, loaded as Dagster loads it."""
    return load_pipelines(write_project(folder, *documents))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that Python imports from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def keys(definitions: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in definitions.resolve_all_asset_keys()}


def test_a_document_becomes_assets_checks_a_job_sensors_and_a_resource() -> None:
    component = KafkaPipelineComponent.resolve_from_yaml(MINIMAL % SECRET)
    pipeline = Pipeline.from_config(component.pipeline_config())
    definitions = pipeline_definitions(pipeline)
    dg.Definitions.validate_loadable(definitions)

    ours = {"orders", "orders_offsets", "orders_checkpoints"}
    assert keys(definitions) == ours | {"kafka/orders", "kafka/returns"}
    names = {sensor.name for sensor in definitions.sensors or ()}
    assert names == {"orders_lag", "orders_partitions", "orders_reconciler"}
    statuses = {sensor.default_status for sensor in definitions.sensors or ()}
    assert statuses == {dg.DefaultSensorStatus.STOPPED}, "Dagster's own default"
    assert definitions.resolve_job_def("orders_job")
    assert set(definitions.resources or ()) == {"orders_spark"}


def test_what_a_document_leaves_out_keeps_the_defaults_of_the_engine() -> None:
    component = KafkaPipelineComponent.resolve_from_yaml(MINIMAL % SECRET)
    assert component.pipeline_config().keys() == {"name", "source", "sink"}


def test_a_document_may_say_all_that_a_pipeline_does() -> None:
    assert Pipeline.model_fields.keys() <= KafkaPipelineComponent.model_fields.keys()
    document = MINIMAL % SECRET + "maintenance: {keep: 30d}\n"
    component = KafkaPipelineComponent.resolve_from_yaml(document)
    assert Pipeline.from_config(component.pipeline_config()).maintenance.keep == "30d"


TABLES = """
name: shop
source:
  bootstrap_servers: broker:9092
  topics: [orders, customers]
sink:
  type: postgres
  dsn: postgresql://user:%s@host/db
  schema: sales
tables:
  - {name: orders, topics: orders, value_schema: {file: order.ddl}}
  - {name: customers, topics: customers, value_schema: "id BIGINT NOT NULL, name STRING"}
rest: ignore
"""


def test_each_of_several_tables_is_an_asset(mine: Path) -> None:
    package = write_project(mine, TABLES % SECRET)
    (package / "defs" / "orders" / "order.ddl").write_text("id BIGINT NOT NULL, customer BIGINT")
    definitions = load_pipelines(package)
    dg.Definitions.validate_loadable(definitions)
    tables = {"shop/orders", "shop/customers"}
    assert {"shop", "shop_offsets", *tables} <= keys(definitions)
    job = definitions.resolve_job_def("shop_job")
    selected = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert selected == {"shop", "shop_offsets", *tables}
    specs = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    customers = specs["shop/customers"]
    assert {dep.asset_key.to_user_string() for dep in customers.deps} == {"kafka/customers"}
    assert customers.metadata["dagster/table_name"] == "db.sales.customers"
    columns = customers.metadata["dagster/column_schema"].columns
    assert [column.name for column in columns] == ["id", "name"]


def test_what_is_wrong_in_a_table_is_told_with_its_line() -> None:
    wrong = TABLES.replace("topics: customers, value", "topics: customers, valu")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r":12 - tables.1.valu_schema"):
        KafkaPipelineComponent.resolve_from_yaml(
            wrong.replace("{file: order.ddl}", "id BIGINT") % SECRET
        )


@pytest.mark.parametrize(
    ("document", "line", "field", "said"),
    [
        (
            MINIMAL.replace("topics: [orders, returns]", "topic_pattern: '['"),
            3,
            "source",
            "regular",
        ),
        (MINIMAL.replace("raw", "jsn"), 6, "source.value_format", "or 'raw'"),
        (MINIMAL.replace("  value_format: raw", "  max_records: 0"), 6, "source.max_records", "0"),
        (MINIMAL.replace("  table: orders", "  tabel: orders"), 10, "sink.tabel", "not permitted"),
        (MINIMAL.replace("  table: orders", "  mode: upset"), 10, "sink.mode", "'append' or"),
        (MINIMAL.replace("name: orders", "name: Orders!"), 2, "name", "pattern"),
        (MINIMAL + "transform: nowhere:nothing\n", 11, "transform", "cannot be imported"),
        (MINIMAL + "spark: {masters: x}\n", 11, "spark.masters", "not permitted"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_field_and_without_the_secret(
    document: str, line: int, field: str, said: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        KafkaPipelineComponent.resolve_from_yaml(document % SECRET)
    text = str(caught.value)
    assert f":{line} - {field}: " in text
    assert said in text
    assert SECRET not in text


def test_all_that_is_wrong_is_told_at_once_each_at_its_line() -> None:
    wrong = MINIMAL.replace("raw", "jsn").replace("  table: orders", "  mode: upset")
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        KafkaPipelineComponent.resolve_from_yaml(
            wrong.replace("name: orders", "name: Orders!") % SECRET
        )
    places = (":2 - name", ":6 - source.value_format", ":10 - sink.mode", ":7 - sink.table")
    assert [place for place in places if f"{place}: " not in str(caught.value)] == []


def test_an_unknown_field_hides_nothing_else(mine: Path) -> None:
    wrong = (MINIMAL % SECRET).replace("raw", "jsn") + "shedule: '* * * * *'\nname: twice\n"
    package = write_project(mine, wrong)
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        load_pipelines(package)
    told = str(caught.value)
    assert "attributes.shedule: there is no such field; did you mean schedule?" in told
    assert "attributes.source.value_format: " in told
    assert "attributes.name: is given twice, in line 4 and in line 14" in told
    assert "pydantic" not in told
    assert SECRET not in told


def test_relative_paths_start_at_the_document(mine: Path) -> None:
    paths = (MINIMAL % SECRET) + "staging: rows\n"
    (definitions,) = [load_pipelines(write_project(mine, paths))]
    assert definitions.resolve_job_def("orders_job")
    component = KafkaPipelineComponent.resolve_from_yaml(paths)
    assert Pipeline.from_config(component.pipeline_config()).staging == Path.cwd() / "rows"


def test_all_that_is_wrong_in_all_documents_is_told_at_once(mine: Path) -> None:
    wrong = (MINIMAL % SECRET).replace("raw", "jsn") + "lag_threshold: nope\n"
    another = (MINIMAL % SECRET).replace("name: orders", "name: returns")
    package = write_project(mine, wrong, another.replace("  table: orders", "  tabel: orders"))
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        load_pipelines(package)
    told = str(caught.value)
    file = package / "defs" / "orders" / "defs.yaml"
    for line, field in (
        (8, "source.value_format"),
        (13, "lag_threshold"),
        (23, "sink.table"),
        (26, "sink.tabel"),
    ):
        assert f"{file}:{line} - attributes.{field}: " in told
    assert len(told.splitlines()) == 5
    assert caught.value.__cause__ is None, "one stack, not three"
    assert SECRET not in told


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (("a-b", "a_b"), "the step 'eo_a_b'"),
        (("p", "p_offsets"), "the asset 'p_offsets'"),
        (("p", "p"), "the pipeline 'p'"),
    ],
)
def test_pipelines_whose_names_meet_are_told_of_with_both_documents(
    mine: Path, names: tuple[str, str], shared: str
) -> None:
    """Found before: Dagster's own error, "Duplicate asset key", for the whole location."""
    minimal = MINIMAL % SECRET
    documents = [minimal.replace("name: orders", f"name: {name}") for name in names]
    package = write_project(mine, *documents, MINIMAL % SECRET)
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        load_pipelines(package)
    file = package / "defs" / "orders" / "defs.yaml"
    [told] = str(caught.value).splitlines()[1:]
    assert told.strip() == (
        f"{file}:17 - attributes.name: {shared} is also defined by the pipeline in {file}:4; "
        "rename one"
    )


def test_a_variable_that_is_not_set_is_named_and_nothing_that_follows_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BROKERS", raising=False)
    monkeypatch.delenv("PASSWORD", raising=False)
    document = (MINIMAL % "{{ env.PASSWORD }}").replace("broker:9092", "\"{{ env('BROKERS') }}\"")
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        KafkaPipelineComponent.resolve_from_yaml(document)
    told = str(caught.value).splitlines()[1:]
    assert [line.partition(" - ")[2] for line in told] == [
        "source.bootstrap_servers: the variable BROKERS is not set in the environment",
        "sink.dsn: the variable PASSWORD is not set in the environment",
    ]
    monkeypatch.setenv("BROKERS", "h:1")
    monkeypatch.setenv("PASSWORD", "p")
    assert KafkaPipelineComponent.resolve_from_yaml(document).source["bootstrap_servers"] == "h:1"


def test_a_sink_that_does_not_exist_is_told_with_those_that_do() -> None:
    document = MINIMAL.replace("type: postgres", "type: oracle") % SECRET
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match=r":8 - sink.type: no sink 'oracle'; there "
    ):
        KafkaPipelineComponent.resolve_from_yaml(document)


def test_secrets_come_from_the_environment_exactly_as_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dagster would read ``1e5`` as a number and strip the quotes of ``'x'``."""
    context = dg.ResolutionContext.default()
    for password in ("1e5", "1_000", "'x'", "0123", "True", "a b"):
        monkeypatch.setenv("PASSWORD", password)
        texts = ["{{ env.PASSWORD }}", "p={{ env.PASSWORD }}"]
        assert resolve_texts(context, texts) == [password, f"p={password}"]


def test_a_schema_in_a_file_is_looked_for_beside_the_document(mine: Path) -> None:
    named = (MINIMAL % SECRET).replace("value_format: raw", "value_schema: {file: order.ddl}")
    with pytest.raises(
        dg.DagsterInvalidDefinitionError, match=r"value_schema: .*order\.ddl cannot"
    ):
        project(mine, named)
    [written] = mine.rglob("defs.yaml")
    (written.parent / "order.ddl").write_text("id BIGINT, more STRING")
    columns = load_pipelines(written.parents[2]).resolve_asset_graph()
    schema = columns.get(dg.AssetKey("orders")).metadata["dagster/column_schema"]
    assert [column.name for column in schema.columns][:2] == ["id", "more"]


PLACE = """{"type": "record", "name": "P", "fields": [{"name": "city", "type": "string"}]}"""
CITY = """{"type": "object", "properties": {"city": {"type": "string"}}}"""
CODE = """syntax = "proto3"; message P { int32 code = 1; }"""
VALUES = "value_schema: id BIGINT"


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        ("key_format: text", {"key": "STRING"}),
        ("key_format: json\n  key_schema: city STRING NOT NULL", {"key_city": "STRING"}),
        (f"key_format: json\n  key_schema: '{CITY}'", {"key_city": "STRING"}),
        ("""key_format: json\n  key_schema: '{"type": "integer"}'""", {"key": "BIGINT"}),
        (f"key_format: avro\n  key_prefix: k_\n  key_schema: '{PLACE}'", {"k_city": "STRING"}),
        ("key_format: avro\n  key_schema: long", {"key": "BIGINT"}),
        (f"key_format: protobuf\n  key_schema: '{CODE}'", {"key_code": "INT"}),
    ],
    ids=["text", "ddl", "json schema", "plain json", "avro", "plain avro", "protobuf"],
)
def test_the_columns_of_keys_are_shown_of_topic_and_table(
    mine: Path, keys: str, columns: dict[str, str]
) -> None:
    document = (MINIMAL % SECRET).replace("value_format: raw", f"{VALUES}\n  {keys}")
    graph = project(mine, document).resolve_asset_graph()
    told = [graph.get(key).metadata for key in graph.get_all_asset_keys()]
    schemas = [each["dagster/column_schema"] for each in told if "dagster/column_schema" in each]
    assert len(schemas) == 3, "two topics and the table"
    for schema in schemas:
        shown = {each.name: each.type for each in schema.columns}
        assert {name: shown[name] for name in columns} == columns
        assert all(c.constraints.nullable for c in schema.columns if c.name in columns)
    lineage = graph.get(dg.AssetKey("orders")).metadata["dagster/column_lineage"]
    assert lineage.deps_by_column.keys() >= columns.keys()


@pytest.mark.parametrize(
    "schema",
    [
        """value_format: avro
  value_schema: '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}'""",
        """value_format: protobuf
  value_schema: 'syntax = "proto3"; message A { int32 a = 1; }'""",
    ],
    ids=["avro", "protobuf"],
)
def test_the_columns_of_a_schema_that_is_not_sparks_are_shown(mine: Path, schema: str) -> None:
    document = (MINIMAL % SECRET).replace("value_format: raw", schema)
    columns = project(mine, document).resolve_asset_graph()
    shown = columns.get(dg.AssetKey("orders")).metadata["dagster/column_schema"].columns
    assert [(each.name, each.type) for each in shown] == [("a", "INT")]


def test_templates_may_still_yield_things_that_are_not_texts() -> None:
    context = dg.ResolutionContext.default().with_scope(topics=["a", "b"], nothing=None)
    assert resolve_texts(context, {"a": "{{ topics }}", "b": "{{ nothing }}", "c": 7}) == {
        "a": ["a", "b"],
        "b": None,
        "c": 7,
    }


def test_no_secret_reaches_dagster(mine: Path) -> None:
    spark = "spark: {config: {spark.hadoop.secret: %s}}\n"
    client = "value_format: raw\n  client: {sasl.password: %s}"
    document = (MINIMAL.replace("value_format: raw", client) + spark) % (SECRET, SECRET, SECRET)

    definitions = project(mine, document)

    snapshot = serialize_value(RepositorySnap.from_def(definitions.get_repository_def()))
    assert "orders_offsets" in snapshot
    assert SECRET not in snapshot
    assert SECRET not in repr(definitions.assets)


def test_several_documents_may_share_a_file_and_a_topic(
    mine: Path, recwarn: pytest.WarningsRecorder
) -> None:
    other = (MINIMAL % SECRET).replace("name: orders", "name: archive")
    definitions = project(mine, MINIMAL % SECRET, other)
    dg.Definitions.validate_loadable(definitions)
    assert {"orders", "archive", "kafka/orders"} <= keys(definitions)
    # a file of an earlier test may be collected, and warn, within this one
    warned = [w for w in recwarn.list if not issubclass(w.category, ResourceWarning)]
    assert [str(w.message) for w in warned] == []


def test_sensors_and_schedule_start_as_the_document_says() -> None:
    document = MINIMAL % SECRET + 'schedule: "0 * * * *"\nlag_threshold: null\nsensors: running\n'
    component = KafkaPipelineComponent.resolve_from_yaml(document)
    pipeline = Pipeline.from_config(component.pipeline_config())
    definitions = pipeline_definitions(pipeline, component)
    sensors = list(definitions.sensors or ())
    assert {s.name for s in sensors} == {"orders_partitions", "orders_reconciler"}
    assert {s.default_status for s in sensors} == {dg.DefaultSensorStatus.RUNNING}
    [schedule] = definitions.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


TRANSLATION = """
translation:
  key_prefix: sales
  group_name: "{{ 'history' if asset == 'checkpoints' else 'sales' }}"
  owners: ["team:sales"]
run_tags: {team: sales}
op_tags: {dagster/priority: "3"}
pool: postgres
"""


def test_keys_groups_tags_and_pool_are_what_the_document_says(mine: Path) -> None:
    definitions = project(mine, MINIMAL % SECRET + TRANSLATION)

    ours = {"sales/orders", "sales/orders_offsets", "sales/orders_checkpoints"}
    assert keys(definitions) == ours | {"kafka/orders", "kafka/returns"}
    graph = definitions.resolve_asset_graph()
    groups = {k.to_user_string(): graph.get(k).group_name for k in graph.materializable_asset_keys}
    assert groups == dict.fromkeys(ours, "sales") | {"sales/orders_checkpoints": "history"}
    assert {check.asset_key.to_user_string() for check in graph.asset_check_keys} == {
        "sales/orders",
        "sales/orders_offsets",
        "kafka/orders",
        "kafka/returns",
    }
    table = graph.get(dg.AssetKey(["sales", "orders"]))
    assert table.owners == ["team:sales"]
    assert table.kinds == {"postgres", "pyspark"}
    assert table.pools == {"postgres"}
    job = definitions.resolve_job_def("orders_job")
    assert job.tags["team"] == "sales"
    steps = {node.name: node.tags for node in job.all_node_defs}
    assert steps["eo_orders"]["dagster/priority"] == "3"


class Shouting(KafkaPipelineComponent):
    """As somebody overrides it in a project."""

    def get_asset_spec(self, spec: dg.AssetSpec, asset: AssetKind) -> dg.AssetSpec:
        path = [*spec.key.path[:-1], spec.key.path[-1].upper()]
        spec = super().get_asset_spec(spec, asset)
        return spec.replace_attributes(key=dg.AssetKey(path)) if asset == "table" else spec


def test_the_executor_of_other_assets_is_left_alone(mine: Path) -> None:
    package = write_project(mine, MINIMAL % SECRET)
    assert load_pipelines(package).executor is dg.in_process_executor
    (package / "defs" / "report.py").write_text(REPORT)
    assert load_pipelines(package).executor is None


#: Somebody's own asset, below the table.
REPORT = """
import dagster as dg

@dg.asset(deps=["orders"])
def report() -> None: ...
"""


def test_a_subclass_says_it_in_python() -> None:
    component = Shouting.resolve_from_yaml(MINIMAL % SECRET)
    definitions = component.build_defs(dg.ComponentTree.for_test().load_context)
    assert keys(definitions) >= {"ORDERS", "orders_offsets", "orders_checkpoints"}


def test_a_key_that_depends_on_more_than_the_key_is_refused() -> None:
    def by_kind(spec: dg.AssetSpec, _: AssetKind) -> dg.AssetSpec:
        return spec.replace_attributes(key=spec.key.with_prefix(sorted(spec.kinds)))

    component = KafkaPipelineComponent.resolve_from_yaml(MINIMAL % SECRET)
    pipeline = Pipeline.from_config(component.pipeline_config())
    with pytest.raises(ConfigError, match="Derive the new key"):
        pipeline_definitions(pipeline, translation=by_kind)


@pytest.mark.parametrize(
    "text",
    ["orders", "1e5", "[a, b]", "['a']", "a\n", "a\n\n", "\n", "True", "}}", "{ x }", "a\r\n"],
)
def test_a_text_that_is_no_template_is_what_dagster_makes_of_it(text: str) -> None:
    context = dg.ResolutionContext.default()
    assert resolve_texts(context, text) == context.resolve_value(text, as_type=object)
