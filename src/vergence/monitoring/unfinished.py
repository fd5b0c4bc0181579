"""Unfinished studies in one line, for whoever reads their tables as if all methods were there."""

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
    """A line for each folder of several methods that are not all finished."""
    return [line for folder in dict.fromkeys(map(Path, folders)) if (line := unfinished(folder))]


def unfinished(folder: Path) -> str:
    """Methods of a folder that are under way, and how many wait; "" where all are finished."""
    if sealed(folder) or not (folder / "config.toml").is_file():
        return ""
    table = read_config(folder / "config.toml")
    if "methods" not in table:
        return ""
    left = {m: folder / m for m in labels(table) if not (folder / m / "results.json").exists()}
    begun = {m: path for m, path in left.items() if (path / "state" / "checkpoint.json").exists()}
    said = [f"{label} ({_rounds(path, table)})" for label, path in begun.items()]
    if waiting := len(left) - len(begun):
        said.append(f"{plural(waiting, 'method')} waiting")
    if not said:
        return ""
    going = lock_owner(folder / ".lock") is not None
    how = "it is being run" if going else f"`vergence resume {folder}`"
    alone = [m for m, entry in labels(table).items() if entry["name"] == "local_only" and m in left]
    harm = f"; nobody is compared with {alone[0]} before that is finished" if alone else ""
    return f"unfinished: {', '.join(said)}: {how}{harm}"


def _rounds(path: Path, table: Mapping[str, Any]) -> str:
    """Rounds done of all, over all seeds, as the checkpoint says."""
    run = Config.model_validate(table).run
    whole = run.rounds * len(run.seeds)
    try:
        at = read_manifest(path)
    except StateError:
        return f"of {plural(whole, 'round')}; its checkpoint is damaged"
    under_way = at["round"] if str(at["seed"]) not in at["done"] else 0
    return f"{len(at['done']) * run.rounds + under_way} of {plural(whole, 'round')}"
