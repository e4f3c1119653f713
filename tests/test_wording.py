"""Errors speak to people: no error numbers, no codecs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eo_pipeline.errors import ConfigError, EoPipelineError
from eo_pipeline.pipeline import Pipeline


def raised(action: Callable[[], object]) -> str:
    with pytest.raises((OSError, ValueError)) as caught:
        action()
    return str(EoPipelineError(f"a.yaml: {caught.value}. Correct it."))


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            lambda: Path("/no/such").read_text(),
            "a.yaml: No such file or directory: '/no/such'. Correct it.",
        ),
        (
            lambda: b"ab\xff".decode(),
            "a.yaml: byte 0xff at position 2 is not UTF-8 text. Correct it.",
        ),
        (
            lambda: b"\xe4\xbd".decode(),
            "a.yaml: a byte at position 0-1 is not UTF-8 text. Correct it.",
        ),
        (
            lambda: "5 €".encode("ascii"),
            r"a.yaml: the character '\u20ac' at position 2 cannot be written as ASCII. Correct it.",
        ),
        (
            lambda: "€€".encode("latin-1"),
            "a.yaml: a character at position 0-1 cannot be written as LATIN-1. Correct it.",
        ),
    ],
)
def test_what_python_says_becomes_a_sentence(action: Callable[[], object], said: str) -> None:
    assert raised(action) == said


def test_a_document_that_is_no_text_is_told_so(tmp_path: Path) -> None:
    document = tmp_path / "pipeline.yaml"
    document.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="byte 0xff at position 6 is not UTF-8 text"):
        Pipeline.from_yaml(document)
