"""What a run's bits depend on, as digests: its config, code and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from vergence.engine.code_digest import code_digest
from vergence.errors import StateError
from vergence.experiment.trust import now, python_files
from vergence.results import write as results

FILE = "stamp.json"
MADE = ("config", "code", "data", "torch")
"""What every stamp tells; a run that begins from other states tells of them, too."""


def stamp(table: Mapping[str, Any], data_sha: str) -> dict[str, str]:
    """Return the digests of a resolved config (and the files it names), the code, and the data."""
    return {
        "config": config_digest(table),
        "code": code_digest(),
        "data": data_sha,
        "torch": version("torch"),
    }


def config_digest(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a config and the files it names, less what does not change bits.

    Of code that ran it is the text that ran. Names of Python objects, which a table describes and
    does not build, are no names of files.
    """
    kept = {k: v for k, v in table.items() if k != "run"}
    kept["run"] = {k: v for k, v in table.get("run", {}).items() if k not in ("workers", "engine")}
    whole = hashlib.sha256(tomli_w.dumps(kept).encode())
    for name in python_files({k: v for k, v in kept.items() if k not in table.get("python", [])}):
        if name in now().ran:
            whole.update(now().ran[name].text)
        elif file := now().file(name):
            whole.update(file.read_bytes())
    if trace := table.get("presence", {}).get("trace"):
        path = Path(trace)
        whole.update(path.read_bytes() if path.is_file() else b"")
    return whole.hexdigest()


def write(out: Path, made: Mapping[str, str]) -> None:
    """Write the stamp of a whole OUT."""
    results.write_json(out / FILE, dict(made))


def check(out: Path, now: Mapping[str, str]) -> None:
    """Refuse to go on with a run that was begun with other config, code or data.

    Raises:
        StateError: names what differs.
    """
    path = out / FILE
    if not path.is_file():
        raise StateError(f"{out} has no {FILE}: it was not begun by `vergence run`")
    try:
        then = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise StateError(f"{path} is damaged; restore it, or start a new run elsewhere") from None
    for what in [*now, *(more for more in then if more not in (*MADE, *now))]:
        mine = now.get(what)
        if then.get(what) != mine:
            raise StateError(
                f"{out} was begun with other {what} ({str(then.get(what))[:12]}, now "
                f"{str(mine)[:12]}): "
                f"mixing both in one table would compare unlike things; restore that {what}, or "
                "start a new run elsewhere"
            )
