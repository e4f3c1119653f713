"""`eo schema`: which schemas of a registry a pipeline's columns were of."""

from __future__ import annotations

from eo_pipeline.cli.options import AsJson, Files, Name
from eo_pipeline.cli.output import Output, instant
from eo_pipeline.cli.selection import choose
from eo_pipeline.run.readers import reader_changes


def schema(files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """The schemas of a registry that the table's columns were of, from the ledger alone.

    `eo plan` says what the next run would change; --json has the schemas' texts.
    """
    output = Output(as_json)
    pipeline = choose(files, name).pipeline
    changes = list(reader_changes(pipeline.history()))
    if as_json:
        read = [change.to_json() for change in changes]
        output.document({"pipeline": pipeline.name, "schemas": read})
    elif not changes:
        output.say(f"{pipeline.name}: no checkpoint was read with a schema of a registry")
    rows = [
        (str(c.entry.version), c.schema, instant(c.entry.committed_at), str(c)) for c in changes
    ]
    output.table(("since version", "schema", "committed", "changed"), rows)
