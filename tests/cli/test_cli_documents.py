"""Documents of both kinds mean one pipeline each; their templates survive a change."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eo_pipeline import ConfigError, KafkaSource, Pipeline
from eo_pipeline.cli.options import choose, documents, load, pairs, version_or_time
from eo_pipeline.cli.output import duration
from eo_pipeline.config.documents import documents_in

PLAIN = """
name: plain
source:
  bootstrap_servers: ${BROKERS:-localhost:9092}
  topics: [orders]
  value_schema: id BIGINT
sink:
  type: postgres
  dsn: ${SECRET_DSN}
  table: orders
"""

COMPONENTS = """
type: eo_pipeline.dagster.KafkaPipelineComponent
attributes:
  name: one
  description: only for Dagster
  schedule: "*/15 * * * *"
  spark:
  source:
    bootstrap_servers: "{{ env('BROKERS', 'localhost:9092') }}"
    topics: [orders]
    value_schema: id BIGINT
  sink:
    type: mysql
    user: me
    password: "{{ env.PASSWORD }}"
    database: db
    port: "{{ env('PORT', '3307') }}"
    table: ${not_a_variable_here}
---
type: some.other.Component
attributes: {name: not-ours}
---
type: mine.Extended
attributes:
  name: two
  source: {bootstrap_servers: h, topics: [orders], value_format: raw}
  sink: {type: console}
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EO_PIPELINES", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return put


def names(*files: Path) -> list[str]:
    return [document.name for document in documents(list(files), None)]


def test_one_file_holds_several_components_and_others_are_none_of_ours(write: Write) -> None:
    assert names(write("defs.yaml", COMPONENTS)) == ["one", "two"]


def test_texts_of_a_component_stay_texts_whatever_they_look_like(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "1e5")
    config = documents([write("defs.yaml", COMPONENTS)], "one")[0].config(Pipeline.model_fields)
    assert config["sink"]["password"] == "1e5"
    assert config["sink"]["port"] == "3307"
    assert config["sink"]["table"] == "${not_a_variable_here}"
    assert config.keys() == {"name", "source", "sink"}
    assert load(documents([write("defs.yaml", COMPONENTS)], "two")[0]).name == "two"


@pytest.mark.parametrize(("text", "name"), [(PLAIN, "plain"), (COMPONENTS, "one")])
def test_an_unset_variable_is_named_and_concerns_only_its_own_pipeline(
    write: Write, text: str, name: str
) -> None:
    path = write("it.yaml", text)
    assert name in names(path)
    with pytest.raises(ConfigError, match=r"SECRET_DSN|PASSWORD"):
        load(documents([path], name)[0])


def test_a_change_keeps_templates_and_what_only_dagster_reads(write: Write) -> None:
    for text, name in ((PLAIN, "plain"), (COMPONENTS, "one")):
        old = documents([write("it.yaml", text)], name)[0]
        new = old.changed(name="new", sink={**old.fields["sink"], "table": "t2"})
        (again,) = documents_in(write("new.yaml", new.text()))
        expected: dict[str, Any] = {**old.fields, "name": "new"}
        expected["sink"] = {**old.fields["sink"], "table": "t2"}
        assert again.fields == expected
        assert again.raw.get("type") == old.raw.get("type")


def test_a_document_written_elsewhere_still_finds_its_schemas_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_DSN", "postgresql://nobody")
    write("a/order.ddl", "id BIGINT")
    inline = "value_schema: id BIGINT"
    assert inline in PLAIN
    path = write("a/it.yaml", PLAIN.replace(inline, "value_schema: {file: order.ddl}"))
    (document,) = documents_in(path)
    (moved,) = documents_in(write("b/it.yaml", document.text()))
    source = moved.config(Pipeline.model_fields)["source"]
    assert KafkaSource(**source).value_schema == "id BIGINT"


def test_all_that_is_wrong_with_a_document_is_told_at_once_each_in_its_line(write: Write) -> None:
    wrong = PLAIN.replace("id BIGINT", "id BIGINTT").replace("${SECRET_DSN}", "dbname=x")
    path = write("it.yaml", wrong + "sinc: {}\nname: [2]\nsink: {type: console, tabel: x}\n")
    with pytest.raises(ConfigError) as caught:
        load(next(documents_in(path)))
    assert str(caught.value).splitlines() == [
        f"{path}: the pipeline's configuration is not valid:",
        "  line 6: source.value_schema: field 'id' has the type BIGINTT, which Spark lacks; did "
        "you mean BIGINT?",
        "  line 11: sinc: Extra inputs are not permitted; did you mean sink?",
        "  line 12: name: is given twice, in line 2 and in line 12",
        "  line 12: name: Input should be a valid string",
        "  line 13: sink: is given twice, in line 7 and in line 13",
        "  line 13: sink.tabel: Extra inputs are not permitted",
    ]
    with pytest.raises(ConfigError, match="given twice"):
        Pipeline.from_yaml(path)


def test_a_key_that_is_given_twice_is_the_only_fault_there_is(write: Write) -> None:
    twice = PLAIN.replace("${SECRET_DSN}", "dbname=x").replace(
        "  topics: [orders]\n", "  topics: [orders]\n  topics: [returns]\n"
    )
    with pytest.raises(ConfigError, match=r"line 6: source.topics: is given twice, in line 5 and"):
        load(next(documents_in(write("it.yaml", twice))))
    anchors = "base: &base {topics: [orders], value_schema: id BIGINT}\n" + PLAIN.replace(
        "source:\n", "source:\n  <<: *base\n"
    )
    document = next(documents_in(write("merged.yaml", anchors)))
    assert document.twice == []
    endless = next(documents_in(write("endless.yaml", PLAIN + "more: &more [*more]\n")))
    assert endless.twice == []


#: A document with every field that is a path.
PATHS = """
name: paths
source:
  bootstrap_servers: localhost:9092
  topics: [orders]
  value_schema: {file: schemas/order.v1.ddl}
  client: {ssl.ca.location: ca.pem, security.protocol: ssl}
sink: SINK
staging: rows
spark: {py_files: [lib.zip, /opt/more.zip]}
"""


@pytest.mark.parametrize(
    ("sink", "field", "value"),
    [
        ("{type: delta, path: tables/t}", "path", "tables/t"),
        ("{type: parquet, path: ../t}", "path", "../t"),
        ("{type: iceberg, table: a.b, warehouse: lake}", "warehouse", "lake"),
        ("{type: iceberg, table: a.b}", "warehouse", ".eo/warehouse"),
        ("{type: iceberg, table: a.b, location: lake/b}", "location", "lake/b"),
        ("{type: console}", "ledger", ".eo/console"),
        ("{type: mysql, user: u, database: d, table: t, ssl_ca: ca.pem}", "ssl_ca", "ca.pem"),
    ],
)
def test_a_relative_path_starts_at_the_document(
    write: Write, tmp_path: Path, sink: str, field: str, value: str
) -> None:
    write("a/b/schemas/order.v1.ddl", "id BIGINT")
    for name in ("a/b/p.yaml", "a/b/../b/p.yaml"):
        path = write(name, PATHS.replace("SINK", sink))
        (document,) = documents_in(path.relative_to(tmp_path))
        pipeline = load(document)
        folder = tmp_path / "a" / "b"
        assert str(getattr(pipeline.sink, field)) == str((folder / value).resolve())
        assert pipeline.staging == folder / "rows"
        certificate = pipeline.source.client["ssl.ca.location"].get_secret_value()
        assert certificate == str(folder / "ca.pem")
        assert pipeline.source.value_schema == "id BIGINT"
        assert pipeline.spark.py_files == (str(folder / "lib.zip"), "/opt/more.zip")


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        ("s3://lake/t", "s3://lake/t"),
        ("file:///lake/t", "file:///lake/t"),
        ("/lake/t", "/lake/t"),
        ("${EO_LAKE:-/lake}/t", "/lake/t"),
        # a table of a catalog, which is refused as one
        ("main.sales.orders", "main.sales.orders"),
    ],
)
def test_a_path_that_starts_elsewhere_is_left_alone(write: Write, value: str, whole: str) -> None:
    sink = f"{{type: delta, path: '{value}'}}"
    probes = PATHS.replace("SINK", sink).replace("ca.pem", "probe")
    (document,) = documents_in(write("a/p.yaml", probes))
    config = document.config(Pipeline.model_fields)
    assert config["sink"]["path"] == whole
    assert config["source"]["client"]["ssl.ca.location"] == "probe"


@pytest.mark.parametrize(
    ("sink", "field", "table"),
    [
        ("{type: delta, path: t}", "path", "t"),
        ("{type: iceberg, table: a.b}", "warehouse", ".eo/warehouse/a/b"),
        ("{type: console}", "ledger", ".eo/console"),
    ],
)
def test_a_table_that_began_at_the_working_folder_is_not_begun_anew(
    write: Write, tmp_path: Path, sink: str, field: str, table: str
) -> None:
    write("docs/schemas/order.v1.ddl", "id BIGINT")
    (document,) = documents_in(write("docs/p.yaml", PATHS.replace("SINK", sink)))
    load(document)
    write(f"{table}/_ledger/1", "")
    with pytest.raises(ConfigError, match=rf"line 8: sink\.{field}: ") as caught:
        load(document)
    assert str(tmp_path / table) in str(caught.value)
    assert str(tmp_path / "docs" / table) in str(caught.value)
    assert "Write ../" in str(caught.value)
    write(f"docs/{table}/_ledger/1", "")
    load(document)


def test_files_are_found_in_this_order(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="eo init"):
        names()
    write("project/defs/a/defs.yaml", COMPONENTS)
    write("env/pyvenv.cfg", "")
    write("env/lib/defs.yaml", COMPONENTS)
    write(".hidden/defs.yaml", COMPONENTS)
    assert names() == ["one", "two"]
    write("pipeline.yaml", PLAIN)
    assert names() == ["plain"]
    write("pipelines/a.yaml", PLAIN.replace("plain", "a"))
    write("pipelines/b.yml", PLAIN.replace("plain", "b"))
    write("pipelines/compose.yaml", "services: {}")
    assert names() == ["a", "b"]
    monkeypatch.setenv("EO_PIPELINES", "pipeline.yaml:project")
    assert names() == ["plain", "one", "two"]
    assert names(Path("pipelines/b.yml")) == ["b"]


def test_several_pipelines_need_a_choice_and_a_wrong_one_lists_them(write: Write) -> None:
    path = write("defs.yaml", COMPONENTS)
    with pytest.raises(ConfigError, match="one, two"):
        choose([path], None)
    with pytest.raises(ConfigError, match="no pipeline 'three'; there are one, two"):
        choose([path], "three")
    assert choose([path], "two").pipeline.sink.table_name == "console"


def test_two_documents_of_one_name_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="two documents are called 'plain'"):
        names(write("a.yaml", PLAIN), write("b.yaml", PLAIN))


def test_what_is_not_yaml_is_told_without_its_text(write: Write) -> None:
    path = write("bad.yaml", "sink:\n  dsn: 'postgresql://u:hunter2@h/db\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML in line") as wrong:
        documents([path], None)
    assert "hunter2" not in str(wrong.value)


def test_a_transform_beside_the_document_is_importable(write: Write) -> None:
    write("proj/pyproject.toml", "")
    write("proj/only_here/transform.py", "def f(df):\n    return df\n")
    raw = yaml.safe_load(PLAIN) | {
        "transform": "only_here.transform:f",
        "sink": {"type": "console"},
    }
    pipeline = choose([write("proj/deep/er/it.yaml", yaml.safe_dump(raw))], None).pipeline
    assert pipeline.transform is not None
    assert pipeline.transform("same") == "same"


def test_a_version_or_a_time_with_its_zone() -> None:
    assert version_or_time("12") == 12
    moment = version_or_time("2026-01-31T12:00Z")
    assert not isinstance(moment, int)
    assert moment.isoformat() == "2026-01-31T12:00:00+00:00"
    with pytest.raises(ConfigError, match="no time zone"):
        version_or_time("2026-01-31T12:00")
    for text in ("-1", "yesterday", "²"):
        with pytest.raises(ConfigError, match="neither a version nor a time"):
            version_or_time(text)


def test_a_pair_that_is_none_is_refused_without_showing_it() -> None:
    assert pairs(["a=b=c", "d="], "--sink") == {"a": "b=c", "d": ""}
    with pytest.raises(ConfigError, match="--sink takes key=value") as wrong:
        pairs(["hunter2"], "--sink")
    assert "hunter2" not in str(wrong.value)


def test_durations_are_read_at_a_glance() -> None:
    spent = [None, 0.44, 59, 200, 7_300, 200_000]
    assert [duration(s) for s in spent] == [
        *("-", "0.4 s", "59 s", "3 min 20 s", "2 h 1 min", "2 d 7 h")
    ]
