"""Which small files are put together."""

from __future__ import annotations

from eo_pipeline.sinks.lake.maintenance import DataFile, bins

MB = 1_000_000


def files(*sizes: int, **said: object) -> list[DataFile]:
    return [DataFile(f"f{n}", size, 1, first=n, **said) for n, size in enumerate(sizes)]  # type: ignore[arg-type]


def names(found: list[list[DataFile]]) -> list[list[str]]:
    return [[each.path for each in group] for group in found]


def test_neighbouring_checkpoints_are_put_together_up_to_the_size() -> None:
    mixed = sorted(files(*[30 * MB] * 10), key=lambda f: f.path, reverse=True)
    assert names(bins(mixed, 100 * MB)) == [
        ["f0", "f1", "f2"],
        ["f3", "f4", "f5"],
        ["f6", "f7", "f8"],
    ]


def test_large_files_stay_as_they_are() -> None:
    assert bins(files(*[80 * MB] * 10), 100 * MB) == []


def test_a_few_small_files_wait_for_more() -> None:
    assert bins(files(1, 1, 1, 1), 100 * MB) == []
    assert len(bins(files(1, 1, 1, 1, 1), 100 * MB)) == 1


def test_what_was_put_together_is_not_written_again_for_one_more_file() -> None:
    assert bins(files(60 * MB, 1, 1), 100 * MB) == []


def test_partitions_are_never_mixed() -> None:
    monday = files(*[1] * 5, partition=(("day", "mon"),))
    tuesday = files(*[1] * 5, partition=(("day", None),))
    found = bins([*monday, *tuesday], 100 * MB)
    assert sorted(len({each.partition for each in group}) for group in found) == [1, 1]


def test_what_cannot_be_removed_by_its_name_stays() -> None:
    assert bins(files(*[1] * 9, movable=False), 100 * MB) == []
