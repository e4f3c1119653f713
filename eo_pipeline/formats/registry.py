"""Settings and client of a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import Field, field_validator

from eo_pipeline._lazy import library
from eo_pipeline.config.settings import ClientSettings, Settings
from eo_pipeline.errors import ConfigError, RegistryUnavailableError
from eo_pipeline.formats.kinds import format_of_type, kind_of, plain_or_record
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.ledger.schemas import AVRO

_T = TypeVar("_T")

#: Of a subject that is seen for the first time so many versions are looked at, the newest.
VERSIONS_MAX = 20

#: Settings of the client that are numbers.
_NUMBERS = frozenset(
    {
        *("timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries"),
        *("retries.wait.ms", "retries.max.wait.ms"),
    }
)

#: What a registry says of a subject, a version or a schema that it does not have.
_NOT_FOUND = 404
_OF_A_LOGIN = frozenset({401, 403})


class Registry(Settings):
    """A schema registry that speaks Confluent's interface.

    Args:
        url: ``http://host:port``, several with commas.
        subject, key_subject: whose latest schemas give the columns; ``<topic>-value`` and
            ``<topic>-key`` if absent.
        client: settings of ``confluent_kafka.schema_registry`` (``basic.auth.user.info``,
            ``bearer.auth.*``, ``ssl.*``, ``max.retries`` ...).
        timeout: seconds to wait for an answer, each time.
    """

    url: str = Field(min_length=1)
    subject: str | None = Field(default=None, min_length=1)
    key_subject: str | None = Field(default=None, min_length=1)
    client: ClientSettings = Field(default_factory=dict, repr=False)
    timeout: float = Field(default=10.0, gt=0)

    @field_validator("url")
    @classmethod
    def _holds_no_password(cls, url: str) -> str:
        for each in url.split(","):
            scheme, _, rest = each.strip().partition("://")
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
class Registered:
    """One version of a subject: the keys of its schema, the schema's text, and its references as
    the registry's client has them.
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
) -> Registered:
    """The newest version of ``subject``, whose fields can become columns.

    Raises:
        RegistryUnavailableError: the registry does not answer, or does not let us in.
        ConfigError: they cannot, or there is no such subject.
        SetupError: the packages it takes are not installed.
    """
    return RegistryClient(registry, schema_type, message, part).latest_reader(subject)


def type_of_latest(registry: Registry, subject: str) -> str:
    """What the registry calls the kind of schema that ``subject`` has now.

    Raises:
        RegistryUnavailableError: the registry does not answer, or does not let us in.
        ConfigError: there is no such subject.
        SetupError: the packages it takes are not installed.
    """
    return RegistryClient(registry, AVRO).type_of_latest(subject)


class RegistryClient:
    """Asks one registry for schemas of one type. Texts are self-contained: what a schema refers to
    is written out in it.

    Raises (all methods):
        RegistryUnavailableError: it does not answer, or does not let us in.
        ConfigError: what it holds is of another type.
        SetupError: the packages it takes are not installed.
    """

    #: Where in a document the registry stands.
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
        asked = {"timeout": registry.timeout, **settings, "url": registry.url}
        try:
            self._client = self._schema_registry.SchemaRegistryClient.new_client(asked)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(f"{self.where}.client: {error}") from error

    def latest(self, subject: str) -> Registered:
        """The newest version of ``subject``, as it is now.

        Raises:
            ConfigError: there is no such subject.
        """
        return self._registered(self._latest_version(subject))

    def found(self, subject: str) -> Registered | None:
        """The newest version of ``subject``; None if there is no such subject."""
        latest = self._asked(lambda client: client.get_latest_version(subject))
        return None if latest is None else self._registered(latest)

    def type_of_latest(self, subject: str) -> str:
        """What the registry calls the kind of schema that ``subject`` has now.

        Raises:
            ConfigError: there is no such subject.
        """
        return str(self._latest_version(subject).schema.schema_type or AVRO)

    def _latest_version(self, subject: str) -> Any:
        found = self._asked(lambda client: client.get_latest_version(subject))
        if found is None:
            raise ConfigError(
                f"The schema registry at {self._registry.url} has no subject {subject!r}. Name "
                f"the one that the topic's {self._part.name}s are registered under in "
                f"source.registry.{self._part.subject_field}; "
                "a topic that nobody has written yet may have none."
            )
        return found

    def latest_reader(self, subject: str) -> Registered:
        """The same as :meth:`latest`, if its fields can become columns.

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

    def newest(self, subject: str) -> list[Registered]:
        """The newest versions of ``subject``, the newest first, :data:`VERSIONS_MAX` at most."""
        numbers = self._asked(lambda client: client.get_versions(subject)) or []
        newest = sorted(numbers, reverse=True)[:VERSIONS_MAX]
        found = [self._asked(lambda c, n=n: c.get_version(subject, n)) for n in newest]
        return [self._registered(each) for each in found if each is not None]

    def text(self, key: str) -> str | None:
        """The schema of that number or GUID; None if the registry has none of our type."""
        if key.isdigit():
            found = self._asked(lambda client: client.get_schema(int(key)))
        else:
            found = self._asked(lambda client: client.get_schema_by_guid(key))
        if found is None or (found.schema_type or AVRO) != self._type:
            return None
        return self._self_contained(found, f"schema {key}")

    def _registered(self, found: Any) -> Registered:
        keys = tuple(str(key) for key in (found.schema_id, found.guid) if key is not None)
        what = f"version {found.version} of subject {found.subject!r}"
        text = self._self_contained(found.schema, what)
        return Registered(keys, text, int(found.version), tuple(found.schema.references or ()))

    def _self_contained(self, schema: Any, what: str) -> str:
        found = schema.schema_type or AVRO
        if found != self._type:
            raise ConfigError(
                f"{what} in the schema registry at {self._registry.url} is {found}, and "
                f"the document says {format_of_type(self._type)}"
            )
        named: dict[str, str] = {}
        self._collect(schema, named)
        text = self._kind.self_contained(schema.schema_str, named)
        return plain_or_record(self._type, text) if self._part == KEY else text

    def _collect(self, schema: Any, named: dict[str, str]) -> None:
        """What ``schema`` refers to, and what that refers to, by name."""
        for reference in schema.references or ():
            found = self._asked(
                lambda c, r=reference: c.get_version(r.subject, r.version, deleted=True)
            )
            if found is None:
                raise ConfigError(
                    f"A schema refers to {reference.name}, version {reference.version} of subject "
                    f"{reference.subject!r}, which the registry at {self._registry.url} lacks."
                )
            named[reference.name] = found.schema.schema_str
            self._collect(found.schema, named)

    def _asked(self, question: Callable[..., _T]) -> _T | None:
        """The answer; None if there is no such thing."""
        errors = self._schema_registry.error
        try:
            self._client.clear_latest_caches()
            return question(self._client)
        except errors.SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            if error.http_status_code in _OF_A_LOGIN:
                raise self._away(f"does not let us in: {error}") from error
            raise self._away(f"answered: {error}") from error
        except (self._httpx.HTTPError, errors.OAuthTokenError, OSError) as error:
            raise self._away(f"does not answer: {error or type(error).__name__}") from error

    def _away(self, what: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"The schema registry at {self._registry.url} {what}. Nothing was read or committed; "
            "run again when it does."
        )


def _number(name: str, value: str) -> str | float:
    if name not in _NUMBERS:
        return value
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"source.registry.client: {name} is a number") from None
