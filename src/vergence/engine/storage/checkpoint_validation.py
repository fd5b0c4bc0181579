"""Validation of a checkpoint's manifest and states, whoever wrote them.

A digest tells that bytes are those that were written. Whoever can write a file can write its
digest, too: what is read is looked at as well, before a file is cut, removed or computed with.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from vergence.core.local_training import Precision
from vergence.core.masks import Mask
from vergence.core.params import Params

SHA = re.compile("[0-9a-f]{64}")
STATE = re.compile(r"seed-?\d{1,20}\.[0-9A-Za-z_.]{1,80}\.safetensors")
JOURNAL = re.compile(r"seed-?\d{1,20}\.clients\.\d{1,9}\.csv")
SEED = re.compile(r"-?\d{1,20}")
MEND = "restore it from a copy, or start a new run elsewhere"
MOST = 1 << 48
"""No run has so many rounds, and no table so many bytes."""
SHAPE: Mapping[str, Any] = {
    "stamp": Mapping[str, str],
    "done": Mapping[str, Mapping[str, Any]],
    "seed": int,
    "round": int,
    "files": Mapping[str, Any],
    "tables": Mapping[str, int],
    "solving": tuple[Literal["sequential", "stacked"], int, Precision, Literal["cpu", "cuda"], str]
    | None,
}


def wrong(manifest: Mapping[str, Any], tables: Sequence[str], others: Sequence[str]) -> str:
    """Wrong part of a manifest; empty where no part is wrong.

    It must tell the length of `tables`, and may of `others`. Of older versions it has no `digests`.
    """
    for key, hint in SHAPE.items():
        if key not in manifest or not fits(manifest[key], hint):
            return key
    told, solving = manifest["tables"], manifest["solving"]
    if not all(text.isprintable() for text in manifest["stamp"].values()):
        return "stamp"
    numbers = {"round": [manifest["round"]], "tables": told.values()}
    numbers["solving"] = [] if solving is None else [solving[1] - 1]
    for key, found in numbers.items():
        if not all(0 <= number < MOST for number in found):
            return key
    if not set(tables) <= told.keys() <= {*tables, *others}:
        return "tables"
    digests = manifest.get("digests", dict.fromkeys(told, "0" * 64))
    if not fits(digests, Mapping[str, str]) or digests.keys() != told.keys():
        return "digests"
    if not all(map(SHA.fullmatch, digests.values())):
        return "digests"
    for seed, done in manifest["done"].items():
        if not (
            SEED.fullmatch(seed)
            and fits(done.get("fingerprint"), str)
            and SHA.fullmatch(done["fingerprint"])
            and _files(done.get("files"))
        ):
            return "done"
    return "" if _files(manifest["files"]) else "files"


def _files(files: Any) -> bool:
    """True if these can be the files of a checkpoint: names without a way, and digests."""
    if not fits(files, Mapping[str, Any]) or not {"server", "clients"} <= files.keys():
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


@lru_cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def fits(value: Any, hint: Any) -> bool:
    """True if a value is as a type hint says, with all that it holds."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Annotated:
        return fits(value, inside[0])
    if kind is Literal:
        return value in inside
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inside)
    if kind is float or kind is int:
        return isinstance(value, (int, float) if kind is float else int)
    if hint is Any or not isinstance(kind, type):
        return True
    if is_dataclass(kind):
        hints = _hints(kind)
        return isinstance(value, kind) and all(
            fits(getattr(value, f.name), hints[f.name]) for f in fields(kind)
        )
    if kind not in (str, bytes) and issubclass(kind, Sequence):  # JSON and states know one kind
        if not isinstance(value, tuple | list):
            return False
        if kind is tuple and inside and Ellipsis not in inside:
            return len(value) == len(inside) and all(map(fits, value, inside))
        return not inside or all(fits(each, inside[0]) for each in value)
    if not isinstance(value, kind):
        return False
    return not (inside and isinstance(value, Mapping)) or all(
        fits(key, inside[0]) and fits(each, inside[1]) for key, each in value.items()
    )


def alike(found: Any, fresh: Any) -> bool:
    """True if parameters and masks have the same layouts as those of a fresh state."""
    if isinstance(fresh, Params | Mask):
        return not isinstance(found, Params | Mask) or found.layout == fresh.layout
    if is_dataclass(fresh) and type(found) is type(fresh):
        return all(alike(getattr(found, f.name), getattr(fresh, f.name)) for f in fields(fresh))
    return True
