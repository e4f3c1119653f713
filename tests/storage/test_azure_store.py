"""What Azure's Blob endpoint has alone, as Azurite keeps it: what Spark marks as a folder is none
to us; and who is let in. What every store does is in test_stores.py.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest

from eo_pipeline.storage.azure import AzureBlobs
from eo_pipeline.storage.config import Storage
from eo_pipeline.storage.paths import (
    RemotePath,
    files_below,
    folders_in,
    names_in,
    probe,
    relative_name,
    remove_empty_folders,
    remove_tree,
)
from tests.support.azure import AzureFolder


def mark(azure: AzureFolder, *folders: str) -> None:
    """Make folders as Spark's file system makes them."""
    store = azure.place.bucket.store
    assert isinstance(store, AzureBlobs)
    for name in folders:
        key = f"{azure.place.key}/{name}"
        obstore.put(store.client, key, b"", attributes={"hdi_isfolder": "true"})


def test_of_many_that_are_removed_one_that_is_gone_already_keeps_none(azure: AzureFolder) -> None:
    places = [azure.place / f"{number:03}" for number in range(300)]  # more than a batch has
    with ThreadPoolExecutor(8) as pool:
        [*pool.map(lambda place: place.put(b"?"), places)]
    places[0].unlink()
    places[280].unlink()
    RemotePath.remove_all(places)
    assert azure.files() == set()


def test_what_stands_for_a_folder_is_no_file(azure: AzureFolder) -> None:
    """Scenario: folders with files, and one without, as Spark marks them; and an empty file.
    Outcome: all that is asked of the place answers as if there were no marks.
    """
    mark(azure, "full", "full/inside", "hollow")
    (azure.place / "full" / "inside" / "1").put(b"?")
    (azure.place / "full" / "empty").put(b"")
    assert (azure.place / "full").size() is None
    assert not (azure.place / "hollow").is_file()
    assert (azure.place / "full" / "empty").is_file()
    assert (names_in(azure.place), folders_in(azure.place)) == (["full"], ["full"])
    assert names_in(azure.place / "full") == ["empty", "inside"]
    found = [relative_name(place, azure.place) for place, _ in files_below(azure.place)]
    assert found == ["full/empty", "full/inside/1"]


def test_no_folder_is_left_where_a_tree_was_removed_or_all_was_emptied(azure: AzureFolder) -> None:
    mark(azure, "full", "full/x", "emptied", "emptied/x", "emptied/x/y")
    full, emptied = azure.place / "full", azure.place / "emptied"
    for place in (full / "x" / "1", full / "2", emptied / "x" / "y" / "1", emptied / "2"):
        place.put(b"?")
    (emptied / "x" / "y" / "1").unlink()
    remove_empty_folders(emptied)
    remove_tree(full)
    remove_tree(full)
    store = azure.place.bucket.store
    assert isinstance(store, AzureBlobs)
    left = [each["path"] for batch in obstore.list(store.client, azure.place.key) for each in batch]
    assert left == [f"{azure.place.key}/emptied", f"{azure.place.key}/emptied/2"]


def test_who_has_the_wrong_key_is_told_so_and_not_shown_it(azure: AzureFolder) -> None:
    wrong = "d3Jvbmc="
    there = azure.saying(account_key=wrong)
    with pytest.raises(PermissionError) as told:
        probe(there.place)
    assert wrong not in f"{told.value} {there.storage!r} {there.place!r}"


@pytest.mark.parametrize("mark", ["", "?"])
def test_a_token_lets_in_as_a_key_does_and_no_further(azure: AzureFolder, mark: str) -> None:
    def by(permissions: str) -> RemotePath:
        token = mark + azure.server.sas_token(azure.container, permissions)
        return azure.saying(account_key=None, sas_token=token).place

    probe(by("racwdl"))
    (azure.place / "there").put(b"?")
    assert (by("rl") / "there").read_bytes() == b"?"
    with pytest.raises(PermissionError):
        (by("rl") / "new").put_new(b"?")


def test_the_environment_lets_in_and_a_field_says_otherwise(
    azure: AzureFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyless = azure.saying(account_key=None)
    monkeypatch.setenv("AZURE_STORAGE_KEY", azure.server.key)
    probe(keyless.place)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "another")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(PermissionError):  # obstore looks for itself
        probe(keyless.place)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", azure.server.ACCOUNT)
    probe(azure.place)
    probe(keyless.saying(sas_token=azure.server.sas_token(azure.container)).place)


def test_what_spark_is_told_has_secrets_under_names_that_spark_hides() -> None:
    secrets = {"account_key": "hunter2", "sas_token": "sig=hunter2"}
    for part, secret in secrets.items():
        place = Storage.model_validate({part: secret}).place(
            "abfss://lake@a00.dfs.core.windows.net/x"
        )
        assert isinstance(place, RemotePath)
        named = [name for name, value in place.bucket.hadoop.items() if secret in value]
        assert len(named) == 1
        # Spark's own rule, spark.redaction.regex
        assert re.search(r"(?i)secret|password|token|access[.]?key", named[0])
