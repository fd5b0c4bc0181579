"""A run's folder on disk: tables that grow, and a checkpoint that is replaced in one step.

A run that resumes from a checkpoint gives the same bits. On resume, the tables are compared with
the manifest `checkpoint.json`, and cut back to the lengths in it.

Used in most packages.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from vergence import profiling
from vergence.core import files as disk
from vergence.core.files import JsonObject, parse_json, part_of, saving, settle
from vergence.core.local_training import Precision
from vergence.core.serialization import Packed, digest, memory_allowance, quick_digest, unpack
from vergence.engine.storage.checkpoint_validation import MEND, alike, fits, wrong
from vergence.engine.storage.run_tables import OPTIONAL, TABLES, Marks, TableFiles
from vergence.engine.storage.state_journal import (
    JournalPosition,
    StateJournal,
    StateRef,
    read_journal,
)
from vergence.errors import StateError
from vergence.privacy.release_log import BOOKS, FOLDER, log_ends, refuse_older

if TYPE_CHECKING:
    from vergence.engine.storage.client_states import ClientStateIndex, StateChanges


LAST = ("round", "files", "best", "tables", "digests")
"""Entries of a manifest that stay with a finished seed, which may have more rounds later."""


class SolverChoice(NamedTuple):
    """How the clients of a run are trained.

    Attributes:
        solver: `sequential` (clients one by one) or `stacked` (several as one batched network).
        chunk: number of clients that a worker trains at once.
        precision: number format of training.
        device: kind of device: `cpu` or `cuda`.
        reason: why these settings were chosen, for results.json.
    """

    solver: str
    chunk: int
    precision: Precision
    device: str
    reason: str


@dataclass(frozen=True)
class Checkpoint:
    """Progress of a seed.

    Attributes:
        round: number of rounds that are done.
        server: state of the method's server.
        filed: client -> reference to the file of its state.
        engine_state: name -> part of the engine's own state, such as the virtual clock's.
        unmeasured: whether `round` was the last one of a run that now has more rounds, so that
            people were not evaluated before the method's `finish`.
        best: the states at the best evaluation so far, if the run goes back to them at its end.
    """

    round: int
    server: object
    filed: Mapping[str, StateRef]
    engine_state: Mapping[str, object] = field(default_factory=dict)
    unmeasured: bool = False
    best: Checkpoint | None = None


@dataclass
class RunDirectory:
    """The folder of one run.

    Attributes:
        path: the folder.
        stamp: digests of code and config; a run with other digests cannot resume here.
        manifest: content of the last checkpoint's manifest.
        elsewhere: whether clients, and their states, are on other machines, as in a deployment.
        background: whether a thread hashes and writes the checkpoints of unfinished seeds, while
            the run goes on. Parts of states must not change in place then.
    """

    path: Path
    stamp: Mapping[str, str]
    manifest: JsonObject = field(default_factory=dict)
    elsewhere: bool = False
    background: bool = False
    _server: object = None
    _engine_state: dict[str, object] = field(default_factory=dict)
    _journal: StateJournal | None = None
    _spare: Path | None = None
    _writer: Thread | None = None
    _failure: list[BaseException] = field(default_factory=list)
    _marks: Marks = field(default_factory=dict)
    _merged: list[Path] = field(default_factory=list)
    _tables: TableFiles = field(init=False)

    def __post_init__(self) -> None:
        self._tables = TableFiles(self.path)

    @property
    def state(self) -> Path:
        """Folder of state files."""
        return self.path / "state"

    def open(self) -> None:
        """Create the tables of a new run, or cut an interrupted run's tables to its checkpoint.

        Raises:
            StateError: the checkpoint is damaged, or comes from another config or code version.
        """
        with saving(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            if (self.state / "checkpoint.json").exists():
                self.manifest = read_manifest(self.path)
                check_stamp(self.path, self.manifest["stamp"], self.stamp)
                refuse_older(self.state / FOLDER, self.manifest.get("books", {}))
                self._tables.reopen(self.manifest)
                self._sweep()
                return
            self.manifest = {"stamp": dict(self.stamp), "done": {}, "seed": None, "solving": None}
            self._sweep()
            self._tables.begin()

    def append(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a table."""
        with saving(self.path), profiling.phase("checkpoints"):
            self._tables.append(table, rows)

    def cost(self, seed: int, round: int) -> Sequence[str] | None:
        """Return the cost columns of a round in rounds.csv, as text; None: the round has no row."""
        with (self.path / "rounds.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row[:2] == [str(seed), str(round)]]
        return rows[-1][5:] if rows else None

    def values(self, seed: int, point: str, metric: str) -> list[float]:
        """Return a metric's means over people after each round that has one, oldest first.

        They are the rows of rounds.csv for this evaluation point (`P0`: clients' current models).
        """
        with (self.path / "rounds.csv").open(newline="", encoding="utf-8") as file:
            rows = [
                row for row in csv.reader(file) if (row[0], *row[2:4]) == (str(seed), point, metric)
            ]
        return [float(row[4]) for row in rows]

    def last_round(self, seed: int, planned: int) -> int:
        """Return the round after which a seed ends: the planned one, or an earlier one."""
        return min(planned, self.manifest.get("stopped", {}).get(str(seed), [planned])[0])

    def stop(self, seed: int, round: int, reason: str) -> None:
        """End a seed after a round; the next checkpoint records it."""
        self.wait()
        stopped = self.manifest.get("stopped", {})
        self.manifest["stopped"] = {**stopped, str(seed): [round, reason]}

    @property
    def solving(self) -> SolverChoice | None:
        """How this run's clients are trained; None: that has not been chosen yet."""
        settings = self.manifest["solving"]
        return SolverChoice(*settings) if settings else None

    @solving.setter
    def solving(self, settings: SolverChoice) -> None:
        """Set the training settings, which the next checkpoint records."""
        self.manifest["solving"] = list(settings)

    def save(
        self,
        seed: int,
        round: int,
        server: object,
        clients: ClientStateIndex,
        fingerprint: str | None = None,
        engine_state: Mapping[str, object] | None = None,
        best_round: int | None = None,
    ) -> None:
        """Replace the checkpoint; kill -9 at any moment leaves either the old or the new one.

        An earlier checkpoint that is still being written is waited for, and its error is raised.

        Args:
            seed: seed of the run.
            round: number of rounds that are done.
            server: state of the method's server.
            clients: index of clients' states.
            fingerprint: fingerprint of a finished seed; None: the seed is not finished.
            engine_state: name -> part of the engine's own state. Each part has its own file, which
                is written again only if the part is another object.
            best_round: round to which the run goes back at its end, as it stands; None: it stays.
        """
        self.wait()
        # Arrays on a GPU come home here: a thread must not, while this one records its steps.
        known = self._server is server and self.manifest["seed"] == seed
        data = None if known else Packed(server).chunks()
        self._server, self._marks = server, self._tables.marks
        states = clients.take_changes()
        write = partial(
            self._save, seed, round, data, states, fingerprint, engine_state or {}, best_round
        )
        if self.background and fingerprint is None:
            self._writer = Thread(target=self._in_background, args=[write])
            self._writer.start()
        else:
            write()

    def _in_background(self, write: Callable[[], None]) -> None:
        try:
            write()
        # Whoever waits for the thread raises it.
        except BaseException as error:
            self._failure.append(error)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the checkpoint is written that a thread writes, or for some seconds.

        Raises:
            Unsaved: it could not be written; the checkpoint before it is complete.
        """
        if self._writer is not None:
            self._writer.join(seconds)
            if not self._writer.is_alive():
                self._writer = None
        if self._failure:
            raise self._failure.pop()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let the checkpoint that a thread writes be complete when the block is left."""
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.join()

    def _save(
        self,
        seed: int,
        round: int,
        data: Sequence[memoryview] | None,
        clients: StateChanges,
        fingerprint: str | None,
        engine_state: Mapping[str, object],
        best_round: int | None,
    ) -> None:
        """Write a checkpoint of packed server state `data`; None: it is that of the last one."""
        # New files get new names, then the manifest is replaced in one step, then old files go.
        with saving(self.path), profiling.phase("checkpoints"):
            clients.write()
            before = self.manifest.get("files", {}) if self.manifest["seed"] == seed else {}
            # The last round is saved twice, before and after `finish`. Under one name the second
            # would overwrite a file that the first manifest still names.
            name = f"seed{seed}.server.{round if fingerprint is None else 'final'}.safetensors"
            entry = self._save_server(name, data, before.get("server", ["", ""]))
            others = self._save_engine_state(seed, round, engine_state, before)
            journal = self._journal or StateJournal(self.state, seed)
            # Clients that came after the best evaluation have no state any more.
            back = fingerprint is not None and best_round is not None
            add = journal.renewed if back else partial(journal.add, clients.changed)
            self._journal = add(clients.filed)
            files = {"server": entry, "clients": list(self._journal.mark), **others}
            last = {k: self.manifest[k] for k in LAST if before and k in self.manifest}
            best = self.manifest.get("best", {}).get("files", {})
            self.manifest |= {"seed": seed, "round": round, "files": files}
            if fingerprint is not None:
                done = {"fingerprint": fingerprint, "files": files}
                if self._finish(seed, done, last, best_round):
                    before = best = {}
                    clients.replaced.clear()
            elif best_round == round:
                states = {name: files[name] for name in ("server", "clients")}
                self.manifest["best"] = {"round": round, "files": states}
            self._replace_manifest()
            clients.release()
            if fingerprint is not None:
                clients.index.clear()
            self._leave(best, before)
            if back:
                self._sweep(f"seed{seed}.*")
            # Their rows are in the tables now, as the new checkpoint knows.
            while self._merged:
                self._merged.pop().unlink(missing_ok=True)
            if fingerprint is not None and self._spare is not None:
                self._spare.unlink(missing_ok=True)
                self._spare = None

    def _finish(
        self, seed: int, done: JsonObject, last: JsonObject, best_round: int | None
    ) -> bool:
        """Record a finished seed in the manifest; return whether it may have more rounds.

        Args:
            seed: the seed.
            done: fingerprint and files of the final states.
            last: entries of the checkpoint after the last round; empty without checkpoints.
            best_round: round to which the run went back; None: it did not.
        """
        self.manifest.pop("best", None)
        went_back = best_round is not None
        # The state before `finish` stays, so that the run may have more rounds later. Messages that
        # are under way would stay as well, each as large as a model.
        stays = last.get("files", {}).keys() == {"server", "clients"} and not self.elsewhere
        if stays := stays and not (went_back and str(seed) in self.manifest.get("stopped", {})):
            done["last"] = last
        if went_back:
            done["best_round"] = best_round
        self.manifest["done"][str(seed)] = done
        self._journal = None
        return stays

    def _save_server(
        self, name: str, data: Sequence[memoryview] | None, before: Sequence[str]
    ) -> Sequence[str]:
        """Write the server's state to a file of this name, if it is new; return file and digest.

        `before` has those of the last checkpoint.
        """
        if data is None:
            return before
        # A resumed run reads the state anew: it is another object with the same bytes.
        if (sha := digest(*data)) == before[1]:
            return before
        # The pages of the file before the last are in memory already, which saves time.
        if self._spare is not None:
            with suppress(FileNotFoundError):
                self._spare.replace(part_of(self.state / name))
            self._spare = None
        disk.write_whole(self.state / name, *data, lasting=self.elsewhere)
        return [name, sha]

    def _save_engine_state(
        self, seed: int, round: int, parts: Mapping[str, object], before: JsonObject
    ) -> dict[str, list[str]]:
        """Write those parts of the engine's state that are new objects; return all parts' files.

        `before` has the files of the last checkpoint. In the result, a name maps to file and
        digest.
        """
        files = {}
        for name, part in parts.items():
            # Messages are large and stay the same objects over many rounds.
            if name in before and self._engine_state.get(name) is part:
                files[name] = before[name]
                continue
            data = Packed(part).chunks()
            files[name] = [f"seed{seed}.{name}.{round}.safetensors", digest(*data)]
            disk.write_whole(self.state / files[name][0], *data, lasting=self.elsewhere)
        self._engine_state = dict(parts)
        return files

    def _leave(self, *earlier: JsonObject) -> None:
        """Keep a server state's file to overwrite it later; delete other files of `earlier` ones.

        Files that the manifest names, for its checkpoint or the best evaluation, stay.
        """
        now = self.manifest["files"], self.manifest.get("best", {}).get("files", {})
        named = {about[0] for files in now for about in files.values()}
        old = {about[0]: name for files in earlier for name, about in files.items()}
        for file in old.keys() - named:
            if old[file] == "server" and self._spare is None:
                self._spare = self.state / file
            else:
                (self.state / file).unlink(missing_ok=True)

    def _replace_manifest(self) -> None:
        """Write the manifest `checkpoint.json`, with lengths and digests of tables and logs."""
        self.manifest |= self._marks
        # Of rounds that the checkpoint does not know, a resume repeats the releases.
        if books := log_ends(self.state / FOLDER):
            self.manifest["books"] = books
        # In a deployment all that a checkpoint names must survive a power cut: a client that has
        # gone on cannot go back to an older round.
        if self.elsewhere:
            journal = self.state / self.manifest["files"]["clients"][0]
            tables = [self.path / name for name in self._tables.written]
            for path in (journal, *tables, self.path):
                settle(path)
        manifest = sealed_manifest(self.manifest)
        disk.write_whole(self.state / "checkpoint.json", manifest, lasting=self.elsewhere)

    def _sweep(self, pattern: str = "*") -> None:
        """Delete files that no checkpoint names, such as those of an interrupted round.

        Only files whose name matches `pattern` are deleted.
        """
        done, later = self.manifest["done"].values(), self.manifest.get("later", {}).values()
        ends = [self.manifest, *later, *(d["last"] for d in done if "last" in d)]
        bests = [end["best"] for end in ends if "best" in end]
        named = [entry.get("files") for entry in (*ends, *bests, *done)]
        # Secrets and release logs never go with a checkpoint: a budget that was spent stays spent.
        wanted = {"checkpoint.json", FOLDER, BOOKS}
        wanted |= {file for seed in later for file, _ in seed["rows"].values()}
        for files in filter(None, named):
            wanted |= {about[0] for about in files.values()}
            wanted |= {entry.file for entry in filed_in(self.path, files).values()}
        for path in self.state.glob(pattern):
            if path.name not in wanted:
                path.unlink()

    def load(self, seed: int, records: Sequence[type], fresh: object = None) -> Checkpoint | None:
        """Return the progress of a seed; None: the run's last checkpoint is not of this seed.

        Raises:
            StateError: a file is missing or damaged; or it holds something other than a state made
                of `records`; or the server's state has other layouts than `fresh`.
        """
        later = self.manifest.get("later", {}).pop(str(seed), None)
        if later is not None:
            for name, (file, sha) in later["rows"].items():
                lines = read_whole(self.path, file, sha).decode().splitlines(keepends=True)
                self.append(name, csv.reader(lines))
                self._merged.append(self.state / file)
            self.manifest |= {"seed": seed, **{k: later[k] for k in LAST[:3] if k in later}}
        if self.manifest.get("seed") != seed:
            return None
        files, at = self.manifest["files"], self.manifest["round"]
        with saving(self.path):
            self._journal, _ = StateJournal.reopen(
                self.state, seed, JournalPosition(*files["clients"])
            )
        progress = load_progress(self.path, files, at, records, self.elsewhere, fresh)
        self._engine_state = dict(progress.engine_state)
        if about := self.manifest.get("best"):
            best = load_progress(
                self.path, about["files"], about["round"], records, self.elsewhere, fresh
            )
            progress = replace(progress, best=best)
        return replace(progress, unmeasured=later is not None and later["unmeasured"])


def check_stamp(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to resume a run with other code, or another config, than in its checkpoint.

    Args:
        path: folder of the run.
        then: digests of code and config in the checkpoint.
        now: digests of the present code and config.

    Raises:
        StateError: names what differs.
    """
    for what in {**now, **then}:
        theirs, mine = then.get(what), now.get(what)
        if theirs != mine:
            raise StateError(
                f"{path}: the checkpoint was made with other {what} ({str(theirs)[:12]}, now "
                f"{str(mine)[:12]}); run with that {what} again, or start a new run elsewhere"
            )


def filed_in(path: Path, files: JsonObject) -> dict[str, StateRef]:
    """Return client -> reference to the file of its state, from a journal.

    `files` is the entry of that name in a manifest, which names the journal.
    """
    return read_journal(path / "state", JournalPosition(*files["clients"]))


def load_progress(
    path: Path,
    files: JsonObject,
    round: int,
    records: Sequence[type],
    elsewhere: bool = False,
    fresh: object = None,
) -> Checkpoint:
    """Read a checkpoint's server and engine states; check the digests of all states.

    Args:
        path: folder of the run.
        files: the entry of that name in a manifest.
        round: number of rounds that are done.
        records: dataclasses of which states may be made, the server's first.
        elsewhere: whether clients' states are on other machines, and so are not checked.
        fresh: a new server state, whose layouts the stored state must have.
    """
    filed = filed_in(path, files)
    for entry in () if elsewhere else filed.values():
        read_whole(path, entry.file, entry.xxh3, quick_digest)
    parts = {}
    for name, (file, sha) in ((n, f) for n, f in files.items() if n != "clients"):
        data = read_whole(path, file, sha)
        try:
            parts[name] = unpack(data, *records, limit=memory_allowance(len(data)))
        except StateError as error:
            raise StateError(f"{path}/state/{file}: {error}; {MEND}") from None
    server, others = parts.pop("server"), records[2:]
    # A file with a right digest may still hold a state of another method, or another network.
    odd = [name for name, part in parts.items() if not any(fits(part, kind) for kind in others)]
    if not fits(server, records[0]) or not alike(server, fresh):
        odd = ["server"]
    if odd:
        raise StateError(
            f"{path}/state/{files[odd[0]][0]} holds another state than this run's; {MEND}"
        )
    return Checkpoint(round, server, filed, parts)


def sealed_manifest(manifest: JsonObject) -> bytes:
    """Return a manifest as JSON; the last entry is the SHA-256 of the other entries."""
    sha = digest(json.dumps(manifest, indent=1).encode())
    return json.dumps({**manifest, "sha256": sha}, indent=1).encode()


def read_manifest(path: Path) -> JsonObject:
    """Return a run directory's checkpoint manifest.

    Raises:
        StateError: there is no manifest, or its bytes were changed.
    """
    file = path / "state" / "checkpoint.json"
    if not file.exists():
        raise StateError(f"{path} holds no run (no state/checkpoint.json): give a run directory")
    data = file.read_bytes()
    try:
        manifest = parse_json(data)
        del manifest["sha256"]
        whole = sealed_manifest(manifest) == data
    except (ValueError, KeyError, TypeError):
        manifest, whole = {}, False
    if not whole:
        raise StateError(f"{file} is damaged, its SHA-256 is not that of its text: {MEND}")
    if odd := wrong(manifest, list(TABLES), list(OPTIONAL)):
        raise StateError(f"{file} is no checkpoint: its '{odd}' cannot be one's: {MEND}")
    return manifest


def read_whole(path: Path, file: str, sha: str, by: Callable[[bytes], str] = digest) -> bytes:
    """Return the bytes of a state file.

    Raises:
        StateError: the file is missing, or its bytes were changed.
    """
    try:
        data = (path / "state" / file).read_bytes()
    except OSError as error:
        raise StateError(f"{path}/state/{file} cannot be read ({error.strerror})") from None
    if by(data) != sha:
        raise StateError(
            f"{path}/state/{file} is damaged: its digest is {by(data)[:12]}..., "
            f"the checkpoint says {sha[:12]}..."
        )
    return data
