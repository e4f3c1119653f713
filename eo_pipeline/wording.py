"""What Python and the system say of an error, as a person would say it; and what is to be done."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: ``[Errno 30] Read-only file system: '/srv'``: the number helps nobody.
_ERRNO = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")

#: ``'utf-8' codec can't decode byte 0xff in position 3: invalid start byte``
_DECODE = re.compile(
    r"'(?P<codec>[\w-]+)' codec can't decode bytes? (?:(?P<byte>0x[0-9a-f]{2}) )?"
    r"in position (?P<at>[\d-]+): (?P<why>\w+(?: \w+)*)"
)
_ENCODE = re.compile(
    r"'(?P<codec>[\w-]+)' codec can't encode characters? (?:(?P<what>'[^']+') )?"
    r"in position (?P<at>[\d-]+): ordinal not in range\(\d+\)"
)


def in_words(text: str) -> str:
    """``text`` without error numbers, and with sentences where Python speaks of codecs."""
    text = _ERRNO.sub("", text)
    text = _DECODE.sub(_decoded, text)
    return _ENCODE.sub(_encoded, text)


def to_install(extra: str) -> str:
    """The command that brings what an ``extra`` of this package takes."""
    return f"pip install 'eo-pipeline[{extra}]'"


def some_of(things: Sequence[object], most: int, between: str = ", ", last: str = " and ") -> str:
    """``1, 2 and 3 more``: no more than ``most`` of them by name."""
    named = between.join(map(str, things[:most]))
    more = len(things) - most
    return f"{named}{last}{more} more" if more > 0 else named


def _decoded(found: re.Match[str]) -> str:
    byte = f"byte {found['byte']} " if found["byte"] else "a byte "
    return f"{byte}at position {found['at']} is not {found['codec'].upper()} text"


def _encoded(found: re.Match[str]) -> str:
    what = f"the character {found['what']} " if found["what"] else "a character "
    return f"{what}at position {found['at']} cannot be written as {found['codec'].upper()}"
