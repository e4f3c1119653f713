"""What each cause is told as: class, exit code, and whether it is tried again, by Dagster, too,
which asks ``retryable``. Time mends what is tried again, and a person the rest.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eo_pipeline.boundary import boundary
from eo_pipeline.cli.output import exit_code
from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    LedgerDamagedError,
    SetupError,
    SinkUnavailableError,
    SparkJobError,
    TransformError,
    UnexpectedError,
)
from eo_pipeline.formats.avro import Avro
from eo_pipeline.formats.schema_diff import SchemaChanges
from eo_pipeline.runs.recovery import _or_later
from eo_pipeline.sinks.files import refuse_file
from eo_pipeline.sinks.lake.ledger import FIRST, LedgerFiles
from eo_pipeline.sinks.parquet.session import RenamePublication
from eo_pipeline.spark import errors


def of_a_file(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/data/file")


def at_the_edge(error: Exception) -> EoPipelineError:
    """What leaves the package."""
    with pytest.raises(EoPipelineError) as told, boundary("p"):
        raise error
    return told.value


MOMENTS = ("EIO", "ESTALE", "EMFILE", "ENFILE", "ENOMEM", "EBUSY", "ENOTEMPTY", "ETIMEDOUT")
FOR_A_PERSON = ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "ENOTDIR")


@pytest.mark.parametrize(
    ("cause", "kind", "code", "is_retried"),
    [
        *((of_a_file(getattr(errno, n)), SinkUnavailableError, 4, True) for n in MOMENTS),
        *((of_a_file(getattr(errno, n)), SetupError, 2, False) for n in FOR_A_PERSON),
        (KeyError("x"), UnexpectedError, 1, False),
        (of_a_file(errno.EINVAL), UnexpectedError, 1, False),
    ],
    ids=lambda each: getattr(each, "strerror", None) or str(each),
)
def test_what_leaves_the_package(
    cause: Exception, kind: type[EoPipelineError], code: int, is_retried: bool
) -> None:
    error = at_the_edge(cause)
    assert type(error) is kind
    assert (exit_code(error), error.retryable) == (code, is_retried)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        *((of_a_file(getattr(errno, n)), SinkUnavailableError) for n in (*MOMENTS[:3], "EACCES")),
        (of_a_file(errno.ENOENT), LedgerDamagedError),
        (of_a_file(errno.ENOTDIR), LedgerDamagedError),
        ("not JSON", LedgerDamagedError),
        (json.dumps({"format": 1}), LedgerDamagedError),
    ],
    ids=str,
)
def test_a_lakes_ledger_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError | str, kind: type[Exception]
) -> None:
    def read(_: Path) -> str:
        if isinstance(cause, OSError):
            raise cause
        return cause

    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(EoPipelineError) as told:
        LedgerFiles(tmp_path, "p").get(FIRST)
    assert type(told.value) is kind
    assert told.value.retryable is (kind is SinkUnavailableError)
    assert "_eo_ledger" in str(told.value)


def test_what_cannot_be_deleted_just_now_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    for number in (errno.ENOTEMPTY, errno.EIO, errno.EACCES):
        with _or_later():
            raise of_a_file(number)
    assert caplog.text.count("a later run retries") == 3
    with pytest.raises(KeyError), _or_later():
        raise KeyError


class OfSpark(PySparkException):
    """An error of Spark's, with its condition and SQLSTATE."""

    def __init__(self, text: str, condition: str = "", state: str = "") -> None:
        self.text, self.condition, self.state = text, condition, state

    def __str__(self) -> str:
        return self.text

    def getCondition(self) -> str:  # noqa: N802 - pyspark's name
        return self.condition

    def getSqlState(self) -> str:  # noqa: N802
        return self.state


NOT_FOUND = ("[PATH_NOT_FOUND] Path does not exist: file:{}. SQLSTATE: 42K03", "P", "42K03")
STACK = "\n".join(["Job aborted.", *(f"\tat org.apache.X({n})" for n in range(9)), *"abcdef"])


@pytest.mark.parametrize(
    ("cause", "transformed", "kind", "code", "said"),
    [
        # our own folder, which a server elsewhere does not see
        (OfSpark(NOT_FOUND[0].format("HERE"), *NOT_FOUND[1:]), True, SetupError, 2, "staging"),
        # a transform's
        (OfSpark(NOT_FOUND[0].format("/no"), *NOT_FOUND[1:]), True, TransformError, 1, "/no"),
        (OfSpark("[DIVIDE_BY_ZERO] no", "D", "22012"), True, TransformError, 1, "transform"),
        (OfSpark("[CAST] no", "C", "22018"), False, UnexpectedError, 1, "There is no transform"),
        (
            OfSpark(
                "InvalidPathException: Malformed input or input contains unmappable characters: /é"
            ),
            True,
            SetupError,
            2,
            "LC_ALL=C.UTF-8",
        ),
        (
            OfSpark("org.apache.kafka.common.config.ConfigException: a must be over b\n\tat x"),
            True,
            ConfigError,
            2,
            "a must be over b",
        ),
        (
            OfSpark(f"{STACK}\nCaused by: one\nCaused by: the reason"),
            True,
            SparkJobError,
            4,
            "Caused by: the reason",
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_spark_says_of_a_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cause: OfSpark,
    transformed: bool,
    kind: type[EoPipelineError],
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(errors, "server_is_lost", lambda _: False)
    cause.text = cause.text.replace("HERE", str(tmp_path))
    error = errors.job_error(cast(SparkSession, None), cause, "the job", transformed=transformed)
    assert type(error) is kind
    assert (exit_code(error), error.retryable) == (code, kind is SparkJobError)
    assert said in str(error)
    assert "\tat " not in str(error)


def test_a_table_below_a_file_is_a_wrong_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/table", "file/deep/table"):
        with pytest.raises(ConfigError, match=r"sink\.path: .* is a file"):
            refuse_file(tmp_path / place, "path")
    refuse_file(tmp_path / "not" / "there" / "yet", "path")


def test_a_parquet_checkpoint_without_its_ledger_file_is_a_damaged_ledger(tmp_path: Path) -> None:
    (tmp_path / "checkpoint=3").mkdir()
    publication: Any = SimpleNamespace(
        session=SimpleNamespace(pipeline="p"), entry=SimpleNamespace(version=3)
    )
    told = RenamePublication._not_renamed(publication, tmp_path / "checkpoint=3")
    assert isinstance(told, LedgerDamagedError)
    assert "_eo_ledger.json is gone" in str(told)
    assert RenamePublication._not_renamed(publication, tmp_path / "checkpoint=4").retryable


def test_two_fields_of_avro_that_differ_only_in_case_are_refused_by_name() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": n, "type": "int"} for n in "aA"]}
    for fields in (
        [{"name": "id", "type": "long"}, {"name": "ID", "type": "string"}],
        [{"name": "in", "type": {"type": "array", "items": inner}}],
    ):
        fault = Avro().fault_of(json.dumps({"type": "record", "name": "r", "fields": fields}))
        assert re.search("differs from (id|a) only in case", fault or "")


def test_a_wrong_policy_is_told_without_pythons_own_marks() -> None:
    with pytest.raises(ConfigError, match="'evolve', 'quarantine' or 'freeze'") as told:
        SchemaChanges(dropped_field="rescue")
    assert "<Policy" not in str(told.value)
