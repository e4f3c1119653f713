"""What a document's fields hold, for editors and for the page of a component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema

from eo_pipeline.json_schema import model_schema, sink_schema
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.spark import SparkSettings
from eo_pipeline.storage import Storage

_TOLD: Mapping[str, Callable[[], dict[str, Any]]] = {
    "source": lambda: model_schema(KafkaSource),
    "sink": sink_schema,
    "storage": lambda: model_schema(Storage),
    "spark": lambda: model_schema(SparkSettings),
}


class _Told(BaseModel):
    """Fields of :data:`_TOLD` are described when somebody asks for a schema. A run asks for none,
    and that of all sinks needs the modules of all of them.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        whole = handler.resolve_ref_schema(schema)
        whole["additionalProperties"] = False
        fields = whole["properties"]
        for name, told in _TOLD.items():
            fields[name].update(told())
        return schema


@cache
def told_when_asked(model: type[BaseModel]) -> type[BaseModel]:
    """``model`` of a document, with what its parts hold. It takes fields that it does not have, so
    that they are told with whatever else is wrong.
    """
    return create_model(
        model.__name__,
        __base__=(_Told, model),
        __module__=model.__module__,
        __cls_kwargs__={"extra": "allow"},
    )
