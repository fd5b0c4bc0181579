"""Unfinished studies in one line, as a warning next to tables that lack some of the methods.

Used by `api.comparison`, `cli.runs`, `reports.html` and `studies.compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vergence.core.naming import plural
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import StateError
from vergence.experiment.checksums import sealed
from vergence.monitoring.status import labels
from vergence.results.run_files import Config, read_config
from vergence.system.file_locks import lock_owner


def unfinished_lines(folders: Iterable[Path | str]) -> list[str]:
    """Return a line for each folder with several methods that are not all finished."""
    return [line for folder in dict.fromkeys(map(Path, folders)) if (line := unfinished(folder))]


def unfinished(folder: Path) -> str:
    """Return a line on the methods of a folder that are not finished, "" if all are."""
    # A sealed folder is finished: its checksums are written last.
    if sealed(folder) or not (folder / "config.toml").is_file():
        return ""
    table = read_config(folder / "config.toml")
    if "methods" not in table:
        return ""
    left = {m: folder / m for m in labels(table) if not (folder / m / "results.json").exists()}
    begun = {m: path for m, path in left.items() if (path / "state" / "checkpoint.json").exists()}
    texts = [f"{label} ({_rounds(path, table)})" for label, path in begun.items()]
    if waiting := len(left) - len(begun):
        texts.append(f"{plural(waiting, 'method')} waiting")
    if not texts:
        return ""
    going = lock_owner(folder / ".lock") is not None
    how = "it is being run" if going else f"`vergence resume {folder}`"
    # People harmed are counted against local-only: the column is empty until that is done.
    local = [m for m, entry in labels(table).items() if entry["name"] == "local_only" and m in left]
    harm = f"; nobody is compared with {local[0]} before that is finished" if local else ""
    return f"unfinished: {', '.join(texts)}: {how}{harm}"


def _rounds(path: Path, table: Mapping[str, Any]) -> str:
    """Return the rounds done of all, over all seeds, as the checkpoint says."""
    run = Config.model_validate(table).run
    whole = run.rounds * len(run.seeds)
    try:
        at = read_manifest(path)
    except StateError:
        return f"of {plural(whole, 'round')}; its checkpoint is damaged"
    under_way = at["round"] if str(at["seed"]) not in at["done"] else 0
    return f"{len(at['done']) * run.rounds + under_way} of {plural(whole, 'round')}"
