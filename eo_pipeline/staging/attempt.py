"""Staging folders of attempts: manifests, refusals, and the right to delete them.

``<root>/<pipeline>/<ledger id>/<version>-<transaction id>/`` is the folder of one attempt. Its
Parquet files mean nothing until ``manifest.json`` is written, last and atomically; from then on
anyone may commit the attempt, without Kafka and without Spark. ``refused.json`` revokes that for
good. Pipelines of one name may share a staging folder: a ledger keeps to its own part.

An earlier release left out the ledger's id; its manifests name their ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import IO
from urllib.parse import quote

from eo_pipeline import _process
from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import ManifestDamagedError, SetupError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.staging.failures import FailureBook
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.markers import (
    OrphanMarkers,
    Witnesses,
    entry_ids_in,
    is_dead,
    name_of,
    own,
)
from eo_pipeline.staging.rows import StagedFile, StagedTable
from eo_pipeline.storage.backend import StoreUnfitError, StoreUnreachableError
from eo_pipeline.storage.paths import (
    Found,
    Place,
    files_below,
    move,
    parquet_source,
    passes,
    probe,
    relative_name,
    remove_all,
    remove_empty_folders,
    remove_tree,
    sync,
    write_atomically,
)

MANIFEST = "manifest.json"
REFUSED = "refused.json"
_SESSION = "spark.session"
_SET_ASIDE = "_set_aside"


@dataclass(frozen=True)
class Attempt:
    """One attempt's folder. Only its owner writes rows there; anyone may read its manifest."""

    folder: Place
    id: EntryId
    #: None for one of an earlier release that promised nothing, or nothing that can be read
    ledger_id: str | None
    #: below it lie the files; the folder itself, unless the sink stages inside its table
    data: Place
    #: held open by the process that stages here; see :mod:`eo_pipeline.staging.markers`
    owner: IO[str] | None = field(default=None, compare=False, repr=False)
    #: of several tables the one whose files are staged; see :meth:`of_table`
    table: str | None = None
    #: of several tables the folder of each, if the sink stages inside its tables
    tables: Mapping[str, Place] = field(default_factory=dict)

    def of_table(self, name: str) -> Attempt:
        """This attempt, for the files of one of several tables, in folders of their own."""
        if name in self.tables:
            return replace(self, data=self.tables[name], tables={})
        return replace(self, table=name)

    def rows_folder(self) -> Place:
        return self._files / "rows"

    def dead_letters_folder(self) -> Place:
        return self._files / "dead_letters"

    @property
    def _files(self) -> Place:
        return self.data if self.table is None else self.data / "tables" / quote(self.table, "")

    @property
    def name(self) -> str:
        """The name of the folder, unique to the attempt."""
        return name_of(self.id)

    def runs_in(self, session: str) -> None:
        """Its job is about to begin in this session of a Spark Connect server, which goes on with
        it if this process is killed.
        """
        write_atomically(self.folder / _SESSION, session, flushed=False)

    def collect(
        self,
        folder: Place,
        schema_of_none: Callable[[], pa.Schema],
        named: Collection[str] | None = None,
    ) -> StagedTable:
        """The Parquet files Spark left in ``folder``, with sizes and row counts from their
        footers, flushed to disk so that a power cut cannot leave a manifest without its rows.
        ``schema_of_none`` is asked for the columns if there is no file. Of files that tasks gave
        their names those that were ``named``: another one is that of a task that was given up.
        """
        files = [file for file in files_below(folder) if _holds_rows(file.place, folder)]
        if named is not None:
            files = [file for file in files if relative_name(file.place, folder) in named]
        staged = _process.each(self._collected, files)
        return StagedTable(
            schema=_without_metadata(staged[0][1] if staged else schema_of_none()),
            root=self.data,
            files=tuple(file for file, _ in staged if file.rows),
        )

    def _collected(self, file: Found) -> tuple[StagedFile, pa.Schema]:
        sync(file.place)
        with pq.ParquetFile(parquet_source(file.place, file.size)) as parquet:
            name = relative_name(file.place, self.data)
            return StagedFile(name, file.size, parquet.metadata.num_rows), parquet.schema_arrow

    def write_manifest(self, manifest: Manifest) -> None:
        """Checkpoint step 6. After this returns, anyone who finds the attempt can commit it."""
        write_atomically(self.folder / MANIFEST, json.dumps(manifest.to_json()))

    def manifest(self) -> Manifest | None:
        """Return the manifest, ``None`` if there is none (yet).

        Raises:
            SetupError: another version of this package wrote it, in another format.
            ManifestDamagedError: it was cut, emptied or changed.
        """
        path = self.folder / MANIFEST
        try:
            return Manifest.from_json(json.loads(path.read_bytes()), self.data, self.tables)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise ManifestDamagedError(str(path), self.id.version, _in_a_line(error)) from error

    def set_aside(self) -> Place:
        """Keep the manifest under another name, where nobody takes it for a promise. Returns where.

        What was staged stays until the ledger holds the attempt's version.
        """
        aside = self.folder.parent / _SET_ASIDE / f"{self.folder.name}.json"
        move(self.folder / MANIFEST, aside)
        return aside

    @property
    def is_refused(self) -> bool:
        return (self.folder / REFUSED).is_file()

    def refuse(self, reason: str) -> None:
        """Mark the manifest refused, so that nobody meets it again. Deletes nothing: somebody
        else may be committing it at this moment.
        """
        if self.folder.exists():
            write_atomically(self.folder / REFUSED, json.dumps({"reason": reason}))

    @property
    def is_abandoned(self) -> bool:
        """True if nothing was promised here and nobody lives who still could."""
        # in this order: a promise may have been the last thing its owner did
        return is_dead(self.folder) and not (self.folder / MANIFEST).is_file()

    def delete(self) -> None:
        """Remove the attempt, manifest first: what is half-removed must not look committable. The
        folder goes last, since what lies elsewhere is found by it. That it was lost is remembered:
        its job may still run and write there again; see ``StagingArea.sweep`` and ``left_jobs``.
        """
        self._delete(is_lost=True)

    def delete_committed(self, *, rows: bool) -> None:
        """Remove what the ledger does not need any more. ``rows=False``: the files are the table
        now. They stay where they are, and nothing else does: no dead letters (the ledger has them),
        nothing that Spark left.
        """
        if not rows and self._elsewhere:
            self._leave_rows_alone()
        self._delete(is_lost=False, data=rows)

    def _delete(self, *, is_lost: bool, data: bool = True) -> None:
        (self.folder / MANIFEST).unlink(missing_ok=True)
        session = self._session()
        if is_lost and (session is not None or self._elsewhere):
            OrphanMarkers(self.folder.parent).remember(self.id, session)
        if data:
            for folder in self._elsewhere:
                remove_tree(folder)
        remove_tree(self.folder)

    @property
    def _elsewhere(self) -> list[Place]:
        """Folders of files that are not in the attempt's own, but inside tables."""
        return [folder for folder in (self.data, *self.tables.values()) if folder != self.folder]

    def _session(self) -> str | None:
        with suppress(FileNotFoundError):
            return (self.folder / _SESSION).read_text()
        return None

    def _leave_rows_alone(self) -> None:
        with suppress(ManifestDamagedError):
            manifest = self.manifest()
            if manifest is None:
                return
            outputs = manifest.output, *manifest.output.tables.values()
            named = {path for output in outputs if output.rows for path in output.rows.paths()}
            for folder in self._elsewhere:
                remove_all(path for path, _ in [*files_below(folder)] if path not in named)
                remove_empty_folders(folder)


class StagingArea:
    """The staging folders of one pipeline: manifests below ``root``, and rows below ``rows``
    where the sink wants them inside its table, or below those of ``tables``, by their names.
    ``sink`` is where the ledger lives, see ``Sink.describe``. ``witnesses`` are the commits seen
    confirmed, ``failures`` the runs that committed nothing.
    """

    def __init__(
        self,
        root: Place,
        pipeline: str,
        rows: Place | None = None,
        sink: Mapping[str, str] | None = None,
        tables: Mapping[str, Place] = MappingProxyType({}),
    ) -> None:
        self._folder = root.absolute() / pipeline
        self._rows = rows.absolute() / pipeline if rows else None
        self._tables = {name: place.absolute() / pipeline for name, place in tables.items()}
        self.witnesses = Witnesses(self._folder, sink or {})
        self.failures = FailureBook(self._folder)

    def check(self) -> None:
        """Check that manifests and commit receipts can be written here; called before any commit.

        Raises:
            SetupError: they cannot (permission, disk full, no folder).
        """
        with self._usable():
            probe(self._folder)

    def begin(self, entry: LedgerEntry) -> Attempt:
        """Create an empty folder for one attempt.

        Raises:
            SetupError: the folder cannot be made (permission, disk full).
        """
        attempt = self._attempt(entry.id, entry.ledger_id)
        with self._usable():
            attempt.folder.mkdir(parents=True)
            return replace(attempt, owner=own(attempt.folder))

    def sweep(self, head: LedgerEntry) -> None:
        """Remove what Spark jobs of killed clients wrote for attempts after these were removed."""
        lost = OrphanMarkers(self._folder / head.ledger_id)
        for folder in self._inside_tables:  # elsewhere they are found as attempts
            for entry_id in lost.ids():
                remove_tree(folder / name_of(entry_id))
        lost.forget_before(head.version)

    def left_jobs(self, ledger_id: str) -> Iterator[tuple[str, str]]:
        """Yield the names of lost attempts whose Spark jobs may still run, and their sessions; each
        only once, if the caller takes the next.
        """
        lost = OrphanMarkers(self._folder / ledger_id)
        for entry_id, session in lost.jobs():
            yield name_of(entry_id), session
            if not self._inside_tables:
                lost.forget(entry_id)
            else:
                lost.forget_job(entry_id)

    @property
    def _inside_tables(self) -> list[Place]:
        return [folder for folder in (self._rows, *self._tables.values()) if folder is not None]

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except StoreUnfitError as error:
            raise SetupError(
                f"staging: {self._folder} cannot be used: {error.strerror}. Nothing was read or "
                "written. Use a store that can, or a folder."
            ) from error
        except StoreUnreachableError:
            raise  # nobody need set anything right
        except OSError as error:
            if passes(error):
                raise
            raise SetupError(
                f"the staging folder {self._folder} cannot be used: {error.strerror}. Free space "
                "or set Pipeline.staging to a folder this process may write."
            ) from error

    def attempts(self, ledger_id: str | None) -> list[Attempt]:
        """Return the attempts at the ledger ``ledger_id`` and those at an unknown one, oldest
        version first. None: only the latter.
        """
        ours = entry_ids_in(self._folder / ledger_id) if ledger_id else []
        attempts = [self._attempt(entry_id, ledger_id) for entry_id in ours]
        earlier = map(self._of_earlier_release, entry_ids_in(self._folder))
        attempts += [attempt for attempt in earlier if attempt.ledger_id in (None, ledger_id)]
        return sorted(attempts, key=lambda attempt: attempt.id)

    def attempts_at(self, ledger_id: str) -> list[Attempt]:
        """Attempts at the ledger ``ledger_id`` for sure, oldest version first."""
        return [a for a in self.attempts(ledger_id) if a.ledger_id == ledger_id]

    def _attempt(self, entry_id: EntryId, ledger_id: str | None) -> Attempt:
        name = name_of(entry_id)
        folder = (self._folder / ledger_id if ledger_id else self._folder) / name
        data = self._rows / name if self._rows else folder
        tables = {table: place / name for table, place in self._tables.items()}
        return Attempt(folder, entry_id, ledger_id, data, tables=tables)

    def _of_earlier_release(self, entry_id: EntryId) -> Attempt:
        attempt = self._attempt(entry_id, None)
        with suppress(ManifestDamagedError):
            if manifest := attempt.manifest():
                return replace(attempt, ledger_id=manifest.entry.ledger_id)
        return attempt


def _holds_rows(place: Place, folder: Place) -> bool:
    name = relative_name(place, folder)
    return name.endswith(".parquet") and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    """By Spark's own rule. What is below ``_temporary`` was not taken: a task that was tried twice
    may still write there once its job is over.
    """
    parts = name.split("/")
    return any(p.startswith(".") or (p.startswith("_") and "=" not in p) for p in parts)


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` without the annotations of Spark and Parquet, which no sink reads."""
    return pa.schema([pa.field(f.name, f.type, f.nullable) for f in schema])
