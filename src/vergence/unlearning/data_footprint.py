"""Data of one person in a run's folder, and their removal: states, masks, rows, pictures."""

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
from vergence.engine.storage.run_directory import filed_in, read_manifest, sealed_manifest
from vergence.engine.storage.run_tables import measured
from vergence.engine.storage.state_journal import StateJournal
from vergence.experiment import checksums
from vergence.experiment.trained_run import read_run
from vergence.privacy.release_log import BOOKS, FOLDER
from vergence.privacy.split.split_guard_client import BLOCK
from vergence.results import write as results
from vergence.results.read import Run, read, table, text_rows

ROWS = {
    "people.csv": "person",
    "turns.csv": "client",
    "events.csv": "client",
    "priors.csv": "person",
    "classes.csv": "person",
    "groups.csv": "person",
    "per_class.csv": "person",
    "samples.csv": "person",
    "prior_samples.csv": "person",
}
"""Tables with rows about single people, and the column that names them."""
STAYS = (
    "the models, which learned from this person, and what other people keep",
    "the means over people in rounds.csv, and the figures drawn of them",
    "scores on everybody's test samples together, where a run has them (pooled_)",
)
"""What is about everybody, and cannot be taken out of a folder."""


def remains(run: Run, person: str) -> list[str]:
    """Data of a person that the folder of one method's finished run keeps."""
    folder, found = run.folder, []
    states, books = _states(folder, person), _books(folder, person)
    for count, what in ((len(states), "state"), (len(books), "privacy account")):
        found += [plural(count, what)] if count else []
    if any(_names(read_run(folder, seed).server, person) for seed in run.seeds):
        found.append("an entry in the server's state")
    if run.masks is not None and (count := sum(who == person for _, who in run.masks.packed)):
        found.append(plural(count, "mask"))
    if run.maps is not None and person in run.maps.person:
        found.append(f"{plural(run.maps.person.count(person), 'picture')} in maps.npz")
    found += rows(folder, person)
    for path in _listed(folder):
        count = sum(
            _is_of(person, line)
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        )
        found += [f"{plural(count, 'line')} of {path.name}"] if count else []
    found += ["audit/, made with this person's pictures"] if _attacked(folder, person) else []
    again = ["report.html, which a report makes again"]
    return found + (again if (folder / "report.html").is_file() else [])


def rows(folder: Path, person: str) -> list[str]:
    """Number of rows of each of a folder's tables that are about a person."""
    found = []
    for path in _tables(folder):
        count = int((table(path, ROWS[path.name])[ROWS[path.name]] == person).sum())
        found += [f"{plural(count, 'row')} of {path.name}"] if count else []
    return found


def erase(folder: Path, person: str) -> None:
    """Take a person out of everything that `remains` tells of.

    Fingerprints, means over people and sums are computed again over who is left. Carried out again
    after an interruption it goes on.

    Raises:
        StateError: a file in the folder is damaged.
    """
    study = read(folder)
    for run in study.runs:
        checksums.unseal(run.folder)
        _erase_states(run, person)
        _erase_pictures(run, person)
        for path in _tables(run.folder):
            _erase_rows(path, person)
        # Let the checkpoint know what the tables hold now.
        manifest = read_manifest(run.folder) | measured(run.folder)
        results.save_whole(run.folder / "state" / "checkpoint.json", sealed_manifest(manifest))
        done = read_manifest(run.folder)["done"]
        prints = {seed: told["fingerprint"] for seed, told in done.items()}
        results.write_erased(run, person, prints)
    if study.several:
        checksums.unseal(study.folder)
        for path in _tables(study.folder):
            _erase_rows(path, person)
        (study.folder / "report.html").unlink(missing_ok=True)
    alone = study.find("local_only")
    for run in study.runs:
        if alone is not None:
            results.write_harm(run.folder, alone.folder)
        checksums.seal(run.folder)
    checksums.seal(study.folder)


def stripped(state: Any, person: str) -> Any:
    """Return a server's state without what it holds under a person's name."""
    if not _names(state, person):
        return state
    if isinstance(state, Mapping):
        return {k: stripped(v, person) for k, v in state.items() if k != person}
    return replace(
        state, **{f.name: stripped(getattr(state, f.name), person) for f in fields(state) if f.init}
    )


def _names(state: Any, person: str) -> bool:
    if isinstance(state, Params | type):  # parameters are named by the network
        return False
    if isinstance(state, Mapping):
        return person in state or any(_names(each, person) for each in state.values())
    told = fields(state) if is_dataclass(state) else ()
    return any(_names(getattr(state, f.name), person) for f in told)


def _tables(folder: Path) -> list[Path]:
    return [folder / name for name in ROWS if (folder / name).is_file()]


def _states(folder: Path, person: str) -> list[Path]:
    """Return a person's files of states; all of them, so that none outlives an interruption."""
    told = read_manifest(folder)["done"].values()
    named = [filed_in(folder, done["files"]) for done in told]
    return [folder / "state" / filed[person].file for filed in named if person in filed]


def _about(person: str) -> str:
    """Pattern of how the names of a person's books begin."""
    return rf"seed\d+\.(client|mask|guard|cut)\.{re.escape(person)}\."


def _books(folder: Path, person: str) -> list[Path]:
    """Return the accounts of what is known of a person, and what was paid for or heard."""
    kept = re.compile(rf"{_about(person)}(csv|[0-9a-f]{{64}}|\d+-\d+{BLOCK})")
    return sorted(p for p in (folder / "state" / FOLDER).glob("seed*") if kept.fullmatch(p.name))


def _listed(folder: Path) -> list[Path]:
    """Return the list of books, and those of turns that zeros took the place of."""
    state = folder / "state"
    found = [state / BOOKS, *sorted((state / FOLDER).glob("zeros.seed*.csv"))]
    return [path for path in found if path.is_file()]


def _is_of(person: str, line: str) -> bool:
    """True if a line of such a list is of a person's turn, or names a book of this person's."""
    book = re.fullmatch(rf"{_about(person)}csv\n", line)
    return book is not None or next(iter(csv.reader([line])), [""])[0:1] == [person]


def _attacked(folder: Path, person: str) -> bool:
    page = folder / "audit" / "audit.md"
    return page.is_file() and f"pictures of {person} from" in page.read_text(encoding="utf-8")


def _erase_states(run: Run, person: str) -> None:
    """Name a person's states no more, then remove them: a checkpoint never names what is gone."""
    folder, state = run.folder, run.folder / "state"
    manifest, gone = read_manifest(folder), [*_states(folder, person), *_books(folder, person)]
    for seed in run.seeds:
        saved, done = read_run(folder, seed), manifest["done"][str(seed)]
        server, files = stripped(saved.server, person), dict(done["files"])
        filed = {c: entry for c, entry in saved.clients.filed.items() if c != person}
        if len(filed) < len(saved.clients):
            gone.append(state / files["clients"][0])
            # A journal of these alone, beside the old one.
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
    with saving(folder):
        write_whole(state / "checkpoint.json", sealed_manifest(manifest))
        for path in gone:
            path.unlink(missing_ok=True)
        for path in _listed(folder):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            left = "".join(line for line in lines if not _is_of(person, line))
            write_whole(path, left.encode(), secret=True)


def _erase_pictures(run: Run, person: str) -> None:
    folder = run.folder
    if run.masks is not None and any(who == person for _, who in run.masks.packed):
        path = folder / "masks.safetensors"
        with safe_open(path, "pt") as file:
            about = file.metadata()
            kept = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118
                if name.partition("/")[2] != person
            }
        results.save_whole(path, save(kept, about))
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
    if _attacked(folder, person):
        shutil.rmtree(folder / "audit")
    (folder / "report.html").unlink(missing_ok=True)


def _erase_rows(path: Path, person: str) -> None:
    if not path.is_file():
        return
    head, *rows = text_rows(path)
    at = head.index(ROWS[path.name])
    results.write_csv(path, head, [row for row in rows if row[at] != person])
