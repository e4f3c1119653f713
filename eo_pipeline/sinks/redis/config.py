"""The configuration of Redis keys that follow Kafka topics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SecretStr,
)

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.columns import ColumnLimits, project
from eo_pipeline.sinks.config import Guarantee, Sink
from eo_pipeline.sinks.redis.keys import RESERVED, KeyTemplate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)*")
_SCHEMES = ("redis", "rediss", "unix")

#: The field of the ledger that says which keys it speaks for; of several tables, before the name.
TARGET = "target"
_SEVERAL = "several tables"

#: Redis closes a connection whose requests exceed 1 GiB (client-query-buffer-limit).
_BYTES_MAX = 256 * 1024 * 1024


def _checked_url(url: SecretStr) -> SecretStr:
    """The message never shows any of it: a torn password may stand in any part."""
    try:
        parts = urlsplit(url.get_secret_value())
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname or parts.path)
        _ = parts.port
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            "not a Redis address: write redis://user:password@host:6379/0, rediss:// for TLS, "
            "with special characters of the password percent-encoded (@ is %40, / is %2F)"
        )
    return url


def _checked_key(key: str | tuple[str, ...]) -> str | tuple[str, ...]:
    _template(key)
    return key


def _checked_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise ValueError("write letters, digits, '_', '.', '-', and ':' between them")
    if prefix.startswith(RESERVED):
        raise ValueError(
            f"{prefix!r} starts with {RESERVED!r}, as the pipeline's own keys do: take another name"
        )
    return prefix


def _template(key: str | tuple[str, ...]) -> KeyTemplate:
    return KeyTemplate.parse(key) if isinstance(key, str) else KeyTemplate.of_columns(key)


class RedisSink(Sink):
    """One key a row in Redis 7 or newer, with the ledger beside them.

    A row's key is ``{pipeline}:prefix:key``. Every key of a pipeline, the ledger's too, begins with
    its name in braces: Redis Cluster then keeps them in one slot, where one script may change them.
    A row replaces the one that had its key.

    Args:
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS. Never shown.
        key: the columns that identify a row, or a template such as ``{carrier}:{number}``.
        store_as: ``hash``, a field for every column, or ``json``, one string. ``as`` in YAML.
        prefix: text between the pipeline's name and the key in a row's Redis key.
        ttl: seconds after which a row that was not written again is gone; ``None``: never.
        max_rows: maximum rows per checkpoint. Redis blocks other clients during its commit.
        max_bytes: the most bytes that keys and values of one checkpoint may have.
        timeout: seconds to wait for a reply; the script's is the longest.
        connect_timeout: seconds to wait for the server to answer.
    """

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["redis"] = "redis"
    url: Annotated[SecretStr, AfterValidator(_checked_url)]
    key: Annotated[str | tuple[str, ...], AfterValidator(_checked_key)]
    store_as: Literal["hash", "json"] = Field(default="hash", alias="as")
    prefix: Annotated[str, AfterValidator(_checked_prefix)] = "rows"
    ttl: PositiveFloat | None = None
    max_rows: PositiveInt = 10_000
    max_bytes: Annotated[int, Field(gt=0, le=_BYTES_MAX)] = 64 * 1024 * 1024
    timeout: PositiveFloat = 60.0
    connect_timeout: PositiveFloat = 10.0

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    session_class: ClassVar[str] = "eo_pipeline.sinks.redis.session:RedisSession"
    tables_session_class: ClassVar[str | None] = "eo_pipeline.sinks.redis.tables:RedisTablesSession"
    table_field: ClassVar[str] = "prefix"
    not_in_names: ClassVar[re.Pattern[str]] = re.compile(r"[^A-Za-z0-9_.-]")
    of_one_table: ClassVar[frozenset[str]] = frozenset({"key", "as", "store_as", "ttl"})
    needed_without_rows: ClassVar[Mapping[str, Any]] = {"key": "{_eo_offset}"}
    is_of_one_pipeline: ClassVar[bool] = True
    extra: ClassVar[str | None] = "redis"

    _is_one_of_several: bool = PrivateAttr(default=False)

    def one_of_several(self) -> Self:
        """Refuse a name with which keys of two tables could be the same; see ``Sink``."""
        if ":" in self.prefix:
            raise ValueError(f"{self.prefix!r}: the name of one of several tables has no ':'")
        copied = self.model_copy()
        copied._is_one_of_several = True
        return copied

    @property
    def name_of_several(self) -> str | None:
        """The table's name, for one of several."""
        return self.prefix if self._is_one_of_several else None

    @property
    def template(self) -> KeyTemplate:
        """Template of a row's key."""
        return _template(self.key)

    @property
    def keeps_every_row(self) -> bool:
        return False

    @property
    def targets(self) -> dict[str, str]:
        """Settings that the ledger depends on, by its fields: it cannot go on in other keys or
        another form.
        """
        parts = {"as": self.store_as, "key": str(self.template), "prefix": self.prefix}
        target = json.dumps(parts, sort_keys=True)
        if not self._is_one_of_several:
            return {TARGET: target}
        return {TARGET: _SEVERAL, f"{TARGET}:{self.prefix}": target}

    @property
    def table_name(self) -> str:
        return self.prefix

    def describe(self) -> dict[str, str]:
        """``kind``, ``host``, ``port``, ``database``, ``table``; ``key`` of a single table."""
        parts = urlsplit(self.url.get_secret_value())
        return {
            "kind": "redis",
            "host": parts.hostname or "",
            "port": str(parts.port or 6379),
            "database": parts.path.strip("/") or "0",
            "table": self.table_name,
            **({} if self._is_one_of_several else {"key": str(self.template)}),
        }

    def project(self, df: DataFrame) -> DataFrame:
        """Nested columns become JSON; see :mod:`eo_pipeline.sinks.redis.keys`.

        Raises:
            SchemaChangeError: a column has a type that has no form in Redis.
            ConfigError: a column of the key is not there.
        """
        absent = [name for name in self.template.columns if name not in df.columns]
        if absent:
            raise ConfigError(f"sink.key: the result has no column {', '.join(absent)}")
        return project(df, "Redis")

    def column_limits(self) -> ColumnLimits:
        """Columns of the key have a value."""
        return ColumnLimits(needed=tuple(self.template.columns))
