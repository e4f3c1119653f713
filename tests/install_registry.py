"""Fetches the schema registry that the tests start, 142 MB, once."""

from __future__ import annotations

import sys

from eo_pipeline.embedded.jars import registry_jar
from eo_pipeline.errors import SetupError
from tests.servers import STATE

if __name__ == "__main__":
    if not any((STATE / "jars").glob("apicurio-*/")):
        sys.stdout.write("Fetching a schema registry (once) ...\n")
    try:
        registry_jar(STATE)
    except SetupError as error:
        sys.exit(f"tests/install_registry.py: {error}")
