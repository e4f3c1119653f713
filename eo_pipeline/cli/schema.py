"""`eo json-schema`: what editors need to complete and check a document."""

from __future__ import annotations

import json

import typer

from eo_pipeline.json_schema import document_schema


def json_schema() -> None:
    """Print the JSON Schema of a pipeline's document, for editors.

    With YAML in VS Code, first line of the document: # yaml-language-server: $schema=eo.schema.json
    """
    typer.echo(json.dumps(document_schema(), indent=2, ensure_ascii=False))
