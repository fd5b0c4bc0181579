"""Validation of a checkpoint's manifest and states, which may come from anybody.

Used in `deployment` and `engine`.
"""

# A digest tells that bytes are those that were written. But whoever can write a file can write its
# digest, too: so values are checked as well, before a file is cut, removed or computed with.

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from vergence.core.files import JsonObject
from vergence.core.local_training import Precision
from vergence.core.masks import Mask
from vergence.core.params import Params

SHA = re.compile("[0-9a-f]{64}")
STATE = re.compile(r"seed-?\d{1,20}\.[0-9A-Za-z_.]{1,80}\.safetensors")
JOURNAL = re.compile(r"seed-?\d{1,20}\.clients\.\d{1,9}\.csv")
SEED = re.compile(r"-?\d{1,20}")
ROWS = re.compile(r"seed-?\d{1,20}\.rows\.[a-z]+\.csv")
# Nobody is advised to put back single files: books of budgets and sums must never go back.
MEND = (
    "start a new run elsewhere; without privacy budgets and secure sums, a copy of the whole "
    "folder will do"
)
# No run has so many rounds, and no table so many bytes. A larger number in a manifest is forged,
# and would make the program count or allocate without an end.
MOST = 1 << 48
SHAPE: Mapping[str, object] = {
    "stamp": Mapping[str, str],
    "done": Mapping[str, Mapping[str, object]],
    "seed": int,
    "round": int,
    "files": Mapping[str, object],
    "tables": Mapping[str, int],
    "solving": tuple[Literal["sequential", "stacked"], int, Precision, Literal["cpu", "cuda"], str]
    | None,
}


GOES_ON: Mapping[str, object] = {
    "tables": Mapping[str, int],
    "digests": Mapping[str, str],
    "rows": Mapping[str, tuple[str, str]],
    "unmeasured": bool,
}
"""Optional entries of a seed that is finished and may go on, with their types."""


def wrong(manifest: JsonObject, tables: Sequence[str], others: Sequence[str]) -> str:
    """Return the first key of a checkpoint's manifest with a wrong value; "" if there is none.

    Args:
        manifest: the manifest, as read from JSON.
        tables: names of tables whose length the manifest must hold.
        others: names of tables whose length the manifest may hold.
    """
    for key, hint in SHAPE.items():
        if key not in manifest or not fits(manifest[key], hint):
            return key
    lengths, solving = manifest["tables"], manifest["solving"]
    # Parts of the stamp are shown in messages: no control characters may reach a terminal.
    if not all(text.isprintable() for text in manifest["stamp"].values()):
        return "stamp"
    numbers = {"round": [manifest["round"]], "tables": lengths.values()}
    numbers["solving"] = [] if solving is None else [solving[1] - 1]
    for key, values in numbers.items():
        if not all(0 <= number < MOST for number in values):
            return key
    stopped = manifest.get("stopped", {})
    if not fits(stopped, Mapping[str, tuple[int, str]]) or not all(
        0 <= at < MOST and reason.isprintable() for at, reason in stopped.values()
    ):
        return "stopped"
    # A name is joined to the run's folder, and the file is cut: no other name may be there.
    if not set(tables) <= lengths.keys() <= {*tables, *others}:
        return "tables"
    # Manifests of older versions have no digests; `TableFiles.reopen` says so.
    digests = manifest.get("digests", dict.fromkeys(lengths, "0" * 64))
    if not fits(digests, Mapping[str, str]) or digests.keys() != lengths.keys():
        return "digests"
    if not all(map(SHA.fullmatch, digests.values())):
        return "digests"
    for seed, done in manifest["done"].items():
        if not (
            SEED.fullmatch(seed)
            and fits(done.get("fingerprint"), str)
            and SHA.fullmatch(done["fingerprint"])
            and _files(done.get("files"))
            and fits(done.get("best_round", 0), int)
            and 0 <= done.get("best_round", 0) < MOST
        ):
            return "done"
        if "last" in done and not _goes_on(done["last"]):
            return "done"
    later = manifest.get("later", {})
    if not fits(later, Mapping[str, Mapping[str, object]]) or not all(
        map(_goes_on, later.values())
    ):
        return "later"
    if not fits(manifest.get("books", {}), Mapping[str, tuple[int, str]]):
        return "books"
    if "best" in manifest and not _is_round(manifest["best"]):
        return "best"
    return "" if _files(manifest["files"]) else "files"


def _is_round(entry: object) -> bool:
    """Return whether a value can be a round and the files of the states after it."""
    return (
        isinstance(entry, Mapping)
        and fits(entry.get("round"), int)
        and 0 <= entry["round"] < MOST
        and _files(entry.get("files"))
    )


def _goes_on(entry: JsonObject) -> bool:
    """Return whether a value can be a round and files from which a finished seed goes on."""
    return (
        _is_round(entry)
        and _is_round(entry.get("best", entry))
        and all(fits(entry[key], hint) for key, hint in GOES_ON.items() if key in entry)
        and all(0 <= length < MOST for length in entry.get("tables", {}).values())
        and all(ROWS.fullmatch(f) and SHA.fullmatch(s) for f, s in entry.get("rows", {}).values())
    )


def _files(files: object) -> bool:
    """Return whether a manifest's value can be the files of a checkpoint.

    Such a value maps a part of the checkpoint to the name of its file, without a folder, and the
    file's digest. For the journal of clients' states, the length in bytes stands between them.
    """
    if not (
        isinstance(files, Mapping)
        and fits(files, Mapping[str, object])
        and {"server", "clients"} <= files.keys()
    ):
        return False
    for part, about in files.items():
        journal = part == "clients"
        if not fits(about, tuple[str, int, str] if journal else tuple[str, str]):
            return False
        if not (JOURNAL if journal else STATE).fullmatch(about[0]) or not SHA.fullmatch(about[-1]):
            return False
        if journal and not 0 <= about[1] < MOST:
            return False
    return True


_hints = lru_cache(typing.get_type_hints)
"""Field name -> type of a dataclass; cached, as states are checked in every turn."""


def fits(value: object, hint: object) -> bool:
    """Return whether a value, and everything inside it, has the type of a type hint."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Annotated:
        return fits(value, inside[0])
    if kind is Literal:
        return value in inside
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inside)
    # Counts may be whole numbers where a hint says float.
    if kind is float or kind is int:
        return isinstance(value, (int, float) if kind is float else int)
    if hint is Any or not isinstance(kind, type):
        return True
    if is_dataclass(kind):
        hints = _hints(kind)
        return isinstance(value, kind) and all(
            fits(getattr(value, f.name), hints[f.name]) for f in fields(kind)
        )
    # JSON and state files have one kind of sequence, which is read as a tuple or a list.
    if kind not in (str, bytes) and issubclass(kind, Sequence):
        if not isinstance(value, tuple | list):
            return False
        if kind is tuple and inside and Ellipsis not in inside:
            return len(value) == len(inside) and all(map(fits, value, inside))
        return not inside or all(fits(item, inside[0]) for item in value)
    if not isinstance(value, kind):
        return False
    return not (inside and isinstance(value, Mapping)) or all(
        fits(key, inside[0]) and fits(item, inside[1]) for key, item in value.items()
    )


def alike(state: object, fresh: object) -> bool:
    """Return whether parameters and masks in a state have the layouts of those in `fresh`.

    `fresh` is a new state; fields that are not parameters or masks are not compared.
    """
    if isinstance(fresh, Params | Mask):
        return not isinstance(state, Params | Mask) or state.layout == fresh.layout
    if is_dataclass(fresh) and type(state) is type(fresh):
        return all(alike(getattr(state, f.name), getattr(fresh, f.name)) for f in fields(fresh))
    return True
