"""Where a Spark that this package starts has its Kafka connector from, and what it logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from eo_pipeline.cli.checks import connector
from eo_pipeline.spark import AVRO, CONNECTOR, JARS_VARIABLE
from eo_pipeline.spark.connector import must_download
from eo_pipeline.spark.launch import JAVA_OPTIONS, launch_settings

PACKAGES = "spark.jars.packages"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jars' folder of a user who has no settings for Spark, and downloaded nothing yet."""
    monkeypatch.setenv("EO_CACHE", str(tmp_path))
    for name in (JARS_VARIABLE, "SPARK_HOME", "SPARK_CONF_DIR", "DEFAULT_ARTIFACT_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "jvm" / "jars"


@pytest.fixture
def downloaded(cache: Path) -> list[Path]:
    jars = []
    for coordinates in (CONNECTOR, AVRO):
        name = "-".join(coordinates.split(":")[1:])
        jars.append(cache / name / f"{name}.jar")
        jars[-1].parent.mkdir(parents=True)
        jars[-1].touch()
    return jars


def test_a_local_spark_has_the_downloaded_jars_on_its_class_path(downloaded: list[Path]) -> None:
    settings = launch_settings("local[*]", "2g", {})
    assert PACKAGES not in settings
    assert all(str(jar) in settings["spark.driver.extraClassPath"] for jar in downloaded)
    assert all(
        str(jar) in launch_settings("spark://a:7077", "2g", {})["spark.jars"] for jar in downloaded
    )


def test_the_doctor_downloads_nothing(cache: Path) -> None:
    assert must_download({})
    assert "the first run downloads the connector" in connector("local", {}).message
    assert not cache.exists()


@pytest.mark.usefixtures("downloaded")
def test_a_connector_that_was_downloaded_is_not_again() -> None:
    assert not must_download({})
    assert "was downloaded before" in connector("local", {}).message


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("config", "variable"),
    [
        ({"spark.jars.ivySettings": "/srv/ivy.xml"}, None),
        ({"spark.jars.repositories": "https://maven.example/all"}, None),
        ({}, "SPARK_CONF_DIR"),
        ({}, "SPARK_HOME"),
        ({}, "DEFAULT_ARTIFACT_REPOSITORY"),
    ],
)
def test_where_a_user_has_a_repository_spark_resolves_the_connector(
    config: dict[str, str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eo_pipeline.spark.launch.compiled_jar", lambda: None)
    if variable:
        monkeypatch.setenv(variable, "/srv/spark")
    assert launch_settings("local[*]", "2g", config)[PACKAGES] == f"{CONNECTOR},{AVRO}"
    assert not must_download(config)


@pytest.mark.usefixtures("downloaded")
def test_spark_logs_errors_alone_whoever_sets_the_jvms_options() -> None:
    ours = launch_settings("local[*]", "2g", {})
    assert "log4j2.configurationFile=file:" in ours[JAVA_OPTIONS]
    theirs = launch_settings("local[*]", "2g", {JAVA_OPTIONS: "-Xss4m"})
    assert (theirs[JAVA_OPTIONS], theirs["spark.log.level"]) == ("-Xss4m", "ERROR")
