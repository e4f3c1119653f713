"""What `dg scaffold defs` writes: a document that loads as it is and runs after two edits."""

from __future__ import annotations

import dagster as dg
from pydantic import BaseModel, Field

_DOCUMENT = """\
type: {type_name}

attributes:
  name: {name}
  description: What one row of the table is.

  source:
    bootstrap_servers: "{{{{ env('EO_KAFKA_BOOTSTRAP', '127.0.0.1:9092') }}}}"
    topics: [{topic}]
    value_format: json
    # a field declared NOT NULL must be in every record
    value_schema: id BIGINT NOT NULL, name STRING
    start: earliest # or latest, {{timestamp: ...}}, {{group: ...}}, {{offsets: ...}}
    on_bad_record: fail # or dead_letter

  # DataFrame -> DataFrame; it must keep the column _kafka
  # transform: my_package.my_module:my_function

  sink:
    # prints what it would write; for a table:
    #   type: postgres
    #   dsn: "{{{{ env.EO_PG_DSN }}}}"
    #   table: {name}
    type: console

  # a run starts when at least this many records wait
  lag_threshold: 1
  # ... and at these times, whatever waits
  # schedule: "*/15 * * * *"

  # start with `stopped`, switch them on in the UI
  sensors: stopped
"""


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs`."""

    topic: str | None = Field(None, description="The Kafka topic; the folder's name if absent.")


class KafkaPipelineScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes one commented document."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """What may be given on the command line."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write `defs.yaml`, or add a document to the one that is there."""
        folder = request.target_path.parent if request.append else request.target_path
        name = folder.name.lower()
        document = _DOCUMENT.format(
            type_name=request.type_name, name=name, topic=request.params.topic or name
        )
        if request.append:
            with request.target_path.open("a") as file:
                file.write(f"---\n{document}")
        else:
            (folder / "defs.yaml").write_text(document)
