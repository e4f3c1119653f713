"""Whoever has an account on this machine, and no secret, runs nothing by a port of ours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.errors import ConfigError
from eo_pipeline.spark import SparkSettings


@pytest.mark.core
@pytest.mark.parametrize("token", ["", "/;token=guessed"])
def test_spark_connect_wants_its_token(spark_server: EmbeddedSpark, token: str) -> None:
    address = spark_server.remote.partition("/;")[0]
    with pytest.raises(ConfigError, match="does not let us in"):
        SparkSettings(remote=address + token, connect_timeout=5).session()


def test_nobody_else_can_read_the_token(spark_server: EmbeddedSpark) -> None:
    """Everybody reads the words of a command, and nobody else the environment of a process."""
    token = urlsplit(spark_server.remote).path.partition("token=")[2]
    assert len(token) > 30
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            commands.append(path.read_bytes())
    assert any(b"SparkConnectServer" in each for each in commands)
    assert not [each for each in commands if token.encode() in each]
    [file] = spark_server.folder.glob("*.secret")
    assert file.stat().st_mode & 0o077 == 0
