"""What a run's bits depend on, as digests: its config, code and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from vergence.app import results
from vergence.app.config import code_digest, method_tables
from vergence.errors import StateError

FILE = "stamp.json"
MADE = ("config", "code", "data", "torch")
"""What every stamp tells; a run that begins from other states tells of them, too."""


def stamp(table: Mapping[str, Any], data_sha: str) -> dict[str, str]:
    """Return the digests of a resolved config (and the files it names), the code, and the data."""
    return {"config": config_digest(table), "code": code_digest(), "data": data_sha,
            "torch": version("torch")}  # fmt: skip


def config_digest(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a config and the files it names, less what does not change bits."""
    kept = {k: v for k, v in table.items() if k != "run"}
    kept["run"] = {k: v for k, v in table.get("run", {}).items() if k not in ("workers", "engine")}
    whole = hashlib.sha256(tomli_w.dumps(kept).encode())
    named = [t["name"] for t in method_tables(dict(table)) if t["name"].endswith(".py")]
    rule = table.get("privacy", {}).get("robust")
    rule = rule.get("name", "") if isinstance(rule, Mapping) else rule
    named += [rule] if isinstance(rule, str) and rule.endswith(".py") else []
    trace = table.get("presence", {}).get("trace")
    for name in [*named, *([trace] if trace else [])]:
        path = Path(name)
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
