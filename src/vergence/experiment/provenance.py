"""Digests of what a run's bits depend on: its config, code and data."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from vergence.core.files import parse_json
from vergence.engine.code_digest import code_digest
from vergence.errors import StateError
from vergence.experiment.trust import current_trust, python_files
from vergence.results import write as results
from vergence.results.run_files import read_config

FILE = "stamp.json"
MADE = ("config", "code", "data", "torch")
"""What every stamp tells; a run that begins from other states tells of them, too."""
FREE = ("run.workers", "run.engine")
"""Settings that change no bits, beside the table `study`."""
STUDY = "study"
SHOWN, WIDEST = 3, 60
"""Differences that one line names; characters of each value in it."""


def stamp(table: Mapping[str, Any], data_sha: str, trace: str | None = None) -> dict[str, str]:
    """Return the digests of a resolved config (and the files it names), the code, and the data.

    `trace` is the presence trace as the plan found it.
    """
    return {
        "config": config_digest(table, trace),
        "code": code_digest(),
        "data": data_sha,
        "torch": version("torch"),
    }


def config_digest(table: Mapping[str, Any], trace: str | None = None) -> str:
    """Return the SHA-256 of a config and the files it names, less what does not change bits.

    Of a presence trace it is the file that the plan found (`trace`), perhaps beside the experiment.
    Of code that ran it is the text that ran. Names of Python objects, which a table describes and
    does not build, are no names of files.
    """
    kept = {k: v for k, v in table.items() if k not in ("run", STUDY)}
    kept["run"] = {k: v for k, v in table.get("run", {}).items() if f"run.{k}" not in FREE}
    whole = hashlib.sha256(tomli_w.dumps(kept).encode())
    for name in python_files({k: v for k, v in kept.items() if k not in table.get("python", [])}):
        if name in current_trust().loaded_code:
            whole.update(current_trust().loaded_code[name].text)
        elif file := current_trust().file(name):
            whole.update(file.read_bytes())
    if named := table.get("presence", {}).get("trace"):
        path = Path(trace or named)
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
        then = dict(parse_json(path.read_bytes()))
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


def check_settings(out: Path, table: Mapping[str, Any]) -> None:
    """Refuse a config other than the one that lies in a run's folder.

    Raises:
        StateError: names the settings that differ, then and now.
    """
    then = settings(read_config(out / "config.toml"))
    mine = settings(tomllib.loads(tomli_w.dumps(dict(table))))
    differ = [key for key in {**then, **mine} if then.get(key) != mine.get(key)]
    if differ:
        told = [f"{key}: {_value(then, key)}, now {_value(mine, key)}" for key in differ[:SHOWN]]
        more = f" (and {len(differ) - SHOWN} more)" if len(differ) > SHOWN else ""
        raise StateError(
            f"{out} was begun with other settings ({'; '.join(told)}{more}); take those again, or "
            "start a new run elsewhere"
        )


def settings(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings of a config that bits depend on, by dotted name; methods of a list by number."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{above}{key}"
        if name == "methods":
            named = [{"name": each} if isinstance(each, str) else each for each in value]
            found |= settings({f"{name}[{at}]": each for at, each in enumerate(named)})
        elif name == STUDY:
            continue
        elif isinstance(value, dict):
            found |= settings(value, f"{name}.")
        elif name not in FREE:
            found[name] = value
    return found


def _value(found: Mapping[str, Any], key: str) -> str:
    shown = repr(found[key]) if key in found else "the default"
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}..."
