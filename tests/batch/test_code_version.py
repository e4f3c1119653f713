"""Which code made the rows: what changes the answer and what does not."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from eo_pipeline import KafkaSource
from eo_pipeline.batch.code_version import code_version

SOURCE = KafkaSource(bootstrap_servers="b:1", topics=("t",), value_schema="id BIGINT")
MODULE = (
    "{imports}\ndef clean(df):\n    return helped(df)\n\ndef helped(df):\n    return {result}\n"
)


def module(folder: Path, name: str, result: str) -> ModuleType:
    (folder / f"{name}.py").write_text(MODULE.format(imports="", result=result))
    return importlib.import_module(name)


def test_a_change_anywhere_in_the_transforms_module_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    one = module(tmp_path, f"one_{tmp_path.name}", "df")
    same = module(tmp_path, f"same_{tmp_path.name}", "df")
    other = module(tmp_path, f"other_{tmp_path.name}", "df.distinct()")
    versions = [code_version(SOURCE, each.clean, lineage=True) for each in (one, same, other)]
    assert versions[0] == versions[1] != versions[2]


def test_an_edit_of_a_file_that_is_loaded_already_shows_in_the_next_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = module(tmp_path, f"loaded_{tmp_path.name}", "df")
    before = code_version(SOURCE, loaded.clean, lineage=True)
    Path(str(loaded.__file__)).write_text(MODULE.format(imports="", result="df.limit(1)"))
    assert code_version(SOURCE, loaded.clean, lineage=True) == before


def test_the_schema_counts_and_where_records_come_from_does_not() -> None:
    plain = code_version(SOURCE, None, lineage=True)
    wider = SOURCE.model_copy(update={"value_schema": "id BIGINT, name STRING"})
    elsewhere = SOURCE.model_copy(update={"bootstrap_servers": "c:1", "max_records": 5})
    assert code_version(wider, None, lineage=True) != plain
    assert code_version(elsewhere, None, lineage=True) == plain
    assert code_version(SOURCE, None, lineage=False) != plain


def test_what_was_typed_in_has_no_version() -> None:
    made: dict[str, object] = {}
    exec("def clean(df): return df", made)
    assert code_version(SOURCE, made["clean"], lineage=True) is None  # type: ignore[arg-type]
