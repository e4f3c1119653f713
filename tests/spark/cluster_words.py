"""Beside a transform's module, and imported by it: on an executor only if it was sent there."""

from __future__ import annotations


def shouted(word: str) -> str:
    return word.upper()
