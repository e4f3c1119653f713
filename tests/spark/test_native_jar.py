"""Our part of Spark's plans is compiled where it runs, once, and nobody else's is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eo_pipeline.spark import native_jar
from eo_pipeline.spark.class_archive import CACHE_VARIABLE
from eo_pipeline.spark.native_jar import compiled_jar

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    compiled_jar.cache_clear()
    yield tmp_path / "cache"
    compiled_jar.cache_clear()


def made() -> Path:
    compiled_jar.cache_clear()
    jar = compiled_jar()
    assert jar is not None
    return jar


def test_the_jar_is_made_once_and_only_for_its_owner_to_write(cache: Path) -> None:
    jar = made()
    assert {*zipfile.ZipFile(jar).namelist()} >= {
        "eo/pipeline/OrdinaryFunctions.class",
        "eo/pipeline/OrdinaryJson.class",
        "eo/pipeline/OrdinaryScanner.class",
    }
    before = jar.stat().st_mtime_ns
    assert (made(), jar.stat().st_mtime_ns) == (jar, before)
    assert jar.stat().st_mode & 0o022 == 0
    assert [*jar.parent.iterdir()] == [jar], "nothing that was needed to make it is left"


def test_the_same_sources_make_the_same_jar() -> None:
    jar = made()
    content = jar.read_bytes()
    jar.unlink()
    assert made().read_bytes() == content


def test_a_jar_that_others_may_write_is_made_anew() -> None:
    jar = made()
    content = jar.read_bytes()
    jar.write_bytes(b"of somebody else")
    jar.chmod(0o666)
    assert made().read_bytes() == content


def test_processes_that_make_it_at_once_all_have_it_whole() -> None:
    code = "from eo_pipeline.spark.native_jar import compiled_jar; print(compiled_jar())"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    [said] = {process.communicate(timeout=120)[0].strip() for process in started}
    assert zipfile.ZipFile(said).testzip() is None


def test_other_sources_make_another_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    jar = made()
    source = native_jar._source
    monkeypatch.setattr(native_jar, "_source", lambda name: source(name) + "\n")
    assert made() != jar


@pytest.mark.parametrize(
    "missing", ["Java", "a place for it", "sources that can be compiled", "one"]
)
def test_without_what_it_takes_spark_does_without(
    missing: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    if missing == "Java":
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
    elif missing == "a place for it":
        cache.write_text("a file")
    elif missing == "one":
        source, without = native_jar._source, "package eo.pipeline; class Other {}"
        changed = {"OrdinaryJson.java": without}
        monkeypatch.setattr(native_jar, "_source", lambda name: changed.get(name) or source(name))
    else:
        monkeypatch.setattr(native_jar, "_source", lambda _: "class {")
    assert compiled_jar() is None
    assert "Spark decodes all records by its own functions" in caplog.text
    assert not [*cache.rglob("*.jar")] if cache.is_dir() else os.path.isfile(cache)
