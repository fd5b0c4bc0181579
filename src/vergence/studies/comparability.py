"""Comparability of runs: which runs may be in one table, and their names there.

Runs are comparable if everything that a method does not choose is equal: data, split, people,
seeds, budget, tuning, wire, precision, and the point of measuring. A method's own choices (its
options, extra steps of fine-tuning) may differ; their cost is shown as gradient steps.
Docs: docs/explanation/statistics.md.

Used by `studies.compare` and `studies.cross_dataset`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from vergence.core.federation import Dataset
from vergence.core.local_training import LocalTraining
from vergence.core.naming import by_key
from vergence.core.task import Model, Task
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment.packaged import Table
from vergence.experiment.record_tables import default_of
from vergence.experiment.registry import find, modules
from vergence.experiment.schema import merge
from vergence.results.read import Run, StudyResults
from vergence.results.run_files import read_config
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

ABSENT = "none"
BUDGET = ("epochs", "steps", "batch")
"""Keys of `local` that determine how much a client computes; the others are tuned."""
TUNING = ("trials", "people", "seeds", "chosen_on", "metric")

Difference = tuple[str, Any, Any]
"""Field, value of the one run, value of the other."""


def check_comparable(
    runs: Sequence[Run], allow: Iterable[str] = (), hide: Sequence[str] = ()
) -> list[str]:
    """Check that runs may be in one table; return a note for every difference that is allowed.

    The first notes name the poisoned runs.

    Args:
        runs: the runs.
        allow: fields that may differ (`rounds`, `local.lr`), or tables all of whose fields may
            (`local`); `tuning` allows learning rates and the like too.
        hide: allowed fields that get no note.

    Raises:
        ConfigError: a field differs; the message has both values. Or `allow` names no field.
        StateError: neither of two runs records the data that it read.
    """
    allowed = set(allow)
    for name in allowed:
        if name.partition(".")[0] not in REMEDIES:
            raise ConfigError(
                f"allow {name}: no such field{nearest(name.partition('.')[0], list(REMEDIES))}"
            )
    if "tuning" in allowed:
        allowed |= {f"local.{f.name}" for f in fields(LocalTraining) if f.name not in BUDGET}
    labels_by_value: dict[str, dict[str, list[str]]] = {}
    # All against the first: if each is comparable to it, all are to each other.
    first = runs[0]
    for run in runs[1:]:
        found = list(differences(first, run))
        refused = [field for field, *_ in found if not _within(field, allowed)]
        for field, one, other in found:
            here, there = _shown(one, other), _shown(other, one)
            # Two missing digests are not equal: the runs may have read different data.
            if field in refused and one is other is None:
                raise StateError(
                    f"cannot compare: {field} is not known, the provenance.json of {first.label} "
                    f"and of {run.label} do not say what was read; run them again, or "
                    f"{_allowing(refused)}"
                )
            if field in refused:
                raise ConfigError(
                    f"cannot compare: {field} differs, {first.label} has {here}, {run.label} has "
                    f"{there}; {REMEDIES[field.partition('.')[0]]}, or {_allowing(refused)}"
                )
            if _within(field, hide):
                continue
            values = labels_by_value.setdefault(field, {here: [first.label]})
            values.setdefault(there, []).append(run.label)
    lies = [f"{run.label} is POISONED: {run.poison}" for run in runs if run.poison]
    return lies + [
        f"{field} {'is not known' if list(values) == [ABSENT] else 'differs'}: "
        f"{'; '.join(f'{_few(who)} {value}' for value, who in values.items())}"
        for field, values in labels_by_value.items()
    ]


def _allowing(names: Sequence[str]) -> str:
    """Return how to allow all fields that differ, not one after another."""
    options = " ".join(f"--allow {name}" for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    return f"compare all the same: {options}, or allow=[{listed}] in Python"


def _few(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 1} more have" if len(labels) > 1 else " has"
    return labels[0] + more


def differences(one: Run, other: Run) -> Iterator[Difference]:
    """Yield differences, the most basic first.

    Learning rates and the like may differ between methods that were tuned with equally many trials.
    Two missing digests are a difference.
    """
    for field, trait in TRAITS:
        # Two tuned runs may differ in what was tuned; that both had as many trials is a trait.
        if field == "local tuning":
            if min(_tuning(run)["trials"] for run in (one, other)) > 0:
                continue
            field = "local"
        here, there = trait(one), trait(other)
        if field == "data" and here is there is None:
            yield field, here, there
        yield from _unequal(field, here, there)


def tuned_on(runs: Iterable[Run]) -> list[str]:
    """Return the people on whom a sweep chose the settings of any of the runs."""
    return list(dict.fromkeys(p for run in runs for p in _tuning(run).get("people", [])))


def with_unique_labels(studies: Sequence[StudyResults]) -> list[Run]:
    """Return all runs with different labels; equal ones get the differing end of their folders.

    Raises:
        ConfigError: a run is named twice.
    """
    runs = [run for study in studies for run in study.runs]
    places = [run.folder.resolve() for run in runs]
    for place, times in Counter(places).items():
        if times > 1:
            raise ConfigError(f"{place} is named {times} times; name every run once")
    alike = by_key((run.label, place) for run, place in zip(runs, places, strict=True))
    return [
        Run(run.folder, _name(place, run.label, alike[run.label]), run.results)
        for run, place in zip(runs, places, strict=True)
    ]


def _name(place: Path, label: str, alike: Sequence[Path]) -> str:
    """Return a label after the shortest end of its folder that no run of the same label has."""
    if len(alike) == 1:
        return label
    for depth in range(1, len(place.parts) + 1):
        ends = [_end(p, label, depth) for p in alike]
        if len(set(ends)) == len(ends):
            return _end(place, label, depth)
    return f"{place}/{label}"


def _end(place: Path, label: str, depth: int) -> str:
    above = place.parent if place.name == label else place
    return "/".join((*above.parts[-depth:], label))


def _within(field: str, allowed: Iterable[str]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in allowed)


def _config(run: Run) -> Table:
    return read_config(run.folder / "config.toml")


def _filled(table: Mapping[str, Any], record: type | None) -> Table:
    """Return a table with the defaults of its dataclass filled in."""
    # A file that states a default is no other than one that leaves the key out.
    own = fields(record) if record is not None and is_dataclass(record) else ()
    given = {f.name: value for f in own if (value := default_of(f)) is not MISSING}
    return {key: _plain(value) for key, value in merge(given, dict(table)).items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _part(part: str, kind: str, base: type) -> Callable[[Run], Table]:
    """Return a reader of a run's task, model or federation with all options except `root`."""

    def read(run: Run) -> Table:
        # Where the data lie differs between machines; their digest is a trait of its own.
        table = {k: v for k, v in _config(run).get(part, {}).items() if k != "root"}
        name = table.get("name")
        known = isinstance(name, str) and not name.endswith(".py") and name in modules(kind)
        return _filled(table, find(kind, name, base) if known and name else None)

    return read


def _local(run: Run) -> Table:
    config = _config(run)
    local = _filled(
        merge(config.get("local", {}), config.get("method", {}).get("local", {})), LocalTraining
    )
    # Steps replace epochs, whose number then has no effect.
    if local["steps"] is not None:
        local["epochs"] = None
    return local


def _plan(key: str, default: Any) -> Callable[[Run], Any]:
    return lambda run: _config(run).get("run", {}).get(key, default)


def _precision(run: Run) -> str:
    """Return the precision of the computation, which with `auto` depends on the processor."""
    asked: str = _plan("precision", Plan.precision)(run)
    return run.results.get("solver", {}).get("precision", asked)


def _tuning(run: Run) -> Table:
    """Return the cost of a choice of settings and the people it was made on, not its space."""
    tuning = _config(run).get("tuning", {})
    return {"trials": 0, **{key: tuning[key] for key in TUNING if key in tuning}}


def _unequal(field: str, one: Any, other: Any) -> Iterator[Difference]:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        if one != other:
            yield field, one, other
        return
    # The name is a field of its own, and options of different things cannot be compared.
    if one.get("name") != other.get("name"):
        return
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            yield f"{field}.{key}", one.get(key), other.get(key)


def _shown(value: Any, other: Any) -> str:
    """Return a value as text: the start of a digest, the entries of a table that differ.

    A long list is described by its length, and the entries that the other one lacks.
    """
    if value is None:
        return ABSENT
    if isinstance(value, str) and len(value) == 64 and " " not in value:
        return value[:12]
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        here = {k: _shown(v, other.get(k)) for k, v in value.items() if v != other.get(k)}
        return ", ".join(f"{key} {text}" for key, text in here.items()) or str(dict(value))
    if isinstance(value, list) and len(value) > 6:
        lacks = [str(v) for v in value if not isinstance(other, list) or v not in other]
        more = f", only here: {', '.join(lacks[:6])}{' ...' if len(lacks) > 6 else ''}"
        return f"{len(value)} of them{more if lacks else ' in this order'}"
    return str(value)


TRAITS: tuple[tuple[str, Callable[[Run], Any]], ...] = (
    ("task", lambda run: run.results["task"]),
    ("federation", lambda run: run.results["federation"]),
    ("headline", lambda run: run.headline),
    ("seeds", lambda run: sorted(run.seeds)),
    ("people", lambda run: run.people),
    ("rounds", lambda run: run.results.get("rounds")),
    ("task", _part("task", "tasks", Task)),
    ("model", lambda run: _config(run).get("model", {}).get("name")),
    ("model", _part("model", "models", Model)),
    ("federation", _part("federation", "data", Dataset)),
    ("split", lambda run: run.provenance.get("data", {}).get("split")),
    ("data", lambda run: run.provenance.get("data", {}).get("sha256")),
    ("points", _plan("points", ["P0"])),
    ("evaluate_people", _plan("evaluate_people", Plan.evaluate_people)),
    ("precision", _precision),
    ("presence", lambda run: _filled(_config(run).get("presence", {}), Participation)),
    ("delivery", lambda run: _filled(_config(run).get("delivery", {}), Delivery)),
    ("wire", lambda run: _filled(_config(run).get("wire", {}), Compression)),
    ("privacy", lambda run: _config(run).get("privacy", {})),
    ("poison", lambda run: _config(run).get("poison", {})),
    ("pruning", lambda run: _filled(_config(run).get("pruning", {"amount": 0.0}), Gradual)),
    ("early_stopping", lambda run: _filled(_config(run).get("early_stopping", {}), EarlyStopping)),
    ("local", lambda run: {k: v for k, v in _local(run).items() if k in BUDGET}),
    ("tuning", _tuning),
    ("local tuning", lambda run: {k: v for k, v in _local(run).items() if k not in BUDGET}),
)
"""Traits that must be equal, the most basic first: from results.json, config and provenance."""

ONE = "compare runs of one configuration"
REMEDIES: Mapping[str, str] = {
    "task": ONE,
    "federation": ONE,
    "headline": ONE,
    "model": ONE,
    "seeds": "run both with the same run.seeds",
    "people": "run both on the same people",
    "rounds": "give both the same run.rounds",
    "split": "run both on the same split",
    "data": "run both on the same copy of the data, read in the same way",
    "points": "measure both at the same run.points",
    "evaluate_people": "run both with the same run.evaluate_people",
    "precision": "run both with the same run.precision",
    "presence": "run both with the same presence",
    "delivery": "run both with the same delivery",
    "wire": "send the updates of both with the same wire",
    "pruning": "prune both alike, or neither",
    "early_stopping": "end both by the same rule, or neither",
    "privacy": "give both the same privacy",
    "poison": "poison both alike, or neither",
    "local": "give both the same local",
    "tuning": "choose both with equally many trials, on the same people",
}
"""How to make each field equal; the keys are the fields that can be allowed to differ."""
ANYTHING = tuple(REMEDIES)
"""All fields, for a table of one experiment as it was run, with notes."""
DATA = ("federation", "people", "split", "data")
"""Fields that describe which data were read, and of whom."""
