"""A project of somebody else's, in a folder of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

_PYPROJECT = """\
[project]
name = "{package}"
version = "1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{package}"
code_location_target_module = "{package}.definitions"
"""

_DEFINITIONS = """\
from pathlib import Path

import dagster as dg

from eo_pipeline.dagster import load_pipelines


@dg.definitions
def defs() -> dg.Definitions:
    return load_pipelines(Path(__file__).parent)
"""


def write_project(folder: Path, *documents: str, name: str = "orders") -> Path:
    """A Dagster project in ``folder``; the attributes in ``documents`` make one defs.yaml. Gives
    the package's folder, whose name no other test uses: Python imports a name once.
    """
    package = folder / f"project_{folder.name}"
    place = package / "defs" / name
    place.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(package=package.name))
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(_DEFINITIONS)
    header = "type: eo_pipeline.dagster.KafkaPipelineComponent\nattributes:\n"
    texts = [header + textwrap.indent(document, "  ") for document in documents]
    if texts:
        (place / "defs.yaml").write_text("---\n".join(texts))
    return package
