"""Opening a sink with settings that cannot work: what is wrong, in words, and not as a retry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.errors import ConfigError, EoPipelineError, SinkUnavailableError
from eo_pipeline.sinks.registry import sink_from_config

NOBODY = "127.0.0.1:1"


def opening(**config: Any) -> EoPipelineError:
    with pytest.raises(EoPipelineError) as raised:
        sink_from_config(config).open("p").head()
    return raised.value


def iceberg(folder: Path, **properties: str) -> dict[str, Any]:
    catalog = {"name": "lake", "properties": properties}
    return {"type": "iceberg", "table": "ops.f", "location": str(folder), "catalog": catalog}


@pytest.mark.parametrize("parameter", ["colour=red", "socket_timeout=soon"])
def test_an_address_of_redis_with_a_wrong_parameter(parameter: str) -> None:
    wrong = opening(type="redis", url=f"redis://u:hunter2@{NOBODY}/0?{parameter}", key=["id"])
    assert isinstance(wrong, ConfigError)
    assert parameter.partition("=")[0] in str(wrong)
    assert "hunter2" not in str(wrong)


def test_a_catalog_whose_package_is_not_installed(tmp_path: Path) -> None:
    wrong = opening(**iceberg(tmp_path, type="hive", uri=f"thrift://{NOBODY}"))
    assert isinstance(wrong, ConfigError)
    assert "pip install" in str(wrong)


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql+nodriver://u:hunter2@{NOBODY}/c",
        "u:hunter2@db/c",
        "postgresql:/u:hunter2@db",
    ],
)
def test_a_catalogs_address_that_means_nothing_is_not_shown(tmp_path: Path, uri: str) -> None:
    wrong = opening(**iceberg(tmp_path, type="sql", uri=uri))
    assert isinstance(wrong, ConfigError)
    assert "hunter2" not in str(wrong)


def test_a_catalog_that_is_away_is_tried_again_and_shows_no_password(tmp_path: Path) -> None:
    away = opening(**iceberg(tmp_path, type="rest", uri=f"http://u:hunter2@{NOBODY}"))
    assert isinstance(away, SinkUnavailableError)
    assert "hunter2" not in str(away)


def test_a_client_setting_that_kafka_does_not_know() -> None:
    wrong = opening(type="kafka", bootstrap_servers=NOBODY, topic="t", client={"colour": "red"})
    assert isinstance(wrong, ConfigError)
    assert "colour" in str(wrong)


@pytest.mark.parametrize(
    "config",
    [
        {"type": "delta", "path": "FILE"},
        {"type": "parquet", "path": "FILE"},
        {"type": "console", "ledger": "FILE"},
        {"type": "iceberg", "table": "a.b", "warehouse": "FILE"},
    ],
    ids=lambda config: config["type"],
)
def test_a_file_where_a_folder_should_be_will_not_become_one(
    tmp_path: Path, config: dict[str, str]
) -> None:
    file = tmp_path / "file"
    file.write_text("a file")
    wrong = opening(**{k: str(file) if v == "FILE" else v for k, v in config.items()})
    assert isinstance(wrong, ConfigError)
    assert str(file) in str(wrong)


def test_a_catalogs_table_name_is_no_folder_of_a_delta_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"looks like a table in a catalog.*\./main"):
        sink_from_config({"type": "delta", "path": "main.sales.flights"})
    sink_from_config({"type": "delta", "path": "./main.sales.flights"})
    sink_from_config({"type": "delta", "path": str(tmp_path / "main.sales.flights")})
