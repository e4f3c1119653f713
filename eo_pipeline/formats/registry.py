"""Settings and client of a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import Field, field_validator

from eo_pipeline._lazy import library
from eo_pipeline.config.settings import ClientSettings, Settings
from eo_pipeline.errors import ConfigError, RegistryUnavailableError
from eo_pipeline.formats.kinds import format_of_type, key_as_record, kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.ledger.schemas import AVRO

_T = TypeVar("_T")

#: Number of versions of a new subject that are read, the newest first.
VERSIONS_MAX = 20

#: Client settings that are numbers.
_NUMBERS = frozenset(
    {
        *("timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries"),
        *("retries.wait.ms", "retries.max.wait.ms"),
    }
)

#: HTTP status for a missing subject, version or schema.
_NOT_FOUND = 404
_LOGIN_REFUSED = frozenset({401, 403})


class Registry(Settings):
    """A schema registry with Confluent's interface.

    Args:
        url: ``http://host:port``, several with commas.
        subject, key_subject: subjects whose latest schemas give the columns; ``<topic>-value`` and
            ``<topic>-key`` if absent.
        client: settings of ``confluent_kafka.schema_registry`` (``basic.auth.user.info``,
            ``bearer.auth.*``, ``ssl.*``, ``max.retries`` ...).
        timeout: of each request, in seconds.
    """

    url: str = Field(min_length=1)
    subject: str | None = Field(default=None, min_length=1)
    key_subject: str | None = Field(default=None, min_length=1)
    client: ClientSettings = Field(default_factory=dict, repr=False)
    timeout: float = Field(default=10.0, gt=0)

    @field_validator("url")
    @classmethod
    def _holds_no_password(cls, url: str) -> str:
        for address in url.split(","):
            scheme, _, rest = address.strip().partition("://")
            if scheme not in ("http", "https") or not rest:
                raise ValueError("a registry's url begins with http:// or https://")
            if "@" in rest:
                raise ValueError("put the login into client: {basic.auth.user.info: user:password}")
        return url

    @field_validator("client")
    @classmethod
    def _leaves_the_url_alone(cls, client: Mapping[str, Any]) -> Mapping[str, Any]:
        if "url" in client:
            raise ValueError("the url stands beside client, not in it")
        return client


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a subject: the keys of its schema, its text, and its references in the form of
    the registry's client.
    """

    keys: tuple[str, ...]
    text: str
    version: int = 0
    references: tuple[Any, ...] = ()


def latest_reader(
    registry: Registry,
    subject: str,
    schema_type: str,
    message: str = "",
    part: Part = VALUE,
) -> SchemaVersion:
    """Return the newest version of ``subject``; its fields can become columns.

    Raises:
        RegistryUnavailableError: the registry does not answer, or refuses the login.
        ConfigError: its fields cannot become columns, or there is no such subject.
        SetupError: the required packages are not installed.
    """
    return RegistryClient(registry, schema_type, message, part).latest_reader(subject)


def type_of_latest(registry: Registry, subject: str) -> str:
    """Return the registry's type name of the newest schema of ``subject``.

    Raises:
        RegistryUnavailableError: the registry does not answer, or refuses the login.
        ConfigError: there is no such subject.
        SetupError: the required packages are not installed.
    """
    return RegistryClient(registry, AVRO).type_of_latest(subject)


class RegistryClient:
    """Reads schemas of one type from a registry. Texts have their references written out.

    Raises (all methods):
        RegistryUnavailableError: it does not answer, or refuses the login.
        ConfigError: the schema is of another type.
        SetupError: the required packages are not installed.
    """

    #: Path of the registry in a document.
    where: ClassVar[str] = "source.registry"

    def __init__(
        self, registry: Registry, schema_type: str, message: str = "", part: Part = VALUE
    ) -> None:
        self._registry = registry
        self._type = schema_type
        self._kind = kind_of(schema_type, message)
        self._part = part
        self._schema_registry = library("confluent_kafka.schema_registry")
        self._httpx = library("httpx2")
        settings: dict[str, Any] = {
            name: _number(name, value.get_secret_value()) for name, value in registry.client.items()
        }
        options = {"timeout": registry.timeout, **settings, "url": registry.url}
        try:
            self._client = self._schema_registry.SchemaRegistryClient.new_client(options)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(f"{self.where}.client: {error}") from error

    def latest(self, subject: str) -> SchemaVersion:
        """Return the newest version of ``subject``.

        Raises:
            ConfigError: there is no such subject.
        """
        return self._registered(self._latest_version(subject))

    def latest_or_none(self, subject: str) -> SchemaVersion | None:
        """Return the newest version of ``subject``; None if there is no such subject."""
        latest = self._ask(lambda client: client.get_latest_version(subject))
        return None if latest is None else self._registered(latest)

    def type_of_latest(self, subject: str) -> str:
        """Return the registry's type name of the newest schema of ``subject``.

        Raises:
            ConfigError: there is no such subject.
        """
        return str(self._latest_version(subject).schema.schema_type or AVRO)

    def _latest_version(self, subject: str) -> Any:
        version = self._ask(lambda client: client.get_latest_version(subject))
        if version is None:
            raise ConfigError(
                f"The schema registry at {self._registry.url} has no subject {subject!r}. Name "
                f"the one that the topic's {self._part.name}s are registered under in "
                f"source.registry.{self._part.subject_field}; "
                "a topic that nobody has written yet may have none."
            )
        return version

    def latest_reader(self, subject: str) -> SchemaVersion:
        """Return the newest version of ``subject``; its fields can become columns.

        Raises:
            ConfigError: they cannot, or there is no such subject.
        """
        latest = self.latest(subject)
        if fault := self._kind.fault_of(latest.text):
            raise ConfigError(
                f"The latest schema of subject {subject!r} in the registry at "
                f"{self._registry.url} {fault}"
            )
        return latest

    def newest(self, subject: str) -> list[SchemaVersion]:
        """Return the newest versions of ``subject``, newest first, at most :data:`VERSIONS_MAX`."""
        numbers = self._ask(lambda client: client.get_versions(subject)) or []
        newest = sorted(numbers, reverse=True)[:VERSIONS_MAX]
        versions = [self._ask(lambda c, n=n: c.get_version(subject, n)) for n in newest]
        return [self._registered(version) for version in versions if version is not None]

    def text(self, key: str) -> str | None:
        """Return the schema of that id or GUID; None if the registry has none of this type."""
        if key.isdigit():
            schema = self._ask(lambda client: client.get_schema(int(key)))
        else:
            schema = self._ask(lambda client: client.get_schema_by_guid(key))
        if schema is None or (schema.schema_type or AVRO) != self._type:
            return None
        return self._self_contained(schema, f"schema {key}")

    def _registered(self, version: Any) -> SchemaVersion:
        keys = tuple(str(key) for key in (version.schema_id, version.guid) if key is not None)
        name = f"version {version.version} of subject {version.subject!r}"
        text = self._self_contained(version.schema, name)
        return SchemaVersion(
            keys, text, int(version.version), tuple(version.schema.references or ())
        )

    def _self_contained(self, schema: Any, name: str) -> str:
        """Return the text with all references; ``name`` is for errors."""
        schema_type = schema.schema_type or AVRO
        if schema_type != self._type:
            raise ConfigError(
                f"{name} in the schema registry at {self._registry.url} is {schema_type}, and "
                f"the document says {format_of_type(self._type)}"
            )
        named: dict[str, str] = {}
        self._collect(schema, named)
        text = self._kind.self_contained(schema.schema_str, named)
        return key_as_record(self._type, text) if self._part == KEY else text

    def _collect(self, schema: Any, named: dict[str, str]) -> None:
        """Add all references of ``schema``, with those of the references, by name."""
        for reference in schema.references or ():
            version = self._ask(
                lambda c, r=reference: c.get_version(r.subject, r.version, deleted=True)
            )
            if version is None:
                raise ConfigError(
                    f"A schema refers to {reference.name}, version {reference.version} of subject "
                    f"{reference.subject!r}, which the registry at {self._registry.url} lacks."
                )
            named[reference.name] = version.schema.schema_str
            self._collect(version.schema, named)

    def _ask(self, request: Callable[..., _T]) -> _T | None:
        """Return the answer; None if the registry has no such thing."""
        errors = self._schema_registry.error
        try:
            self._client.clear_latest_caches()
            return request(self._client)
        except errors.SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            if error.http_status_code in _LOGIN_REFUSED:
                raise self._unavailable(f"does not let us in: {error}") from error
            raise self._unavailable(f"answered: {error}") from error
        except (self._httpx.HTTPError, errors.OAuthTokenError, OSError) as error:
            raise self._unavailable(f"does not answer: {error or type(error).__name__}") from error

    def _unavailable(self, reason: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"The schema registry at {self._registry.url} {reason}. Nothing was read or committed; "
            "run again when it does."
        )


def _number(name: str, value: str) -> str | float:
    if name not in _NUMBERS:
        return value
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"source.registry.client: {name} is a number") from None
