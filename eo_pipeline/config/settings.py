"""Base class of all settings, and validation errors as text without values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from eo_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

#: The catalog by which Spark knows the functions of the native jar.
FUNCTION_CATALOG = "eo_pipeline"

#: What pydantic puts before the text of a ValueError.
_PREFIX = "Value error, "


#: A member of an enumeration as Python shows it.
_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")


class Problem(NamedTuple):
    """One thing that is wrong: at which field, and how."""

    location: tuple[int | str, ...]
    text: str

    def __str__(self) -> str:
        return ": ".join([*filter(None, [".".join(map(str, self.location))]), self.text])


def problems(error: ValidationError) -> list[Problem]:
    """Everything that is wrong. Values are left out: they may be secrets."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return [Problem(each["loc"], _in_words(each["msg"])) for each in found]


def _in_words(text: str) -> str:
    """Without the marks of Python's own."""
    return _MEMBER.sub(r"\1", text.removeprefix(_PREFIX))


@contextmanager
def told_as_config_error(
    what: str,
    *,
    below: tuple[str, ...] = (),
    more: Iterable[Problem] = (),
    line_of: Callable[[Problem], int | None] = lambda _: None,
) -> Iterator[None]:
    """Pydantic's errors as ours.

    Args:
        what: is not valid, says the first line; a line follows for each problem.
        below: the field that what is validated belongs to.
        more: problems that were found before.
        line_of: the line of a document in which a problem stands.

    Raises:
        ConfigError: names every wrong field, and never shows a value.
    """
    found, cause = [*more], None
    try:
        yield
    except ValidationError as error:
        found += [Problem((*below, *at), text) for at, text in problems(error)]
        cause = error
    if found:
        placed = sorted((line_of(each) or 0, number) for number, each in enumerate(found))
        lines = [f"  line {n}: {found[i]}" if n else f"  {found[i]}" for n, i in placed]
        raise ConfigError("\n".join([f"{what} is not valid:", *lines])) from cause


class _Constructor(ModelMetaclass):
    """Calls the class. Pydantic does not when it validates a model inside another one, so that
    what is wrong in several of them is still told at once, each at its field.
    """

    def __call__(self, *args: Any, **fields: Any) -> Any:
        with told_as_config_error(self.__name__):
            return super().__call__(*args, **fields)


class Settings(BaseModel, metaclass=_Constructor):
    """Frozen; a field that does not exist is an error, and no error shows a value.

    Calling the class raises ConfigError. ``model_validate`` is pydantic's own and raises its
    ValidationError: a validator uses it, for the problems inside to be told at their fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="wrap")
    @classmethod
    def _hint_at_what_was_meant(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """A field that does not exist, and is a slip of the pen, is answered with the right one."""
        try:
            return validate(data)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            known = [field.alias or name for name, field in cls.model_fields.items()]
            told = [_with_hint(each, known) for each in found]
            raise ValidationError.from_exception_data(error.title, told) from error


def _with_hint(found: ErrorDetails, known: Iterable[str]) -> InitErrorDetails:
    """The same problem, and the name in ``known`` that an unknown field of this model is like."""
    text, at = found["msg"].removeprefix(_PREFIX), found["loc"]
    if found["type"] == "extra_forbidden" and len(at) == 1:
        text += f";{did_you_mean(str(at[0]), known)}".rstrip(";")
    problem = PydanticCustomError(found["type"], "{text}", {"text": text})
    return InitErrorDetails(type=problem, loc=at, input=None)


def one_or_more(value: Any) -> Any:
    """For a field that holds several texts: one alone is a list of one."""
    return (value,) if isinstance(value, str) else value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` did you mean x?``; empty if nothing in ``known`` is like ``name``."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" did you mean {close[0]}?" if close else ""


def as_text(value: Any) -> Any:
    """Let YAML's true and 30 stand where a Kafka client setting is text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: librdkafka settings as a user writes them; any of them may be a secret.
ClientSettings = Mapping[
    str,
    Annotated[
        SecretStr,
        BeforeValidator(as_text),
        WithJsonSchema({"type": ["string", "number", "boolean"], "writeOnly": True}),
    ],
]
