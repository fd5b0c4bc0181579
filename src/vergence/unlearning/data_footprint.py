"""Data of one person in a run directory, and their removal: states, masks, rows, pictures.

Used by `unlearning.forget`.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.torch import save

from vergence.core.files import saving, write_whole
from vergence.core.naming import plural
from vergence.core.params import Params
from vergence.core.serialization import Packed, digest
from vergence.engine.round_loop import fingerprint
from vergence.engine.storage.more_rounds import files_of_last
from vergence.engine.storage.run_directory import filed_in, read_manifest, sealed_manifest
from vergence.engine.storage.run_tables import measured
from vergence.engine.storage.state_journal import StateJournal
from vergence.experiment import checksums
from vergence.experiment.newcomers import RESIDUALS
from vergence.experiment.trained_run import read_run
from vergence.privacy.release_log import BOOKS, FOLDER, log_ends
from vergence.privacy.split.split_guard_client import BLOCK
from vergence.results import write as results
from vergence.results.read import Run, read, table, text_rows

ROWS = {
    "people.csv": "person",
    "curves.csv": "person",
    "turns.csv": "client",
    "events.csv": "client",
    "priors.csv": "person",
    "classes.csv": "person",
    "groups.csv": "person",
    "per_class.csv": "person",
    "samples.csv": "person",
    "prior_samples.csv": "person",
}
"""Tables with rows about single people, and the column with the person's name."""
STAYS = (
    "the models, which learned from this person, and what other people keep",
    "the means over people in rounds.csv, and the figures drawn of them",
    "scores on everybody's test samples together, where a run has them (pooled_)",
)
"""Data about everybody, out of which one person's part cannot be removed."""


def remains(run: Run, person: str) -> list[str]:
    """List the data about a person in the directory of one method's finished run."""
    folder, items = run.folder, []
    states, books = _states(folder, person), _books(folder, person)
    for count, what in ((len(states), "state"), (len(books), "privacy account")):
        items += [plural(count, what)] if count else []
    if any(_names(read_run(folder, seed).server, person) for seed in run.seeds):
        items.append("an entry in the server's state")
    if run.masks is not None and (count := sum(who == person for _, who in run.masks.packed)):
        items.append(plural(count, "mask"))
    if run.maps is not None and person in run.maps.person:
        items.append(f"{plural(run.maps.person.count(person), 'picture')} in maps.npz")
    items += rows(folder, person)
    for path in _listed(folder):
        count = sum(
            _is_of(person, line)
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        )
        items += [f"{plural(count, 'line')} of {path.name}"] if count else []
    items += ["audit/, made with this person's pictures"] if _attacked(folder, person) else []
    # Of a sum over people no single part can be removed.
    items += [f"a part of {RESIDUALS}, which goes"] if (folder / RESIDUALS).is_file() else []
    again = ["report.html, which a report makes again"]
    return items + (again if (folder / "report.html").is_file() else [])


def rows(folder: Path, person: str) -> list[str]:
    """Return the number of rows about a person in each table of a directory, as phrases."""
    phrases = []
    for path in _tables(folder):
        count = int((table(path, ROWS[path.name])[ROWS[path.name]] == person).sum())
        phrases += [f"{plural(count, 'row')} of {path.name}"] if count else []
    return phrases


def erase(folder: Path, person: str) -> None:
    """Remove a person's data, as listed by `remains`, from a run directory.

    Fingerprints, means over people and sums are computed again over the remaining people. After an
    interruption a second call completes the removal.

    Raises:
        StateError: a file in the folder is damaged.
    """
    study = read(folder)
    for run in study.runs:
        # Unsealed first: an interrupted removal must not look like a finished, verified run.
        checksums.unseal(run.folder)
        _erase_states(run, person)
        _erase_pictures(run, person)
        (run.folder / RESIDUALS).unlink(missing_ok=True)
        for path in _tables(run.folder):
            _erase_rows(path, person)
        # The checkpoint holds lengths of tables: a resumed run would take shorter ones for damage.
        manifest = read_manifest(run.folder) | measured(run.folder)
        manifest["books"] = log_ends(run.folder / "state" / FOLDER)
        results.save_whole(run.folder / "state" / "checkpoint.json", sealed_manifest(manifest))
        done = read_manifest(run.folder)["done"]
        prints = {seed: entry["fingerprint"] for seed, entry in done.items()}
        results.write_erased(run, person, prints)
    if study.several:
        checksums.unseal(study.folder)
        for path in _tables(study.folder):
            _erase_rows(path, person)
        (study.folder / "report.html").unlink(missing_ok=True)
    alone = study.find("local_only")
    for run in study.runs:
        # How many people a method harms is counted anew, over those who remain.
        if alone is not None:
            results.write_harm(run.folder, alone.folder)
        checksums.seal(run.folder)
    checksums.seal(study.folder)


def stripped(state: Any, person: str) -> Any:
    """Return a copy of a server's state without the entries under a person's name."""
    if not _names(state, person):
        return state
    if isinstance(state, Mapping):
        return {k: stripped(v, person) for k, v in state.items() if k != person}
    return replace(
        state, **{f.name: stripped(getattr(state, f.name), person) for f in fields(state) if f.init}
    )


def _names(state: Any, person: str) -> bool:
    # Names of parameters are the network's: a person who is called "weight" has no entry there.
    if isinstance(state, Params | type):
        return False
    if isinstance(state, Mapping):
        return person in state or any(_names(each, person) for each in state.values())
    own = fields(state) if is_dataclass(state) else ()
    return any(_names(getattr(state, f.name), person) for f in own)


def _tables(folder: Path) -> list[Path]:
    return [folder / name for name in ROWS if (folder / name).is_file()]


def _states(folder: Path, person: str) -> list[Path]:
    """Return the files of a person's states, of every seed."""
    seeds = read_manifest(folder)["done"].values()
    named = [filed_in(folder, done["files"]) for done in seeds]
    return [folder / "state" / filed[person].file for filed in named if person in filed]


def _about(person: str) -> str:
    """Return a regular expression for the first part of names of a person's privacy accounts."""
    # Escaped: a name such as "p.1" must not match the files of "px1".
    return rf"seed\d+\.(client|mask|guard|cut)\.{re.escape(person)}\."


def _books(folder: Path, person: str) -> list[Path]:
    """Return the files of a person's privacy accounts: mask disclosures, budgets, cut traffic."""
    names = re.compile(rf"{_about(person)}(csv|[0-9a-f]{{64}}|\d+-\d+{BLOCK})")
    return sorted(p for p in (folder / "state" / FOLDER).glob("seed*") if names.fullmatch(p.name))


def _listed(folder: Path) -> list[Path]:
    """Return the lists of people's names: of privacy accounts, and of replies replaced by zeros."""
    state = folder / "state"
    lists = [state / BOOKS, *sorted((state / FOLDER).glob("zeros.seed*.csv"))]
    return [path for path in lists if path.is_file()]


def _is_of(person: str, line: str) -> bool:
    """Return whether a line of such a list names a turn, or a privacy account, of this person."""
    # A name may hold commas and quotes: the line is parsed as CSV.
    book = re.fullmatch(rf"{_about(person)}csv\n", line)
    return book is not None or next(iter(csv.reader([line])), [""])[0:1] == [person]


def _attacked(folder: Path, person: str) -> bool:
    page = folder / "audit" / "audit.md"
    return page.is_file() and f"pictures of {person} from" in page.read_text(encoding="utf-8")


def _erase_states(run: Run, person: str) -> None:
    """Remove a person's states from the checkpoint and then from the disk."""
    folder, state = run.folder, run.folder / "state"
    manifest, gone = read_manifest(folder), [*_states(folder, person), *_books(folder, person)]
    for seed in run.seeds:
        saved, done = read_run(folder, seed), manifest["done"][str(seed)]
        # The states before `finish` are the person's as well. Without them the run has no more
        # rounds: a run that nobody was erased from would give other models.
        gone += [state / name for name in files_of_last(folder, done)]
        done.pop("last", None)
        server, files = stripped(saved.server, person), dict(done["files"])
        filed = {c: entry for c, entry in saved.clients.filed.items() if c != person}
        if len(filed) < len(saved.clients):
            gone.append(state / files["clients"][0])
            # The old journal stays until the checkpoint names the new one: an interruption between
            # the two leaves a directory that can be read.
            journal = StateJournal(state, seed, int(files["clients"][0].split(".")[2]) + 1)
            files["clients"] = list(journal.add(filed, filed).mark)
        if _names(saved.server, person):
            chunks = Packed(server).chunks()
            gone.append(state / files["server"][0])
            sha = digest(*chunks)
            files["server"] = [f"seed{seed}.server.{sha[:12]}.safetensors", sha]
            results.save_whole(state / files["server"][0], *chunks)
        if files != done["files"]:
            shas = {c: sha for c, sha in saved.clients.sha256().items() if c != person}
            sha = fingerprint(files["server"][1], shas, saved.solving)
            if manifest["files"] == done["files"]:
                manifest["files"] = files
            manifest["done"][str(seed)] = {"fingerprint": sha, "files": files}
    # First the checkpoint, then the files: a checkpoint must never name a file that is gone.
    with saving(folder):
        write_whole(state / "checkpoint.json", sealed_manifest(manifest))
        for path in gone:
            path.unlink(missing_ok=True)
        for path in _listed(folder):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            others = "".join(line for line in lines if not _is_of(person, line))
            # The lists name people: they stay readable to their owner alone.
            write_whole(path, others.encode(), secret=True)


def _erase_pictures(run: Run, person: str) -> None:
    folder = run.folder
    if run.masks is not None and any(who == person for _, who in run.masks.packed):
        path = folder / "masks.safetensors"
        with safe_open(path, "pt") as file:
            about = file.metadata()
            masks = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118
                if name.partition("/")[2] != person
            }
        results.save_whole(path, save(masks, about))
    if run.maps is not None and person in run.maps.person:
        rows = np.flatnonzero(np.array(run.maps.person) != person)
        maps, packed = run.maps, io.BytesIO()
        np.savez_compressed(
            packed,
            frames=maps.frames[rows],
            truth=maps.truth[rows],
            pred=maps.pred[rows],
            points=maps.points[rows],
            person=np.array(maps.person)[rows],
        )
        results.save_whole(folder / "maps.npz", packed.getvalue())
    # Pictures of an attack on this person are pictures of this person.
    if _attacked(folder, person):
        shutil.rmtree(folder / "audit")
    # The page shows this person's scores and pictures; a report can be made again at any time.
    (folder / "report.html").unlink(missing_ok=True)


def _erase_rows(path: Path, person: str) -> None:
    if not path.is_file():
        return
    head, *rows = text_rows(path)
    at = head.index(ROWS[path.name])
    results.write_csv(path, head, [row for row in rows if row[at] != person])
