"""A pipeline document as a person would write it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

_WIDTH = 98


class _Block(str):
    """A text of several lines, written below each other."""


class _Dumper(yaml.SafeDumper):
    pass


def _block(dumper: yaml.SafeDumper, text: _Block) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Dumper.add_representer(_Block, _block)


def document_text(values: Mapping[str, Any], remarks: Iterable[str]) -> str:
    """``values`` as YAML, the schema one field a line, below ``remarks`` as comments."""
    source = dict(values["source"])
    for name in ("value_schema", "key_schema"):
        if isinstance(source.get(name), str):
            source[name] = _Block(source[name])
    comments = [
        line
        for remark in ("Written by `eo init`.", *remarks)
        for line in textwrap.wrap(remark, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    ]
    body = yaml.dump(
        {**values, "source": source},
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )
    return "\n".join(comments) + "\n" + body
