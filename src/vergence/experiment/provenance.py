"""Digests of all on which a run's results depend: its config, code and data.

Used in `deployment`, `experiment`, `monitoring` and `studies`.
"""

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
"""Entries of every stamp; a run that begins with another run's states has one more entry."""
FREE = ("run.workers", "run.engine")
"""Settings that change no results; the table `study` changes none either."""
STUDY = "study"
SHOWN, WIDEST = 3, 60
"""Largest number of differences that a message names; largest number of characters of a value."""


def stamp(table: Mapping[str, Any], data_sha: str, trace: str | None = None) -> dict[str, str]:
    """Return a run's stamp: digests of its config, this package's code and the data.

    The version of torch is an entry too. A run is resumed only with an equal stamp.

    Args:
        table: the merged table of the experiment.
        data_sha: digest of the data.
        trace: path at which the plan found the presence trace (a file on who is available when);
            None: the path in the table.
    """
    return {
        "config": config_digest(table, trace),
        "code": code_digest(),
        "data": data_sha,
        "torch": version("torch"),
    }


def config_digest(table: Mapping[str, Any], trace: str | None = None) -> str:
    """Return the SHA-256 of a config and of the Python files and the presence trace that it names.

    Settings that change no results are left out.

    Args:
        table: the merged table of the experiment.
        trace: path at which the plan found the presence trace (a file on who is available when);
            None: the path in the table.
    """
    bound = {k: v for k, v in table.items() if k not in ("run", STUDY)}
    bound["run"] = {k: v for k, v in table.get("run", {}).items() if f"run.{k}" not in FREE}
    whole = hashlib.sha256(tomli_w.dumps(bound).encode())
    # Parts that are Python objects are only described: names in them are no names of files.
    for name in python_files({k: v for k, v in bound.items() if k not in table.get("python", [])}):
        # The text that ran counts, even if its file has changed since.
        if name in current_trust().loaded_code:
            whole.update(current_trust().loaded_code[name].text)
        elif file := current_trust().file(name):
            whole.update(file.read_bytes())
    if named := table.get("presence", {}).get("trace"):
        path = Path(trace or named)
        whole.update(path.read_bytes() if path.is_file() else b"")
    return whole.hexdigest()


def write(out: Path, made: Mapping[str, str]) -> None:
    """Write a run's stamp (digests of config, code and data) as stamp.json into its folder."""
    results.write_json(out / FILE, dict(made))


def check(out: Path, now: Mapping[str, str]) -> None:
    """Refuse to resume a run that was begun with another config, code or data.

    Args:
        out: the run's folder, with its stamp.json.
        now: the present digests.

    Raises:
        StateError: an entry of stamp.json differs, or the file is missing or damaged.
    """
    path = out / FILE
    if not path.is_file():
        raise StateError(f"{out} has no {FILE}: it was not begun by `vergence run`")
    try:
        then = dict(parse_json(path.read_bytes()))
    except (ValueError, TypeError):
        raise StateError(f"{path} is damaged; restore it, or start a new run elsewhere") from None
    # The old stamp may have an entry for states to begin from that this run lacks.
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
    """Refuse an experiment whose settings differ from the config in a run's folder.

    Args:
        out: the run's folder.
        table: the merged table of the experiment.

    Raises:
        StateError: settings differ; the message shows the old and the new values.
    """
    then = settings(read_config(out / "config.toml"))
    # TOML has no tuples, so this table goes through TOML, too, before it is compared.
    mine = settings(tomllib.loads(tomli_w.dumps(dict(table))))
    if differ := [key for key in {**then, **mine} if then.get(key) != mine.get(key)]:
        pairs = [f"{key}: {_value(then, key)}, now {_value(mine, key)}" for key in differ[:SHOWN]]
        more = f" (and {len(differ) - SHOWN} more)" if len(differ) > SHOWN else ""
        raise StateError(
            f"{out} was begun with other settings ({'; '.join(pairs)}{more}); take those again, or "
            "start a new run elsewhere"
        )


def settings(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the settings that affect results, by dotted name such as `methods[0].name`.

    Args:
        table: the table of an experiment, or a table in it.
        above: prefix of the names.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{above}{key}"
        if name == "methods":
            named = [{"name": each} if isinstance(each, str) else each for each in value]
            flat |= settings({f"{name}[{at}]": each for at, each in enumerate(named)})
        elif name == STUDY:
            continue
        elif isinstance(value, dict):
            flat |= settings(value, f"{name}.")
        elif name not in FREE:
            flat[name] = value
    return flat


def _value(flat: Mapping[str, Any], key: str) -> str:
    shown = repr(flat[key]) if key in flat else "the default"
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}..."
