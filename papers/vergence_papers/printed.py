"""Printed numbers and claims of the papers, from `NAME/tables.toml`.

A file has `source`; `texts`, sentences that several notes name in braces; `numbers`, whatever else
is printed; and `tables`, whose keys are the fields of `PaperTable` but for its parts: which a table
has, and what they are, stands in `NAME/experiment.toml`. A claim names what is `better` than what
(several rows: their mean), or the `order` of rows, worst first, or `pairs`, or why it is
`untestable`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from vergence.errors import ConfigError, nearest
from vergence.experiment.table_binding import record_from_table
from vergence_papers import HOME
from vergence_papers.claims import Claim, Pair, PaperTable, TablePart

TOP = {"source": str, "texts": dict, "numbers": dict, "tables": list}
SHAPES = ("better", "order", "pairs", "untestable")
"""Ways to state a claim; each has one."""


@dataclass(frozen=True)
class PrintedComparison:
    """Rows that a claim compares: some with others, rows in an order, worst first, or pairs."""

    better: str | tuple[str, ...] = ()
    than: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    pairs: tuple[Mapping[str, str], ...] = ()


class Paper(NamedTuple):
    """Printed content of a paper: its source, tables without parts, by id, and other numbers."""

    source: str
    tables: Mapping[str, PaperTable]
    numbers: Mapping[str, Any]


def paper_tables(name: str) -> tuple[PaperTable, ...]:
    """The tables of a paper that its experiments test, in their order, with their parts.

    Raises:
        ConfigError: the paper has no table of such an id, or its file cannot be used.
    """
    known, runs, parts = paper(name).tables, _experiments(name)["tables"], table_parts(name)
    for id_ in runs:
        if id_ not in known:
            raise ConfigError(f"papers/{name}/tables.toml: no table '{id_}'{nearest(id_, known)}")
    return tuple(
        replace(known[id_], parts=tuple(parts[part] for part in own)) for id_, own in runs.items()
    )


@cache
def table_parts(name: str) -> dict[str, TablePart]:
    """The experiments behind the tables of a paper; one may be `like` an earlier one."""
    found: dict[str, TablePart] = {}
    for key, own in _experiments(name)["parts"].items():
        like = own.pop("like", None)
        own = {"name": key, **own}
        found[key] = replace(found[like], **own) if like else TablePart(**own)
    return found


def _experiments(name: str) -> dict[str, Any]:
    file = HOME / name / "experiment.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def numbers(name: str) -> Mapping[str, Any]:
    """Numbers that a paper prints outside its tables.

    Raises:
        ConfigError: its file cannot be used.
    """
    return paper(name).numbers


@cache
def paper(name: str, home: Path = HOME) -> Paper:
    """Printed content of a paper.

    Raises:
        ConfigError: there is no such file, or it cannot be used; names file, table and key.
    """
    file = home / name / "tables.toml"
    known = sorted(path.parent.name for path in home.glob("*/tables.toml"))
    if name not in known:
        raise ConfigError(f"no printed numbers of paper '{name}'{nearest(name, known)}")
    where = f"papers/{name}/tables.toml"
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from None
    for key, value in raw.items():
        if key not in TOP:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, TOP)}")
        kind = TOP[key]
        _must(isinstance(value, kind), where, f"'{key}' must be a {kind.__name__}, got {value!r}")
    texts = raw.get("texts", {})
    found: dict[str, PaperTable] = {}
    for at, entry in enumerate(raw.get("tables", [])):
        place = f"{where}: table {entry.get('id', f'number {at + 1}')}"
        table = _table(entry, texts, place)
        _must(table.paper == name, place, f"its id must begin with '{name}/'")
        _must(table.id not in found, place, "there are two of this id")
        found[table.id] = table
    return Paper(raw.get("source", ""), found, raw.get("numbers", {}))


def _table(raw: Mapping[str, Any], texts: Mapping[str, str], place: str) -> PaperTable:
    stated = {key: value for key, value in raw.items() if key not in ("printed", "claims")}
    found = record_from_table(PaperTable, stated, place, parts=(), printed={}, claims=())
    sentences = {
        key: _filled(getattr(found, key), texts, f"{place}, {key}")
        for key in ("note", "over", "tuned")
    }
    width = len(found.columns)
    printed: dict[str, dict[str, tuple[float, ...]]] = {}
    for data, rows in raw.get("printed", {}).items():
        printed[data] = {}
        for row, values in rows.items():
            at = f"{place}, printed for {data}, row '{row}'"
            sound = isinstance(values, list) and all(type(v) in (int, float) for v in values)
            _must(sound, at, f"must be a list of numbers (nan: not printed), got {values!r}")
            _must(len(values) <= width, at, f"has {len(values)} numbers for {width} columns")
            printed[data][row] = tuple(float(value) for value in values)
    claims = (
        _claim(c, texts, f"{place}, claim {n}") for n, c in enumerate(raw.get("claims", []), 1)
    )
    return replace(found, printed=printed, claims=tuple(claims), **sentences)


def _claim(raw: Mapping[str, Any], texts: Mapping[str, str], place: str) -> Claim:
    compared = {f.name: raw[f.name] for f in fields(PrintedComparison) if f.name in raw}
    stated = {key: value for key, value in raw.items() if key not in compared}
    claim = record_from_table(Claim, stated, place, pairs=())
    # Of a cost, no row can be better by more than all of the rival's: such a claim never holds.
    limit = "margin must lie between -1 and 1, a share of the rival's value"
    _must(-1 < claim.margin < 1, place, f"{limit}; got {claim.margin:g}")
    shapes = [key for key in SHAPES if key in raw]
    said = f"needs one of {', '.join(SHAPES)}; has {', '.join(shapes) or 'none'}"
    _must(len(shapes) == 1, place, said)
    _must(("better" in raw) == ("than" in raw), place, "'better' and 'than' go together")
    pairs = _pairs(record_from_table(PrintedComparison, compared, place), shapes[0], place)
    return replace(claim, pairs=pairs, untestable=_filled(claim.untestable, texts, place))


def _pairs(stated: PrintedComparison, shape: str, place: str) -> tuple[Pair, ...]:
    """Pairs of which one is said to be better than the other."""
    if shape == "order":
        _must(len(stated.order) > 1, place, "'order' needs two rows or more")
        return tuple(Pair((high,), low) for low, high in pairwise(stated.order))
    for pair in stated.pairs:
        _must(set(pair) == {"better", "than"}, place, "a pair has 'better' and 'than'")
    _must(shape != "better" or len(stated.than) > 0, place, "'than' needs a row")
    these = (stated.better,) if isinstance(stated.better, str) else stated.better
    alone = (Pair((pair["better"],), pair["than"]) for pair in stated.pairs)
    return (*alone, *(Pair(these, rival) for rival in stated.than))


def _filled(text: str, texts: Mapping[str, str], place: str) -> str:
    """A text with the sentences that it names in braces."""
    try:
        return text.format(**texts)
    except (KeyError, IndexError, ValueError) as error:
        known = ", ".join(texts) or "none"
        raise ConfigError(f"{place}: no text {error} (texts of this file: {known})") from None


def _must(sound: bool, place: str, message: str) -> None:
    if not sound:
        raise ConfigError(f"{place}: {message}")
