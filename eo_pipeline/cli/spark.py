"""``eo spark``: a warm Spark for the runs of this project."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from eo_pipeline.cli.options import AsJson, Files, Name, documents, load, seconds
from eo_pipeline.cli.output import EPILOG, ExitCode, Output, counted, duration, instant
from eo_pipeline.errors import ConfigError
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.launch import submit_arguments
from eo_pipeline.spark.server.archive_maker import make_archive
from eo_pipeline.spark.server.manage import (
    EVERYWHERE,
    LOOPBACK,
    Answer,
    ServerOptions,
    ask,
    start,
    stop,
)
from eo_pipeline.spark.server.record import ServerRecord, UnreadableRecordError, nearest

_MIB = 1024**2

_Idle = Annotated[str, typer.Option(help="Stop after this long without use: 45s, 30m, 2h; never.")]
_Host = Annotated[
    str, typer.Option(help=f"{LOOPBACK}, or {EVERYWHERE}: every address of this machine.")
]
_Remote = Annotated[
    bool,
    typer.Option(
        "--remote", help="Only the address with its token, for SPARK_REMOTE: it is a secret."
    ),
]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")]

app = typer.Typer(
    help="Manage a warm Spark for runs started in this folder or below.",
    no_args_is_help=True,
)


@app.command("start", epilog=EPILOG)
def start_spark(
    idle_timeout: _Idle = "30m",
    host: _Host = LOOPBACK,
    port: _Port = 0,
    files: Files = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Start a Spark Connect server for this folder, with the settings of its pipelines.

    `eo run`, Dagster's runs and audits that are started here find it by themselves.
    """
    output = Output(as_json)
    settings = _settings(files, name)
    wanted = ServerOptions(
        settings.master, settings.launch(), _host(host), port, _idle_s(idle_timeout)
    )
    with output.busy("Starting Spark"):
        record, is_new = start(Path.cwd(), wanted)
    if as_json:
        output.document({"started": is_new, **_record_json(record)})
    output.say(f"{record} {'is up' if is_new else 'runs already'}; Spark {_versions(record)}")
    output.say("Runs find it by themselves; for a notebook see `eo spark status --remote`.")


def _settings(files: list[Path] | None, name: str | None) -> SparkSettings:
    """Return the documents' common settings; Spark's defaults if there is no document."""
    try:
        listed = documents(files, name)
    except ConfigError:
        if files or name:
            raise
        return SparkSettings()
    settings = {document.name: load(document).spark for document in listed}
    first = next(iter(settings.values()))
    for other, other_settings in settings.items():
        if (other_settings.master, other_settings.launch()) != (first.master, first.launch()):
            raise ConfigError(
                f"{next(iter(settings))} and {other} have different `spark` settings, and a warm "
                "Spark has one: choose a pipeline with --pipeline."
            )
    return first


def _host(text: str) -> str:
    """Check the address. Spark's token is sent without TLS, and by pyspark to localhost alone."""
    if text not in (LOOPBACK, EVERYWHERE):
        raise ConfigError(f"--host takes {LOOPBACK} or {EVERYWHERE}")
    return text


def _idle_s(text: str) -> float:
    idle_s = 0.0 if text == "never" else seconds(text)
    if idle_s is None:
        raise ConfigError("--idle-timeout takes 45s, 30m, 2h, or never")
    return idle_s


@app.command("status", epilog=EPILOG)
def spark_status(remote: _Remote = False, as_json: AsJson = False) -> None:
    """Show the warm Spark of this folder, if any: address, version, start time, and activity.

    Exit code 3 if none does: there is none, it has ended, or it does not answer.
    """
    output = Output(as_json)
    record, problem = _nearest()
    answer = ask(record) if record else None
    if remote and record is not None and answer is not None:
        output.say(record.remote)
        return
    if record is not None and answer is None:
        problem = "does not answer: `eo spark stop` ends it" if record.alive else "has ended"
    if as_json:
        output.document(_status_json(record, answer, problem))
    if record is None:
        output.say(problem)
    elif answer is None:
        output.say(f"{record} {problem}. Its log: {record.log}")
    else:
        _show(output, record, answer)
    if answer is None:
        raise typer.Exit(ExitCode.DIFFERENCES)


def _nearest() -> tuple[ServerRecord | None, str]:
    """Return the record, or the reason why there is none."""
    try:
        return nearest(Path.cwd()), f"No warm Spark was started in {Path.cwd()} or above."
    except UnreadableRecordError as error:
        return None, f"{error}; `eo spark start` writes it anew."


def _show(output: Output, record: ServerRecord, answer: Answer) -> None:
    now = answer.activity
    doing = counted(now.busy, "job") if now.busy else f"idle for {duration(now.idle_s)}"
    ends = duration(record.idle_timeout_s) if record.idle_timeout_s else "never"
    heap = f"heap {answer.heap_used_bytes // _MIB} of {answer.heap_max_bytes // _MIB} MiB"
    resident = answer.resident_bytes
    for name, value in (
        ("folder", record.folder),
        ("address", f"sc://localhost:{record.port}"),
        ("process", f"{record.pid}, its watcher {record.watcher_pid}"),
        ("since", instant(datetime.fromisoformat(record.since))),
        ("versions", _versions(record)),
        ("now", f"{doing}, {counted(now.sessions, 'session')}; ends when idle for: {ends}"),
        ("memory", heap + (f", process {resident // _MIB} MiB" if resident else "")),
        ("archive", answer.archive or "none of Spark's classes"),
        ("log", record.log),
    ):
        output.say(f"{name:<9} {value}")


def _versions(record: ServerRecord) -> str:
    return ", ".join(f"{name} {version}" for name, version in record.versions.items())


def _status_json(
    record: ServerRecord | None, answer: Answer | None, problem: str
) -> dict[str, Any]:
    if record is None or answer is None:
        return {"running": False, "problem": problem} | (_record_json(record) if record else {})
    since = datetime.now(UTC) - timedelta(seconds=answer.activity.idle_s)
    idle_since = None if answer.activity.busy else since.isoformat(timespec="seconds")
    memory = {key: value for key, value in asdict(answer).items() if key != "activity"}
    return {
        "running": True,
        **_record_json(record),
        "busy": answer.activity.busy,
        "sessions": answer.activity.sessions,
        "idle_since": idle_since,
        **memory,
    }


def _record_json(record: ServerRecord) -> dict[str, Any]:
    """Return the record without its credentials."""
    shown = ("folder", "host", "port", "pid", "since", "idle_timeout_s", "log", "versions")
    return {key: value for key, value in asdict(record).items() if key in shown}


@app.command("archive", epilog=EPILOG)
def archive_spark(files: Files = None, name: Name = None, as_json: AsJson = False) -> None:
    """Create a class-data-sharing archive for faster cold starts of Spark (takes about 30 s).

    It is used with the same Java, jars and user. When it no longer matches, the next command that
    misses it recreates it in the background; or run this command again.
    """
    output = Output(as_json)
    settings = _settings(files, name)
    with output.busy("Rehearsing a run, to write its classes down"):
        arguments = submit_arguments(settings.master, settings.launch())
        archive, is_new = make_archive(arguments)
    size = archive.stat().st_size
    if as_json:
        output.document({"archive": str(archive), "made": is_new, "bytes": size})
    output.say(f"{archive}, {size // _MIB} MiB, {'made' if is_new else 'is there already'}")


@app.command("stop", epilog=EPILOG)
def stop_spark(as_json: AsJson = False) -> None:
    """Stop the warm Spark of this folder, even if it hangs; a job on it fails and is repeated by
    the next run.
    """
    output = Output(as_json)
    record, problem = _nearest()
    ended = stop(Path(record.folder) if record else Path.cwd())
    if as_json:
        output.document({"stopped": ended is not None} | (_record_json(ended) if ended else {}))
    output.say(
        f"{ended} has ended." if ended else problem if not record else f"{record} had ended."
    )
