"""``eo metrics``: where pipelines stand, for Prometheus."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from eo_pipeline.cli.options import Files, Name
from eo_pipeline.cli.output import Output
from eo_pipeline.cli.selection import documents, load
from eo_pipeline.cli.telling import note
from eo_pipeline.errors import SetupError
from eo_pipeline.wording import to_install

_LOOPBACK = "127.0.0.1"

_Port = Annotated[int, typer.Option(min=0, max=65535, help="Where Prometheus asks; 0: any free.")]
_Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: every one.")]
_Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")]
_TextFile = Annotated[
    Path | None,
    typer.Option(
        "--textfile",
        help="Look once, write this file for the node exporter's textfile collector, and end.",
    ),
]


def metrics(
    port: _Port = 9464,
    host: _Host = _LOOPBACK,
    every: _Every = 15.0,
    textfile: _TextFile = None,
    files: Files = None,
    name: Name = None,
) -> None:
    """Lag, rows, ages and counts of each pipeline for Prometheus, until interrupted.

    From the ledger and from Kafka, whoever ran the pipelines. A scrape looks at nothing itself.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile

        from eo_pipeline.metrics import Observed, PipelineMetrics, keep_looking, look_at_all
    except ImportError as error:
        raise SetupError(
            f"Metrics take a package that is not installed ({error}): {to_install('metrics')}"
        ) from error
    output = Output()
    found = documents(files, name)
    observed = [Observed(each.name, functools.partial(load, each), note) for each in found]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PipelineMetrics(observed))
    if textfile is not None:
        look_at_all(observed)
        try:
            write_to_textfile(str(textfile), registry)
        except OSError as error:
            raise SetupError(
                f"--textfile {textfile} cannot be written: {error.strerror}. Make its folder, or "
                "name another."
            ) from error
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SetupError(
            f"{host}:{port} cannot be listened on: {error}. Name another --port."
        ) from error
    for each in observed:
        keep_looking(each, every)
    output.say(f"http://{host}:{server.server_port}/metrics")
    try:
        thread.join()
    finally:
        server.shutdown()
