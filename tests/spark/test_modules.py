"""Which of a user's modules are sent to Python workers that are elsewhere."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline import ConfigError
from eo_pipeline.spark import modules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which a user imports ``flights.transforms``, and what that imports."""
    texts = {
        "flights/__init__.py": "",
        "flights/transforms.py": "import rates\nfrom flights.words import upper\n"
        "def transform(df):\n    return df\n",
        "flights/words/__init__.py": "from .letters import upper\n",
        "flights/words/letters.py": "upper = str.upper\n",
        "flights/imported_by_a_function.py": "",
        "rates.py": "",
        "never_imported.py": "",
        "other/__init__.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def loaded(name: str) -> Callable[..., Any]:
    transform: Callable[..., Any] = importlib.import_module(name).transform
    return transform


def test_what_the_process_imported_from_there_and_what_lies_beside_is_sent(project: Path) -> None:
    found = modules._files_of(loaded("flights.transforms"))
    assert sorted(found) == [
        "flights/__init__.py",
        "flights/imported_by_a_function.py",
        "flights/transforms.py",
        "flights/words/__init__.py",
        "flights/words/letters.py",
        "rates.py",
    ]
    archive = modules._archive(found)
    with zipfile.ZipFile(archive) as sent:
        assert sorted(sent.namelist()) == sorted(found)
    assert modules._archive(dict(found)) == archive
    (project / "rates.py").write_text("RATE = 2\n")
    assert modules._archive(found) != archive, "no session takes a name twice"


def test_what_is_installed_or_typed_in_is_not_sent() -> None:
    assert modules._files_of(json.loads) == {}
    assert modules._files_of(zipfile.is_zipfile) == {}
    typed: dict[str, Any] = {"__name__": "__main__"}
    exec("def transform(df): return df", typed)
    assert modules._files_of(typed["transform"]) == {}


def test_a_file_that_is_to_be_sent_and_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark.py_files: .*nothing.py is no file"):
        modules.send_files(None, [str(tmp_path / "nothing.py")])  # type: ignore[arg-type]
