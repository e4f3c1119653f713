"""Versions of the code that makes a checkpoint's rows, kept in the ledger: an edit shows there."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from eo_pipeline.formats.parts import KEY, VALUE
from eo_pipeline.kafka.source import KafkaSource

#: What of a source decides which rows its records become.
_DECODING = ("value_format", "value_schema", "unknown_fields", "tombstones")

_OF_KEYS = ("key_format", "key_schema", "key_prefix")

_DIGITS = 12


def code_version(
    source: KafkaSource, transform: Callable[..., Any] | None, *, lineage: bool
) -> str | None:
    """Twelve hexadecimal digits that change when the schema or the transform's module is edited.

    The whole module counts, because a transform calls what stands beside it; modules that it
    imports do not. Nor does what a schema registry says: each entry tells which schemas it was read
    with. ``None`` if the transform's source cannot be read: it was typed in, or made by a program.
    """
    text = _source_text(transform) if transform is not None else ""
    if text is None:
        return None
    decoding = {name: getattr(source, name) for name in _DECODING}
    if source.key_format != "raw":
        decoding |= {name: getattr(source, name) for name in _OF_KEYS}
    for part in (VALUE, KEY):
        if source.by_registry(part):
            decoding[part.subject_field] = source.subject_of(part)
    for name in ("message", "key_message"):
        if named := getattr(source, name):
            decoding[name] = named
    name = getattr(transform, "__qualname__", "")
    whole = json.dumps([decoding, lineage, name, text], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:_DIGITS]


def code_version_of_tables(versions: Mapping[str, str | None]) -> str | None:
    """Return the code version of several tables, by the ``versions`` of each; None if one has
    none.
    """
    if None in versions.values():
        return None
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:_DIGITS]


@functools.cache
def _source_text(transform: Callable[..., Any]) -> str | None:
    """As it was when it was first asked for: a process runs the code it has loaded, also after the
    file was edited.
    """
    try:
        return inspect.getsource(inspect.getmodule(transform) or transform)
    except (OSError, TypeError):
        return None
