"""What may be a secret, taken out of texts that other programs wrote; and what a terminal would
obey, shown in its place.

Drivers, Spark and Kafka quote whole settings in their errors. Every error of this package takes
its text through here (:class:`eo_pipeline.errors.EoPipelineError`), so that it need not be thought
of where an error is caught.
"""

from __future__ import annotations

import re

#: What stands where something was taken out.
HIDDEN = "***"

#: Words in a setting's name that make its value a secret.
_WORDS = r"password|passwd|pwd|passphrase|secret|token|credential|access.?key|api.?key|account.?key"

_NAME = rf"""[\w.\-]*(?:{_WORDS})[\w.\-]*"""
_QUOTED = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""

_PATTERNS = (
    # scheme://user:password@host; of several @ the last one ends a password that was not encoded
    (re.compile(r"(\w[\w+.\-]*://[^\s/:@\"']*:)[^\s/\"']+(@)"), rf"\g<1>{HIDDEN}\g<2>"),
    # a JAAS entry is a sentence of its own, ended by a semicolon
    (
        re.compile(rf"(sasl\.jaas\.config[\"']?\s*[=:]\s*)(?:{_QUOTED}|[^;\"'])*;?", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    (
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL),
        rf"\g<1>{HIDDEN}\g<2>",
    ),
    # name=value, as in settings, addresses and connection strings
    (
        re.compile(rf"({_NAME}[\"']?\s*=>?\s*)(?:{_QUOTED}|[^\s,;&}}\])\"']+)", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    # "name": value, as in JSON and in Python's dictionaries
    (
        re.compile(rf"([\"']{_NAME}[\"']\s*:\s*)(?:{_QUOTED}|[^\s,;}}\])\"']+)", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    # a token that is signed (RFC 7519): three parts, the first an object as JSON
    (re.compile(r"()\beyJ[\w-]+\.[\w-]+\.[\w-]*"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\b(?:Bearer|Basic)\s+)[\w.~+/=\-]{8,}"), rf"\g<1>{HIDDEN}"),
)

#: Colours and cursor moves (ECMA-48), for terminals only.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

#: The lines of tables that libraries draw in their errors.
_DRAWN = re.compile("[\u2500-\u257f]+")
_BLANKS = re.compile("[ \\t]{2,}")

#: What a terminal obeys or turns around, and what UTF-8 has nothing for; line ends and tabs are not
#: among it.
_OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""``text`` as it may be shown to a person: ``\x1b`` for an escape character, and the like."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    r"""The same of JSON, in its own escapes: its values stay what they are."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def scrubbed(text: str) -> str:
    """``text`` without what may be a secret, without terminal codes and drawn lines."""
    text = _TERMINAL.sub("", text)
    if _DRAWN.search(text):
        text = _BLANKS.sub(" ", _DRAWN.sub(" ", text))
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text
