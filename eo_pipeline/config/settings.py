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

#: Prefix that pydantic adds to the text of a ValueError.
_PREFIX = "Value error, "

#: Python's representation of an enumeration's member.
_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")


class Problem(NamedTuple):
    """A validation error: path of the field, and the text."""

    location: tuple[int | str, ...]
    text: str

    def __str__(self) -> str:
        return ": ".join([*filter(None, [".".join(map(str, self.location))]), self.text])


def problems(error: ValidationError) -> list[Problem]:
    """Return all validation errors, without values, which may be secrets."""
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    return [Problem(detail["loc"], _in_words(detail["msg"])) for detail in errors]


def _in_words(text: str) -> str:
    """Return ``text`` without Python's notation."""
    return _MEMBER.sub(r"\1", text.removeprefix(_PREFIX))


@contextmanager
def as_config_error(
    what: str,
    *,
    below: tuple[str, ...] = (),
    more: Iterable[Problem] = (),
    line_of: Callable[[Problem], int | None] = lambda _: None,
) -> Iterator[None]:
    """Convert pydantic's errors within the block to a ConfigError.

    Args:
        what: the validated object, for the first line; a line for each problem follows.
        below: the path of the field that is validated.
        more: problems found before.
        line_of: returns a problem's line in the document.

    Raises:
        ConfigError: names all invalid fields, and shows no value.
    """
    errors, cause = [*more], None
    try:
        yield
    except ValidationError as error:
        errors += [Problem((*below, *location), text) for location, text in problems(error)]
        cause = error
    if errors:
        ordered = sorted((line_of(problem) or 0, number) for number, problem in enumerate(errors))
        lines = [
            f"  line {line}: {errors[index]}" if line else f"  {errors[index]}"
            for line, index in ordered
        ]
        raise ConfigError("\n".join([f"{what} is not valid:", *lines])) from cause


class _Constructor(ModelMetaclass):
    """Raises ConfigError when the class is called. Pydantic does not call the class of a nested
    model: its errors are still collected with the others, each at its field.
    """

    def __call__(self, *args: Any, **fields: Any) -> Any:
        with as_config_error(self.__name__):
            return super().__call__(*args, **fields)


class Settings(BaseModel, metaclass=_Constructor):
    """Frozen settings; an unknown field is an error, and no error shows a value.

    Calling the class raises ConfigError. Pydantic's ``model_validate`` raises ValidationError: a
    validator uses it, so that nested errors keep their fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="wrap")
    @classmethod
    def _suggest_fields(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Suggest the similar field in the error of an unknown one."""
        try:
            return validate(data)
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False, include_context=False)
            names = [field.alias or name for name, field in cls.model_fields.items()]
            hinted = [_with_hint(detail, names) for detail in details]
            raise ValidationError.from_exception_data(error.title, hinted) from error


def _with_hint(detail: ErrorDetails, names: Iterable[str]) -> InitErrorDetails:
    """Return the error, for an unknown field of this model with the similar one of ``names``."""
    text, location = detail["msg"].removeprefix(_PREFIX), detail["loc"]
    if detail["type"] == "extra_forbidden" and len(location) == 1:
        text += f";{did_you_mean(str(location[0]), names)}".rstrip(";")
    problem = PydanticCustomError(detail["type"], "{text}", {"text": text})
    return InitErrorDetails(type=problem, loc=location, input=None)


def one_or_more(value: Any) -> Any:
    """Convert a single text to a tuple, for a field with several."""
    return (value,) if isinstance(value, str) else value


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `` did you mean x?``; empty if none of ``names`` is similar to ``name``."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" did you mean {close[0]}?" if close else ""


def as_text(value: Any) -> Any:
    """Convert YAML's true and 30 to the text of a Kafka client setting."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: librdkafka settings of a user; each may be a secret.
ClientSettings = Mapping[
    str,
    Annotated[
        SecretStr,
        BeforeValidator(as_text),
        WithJsonSchema({"type": ["string", "number", "boolean"], "writeOnly": True}),
    ],
]
