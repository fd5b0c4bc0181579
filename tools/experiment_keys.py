"""The page docs/reference/experiment.md: every key of an experiment file, from its records."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le, Lt

from tools.house import USERS
from vergence.core.federation import Dataset
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.options import option_texts
from vergence.core.task import Model, Task
from vergence.data.few_data import FewSamples
from vergence.data.noise import Noise
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.experiment.privacy import schema as privacy
from vergence.experiment.privacy.study_description import StudyDescription
from vergence.experiment.public_data import ReleasedSamples
from vergence.experiment.record_tables import OWN_TABLES
from vergence.experiment.registry import find, names
from vergence.experiment.schema import KEYS
from vergence.experiment.search_space import SearchRange, SweepSettings, Tuning
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.robust.base import RobustRule
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

HEAD = """# Experiment file

An experiment is a TOML file. `vergence run FILE` reads it, and `--set a.b=c` changes a value.
This page lists every key with its type, its default and its meaning.
[Runs](runs.md#experiment-files) says how files are merged, how code of your own is named, and what
is refused.
"""
TOP: Mapping[str, tuple[str, str]] = {
    "recipe": (
        "text",
        "Named settings below all other values: `eyes`, `pictures` or `video`; "
        "[guide](../how-to/recipes.md).",
    ),
    "extends": ("list of file names", "Files that are merged below this one; the later one wins."),
    "task": ("table", "What is learned: `name`, and the options of [that task](#task)."),
    "model": ("table", "The network: `name`, and the options of [that network](#model)."),
    "federation": ("table", "The data: `name`, `root`, options of [that data set](#federation)."),
    "proxy": ("table", "Public samples that the [server holds](#proxy)."),
    "few_data": ("table", "[Fewer training samples](#few_data) for everybody, or for some people."),
    "noise": ("table", "[Noise](#noise) in some training inputs; [guide](../how-to/skew.md)."),
    "method": ("table", "One [method](#method): `name` and its options."),
    "methods": ("list", "Several methods, each a name or a table; one run directory each."),
    "local": ("table", "How a client [trains](#local) between two messages."),
    "presence": ("table", "Which clients, or labs, [take part](#presence) in a round."),
    "delivery": (
        "table",
        "Replies a round [waits for](#delivery); [guide](../how-to/delivery.md).",
    ),
    "wire": ("table", "How updates are [compressed](#wire); [guide](wire.md)."),
    "pruning": ("table", "[Pruning](#pruning) while it trains; [guide](../how-to/pruning.md)."),
    "early_stopping": ("table", "When a run [ends before](#early_stopping) its last round."),
    "privacy": ("table", "[Protections](#privacy) beyond what the method does."),
    "poison": ("table", "[Clients that attack](#poison) on purpose; [guide](../how-to/robust.md)."),
    "silos": ("table", "Labs: `lab = [people]`, each [one client](runs.md#silos)."),
    "run": ("table", "[Rounds, seeds, evaluation](#run) and how the run is executed."),
    "sweep": ("table", "Settings to [try](#sweep), for `vergence study sweep` alone."),
    "tuning": ("table", "How settings were [chosen](#tuning); a sweep writes it."),
    "study": ("table", "What an ethics board asks and [no setting tells](#study)."),
}
"""Keys of the first level, in the order of the page."""
ALONE: Mapping[str, tuple[type, Collection[str]]] = {
    "run": (Plan, OWN_TABLES),
    "local": (LocalTraining, ()),
    "presence": (Participation, ()),
    "delivery": (Delivery, ()),
    "wire": (Compression, ()),
    "pruning": (Gradual, ()),
    "early_stopping": (EarlyStopping, ()),
    "few_data": (FewSamples, ()),
    "noise": (Noise, ()),
    "sweep": (SweepSettings, ("spaces",)),
    "tuning": (Tuning, ()),
    "study": (StudyDescription, ()),
}
"""Tables that bind to one record, with the fields that a file does not give there."""
NAMED: Mapping[str, tuple[str, type, Collection[str], str]] = {
    "method": (
        "methods",
        Method,
        ("local", "base"),
        "Every method also takes `label`, its name in tables and its folder (by default the name), "
        "and `local`, which wins over the common table `local`. A method that goes over another "
        "one takes `base`, a method's table.",
    ),
    "task": ("tasks", Task, ("network", "seed", "start"), "A task without a table has no options."),
    "model": (
        "models",
        Model,
        ("start",),
        "Every network also takes `start`: the run directory of a model to start from, in place of "
        "random parameters ([a model to start from](runs.md#a-model-to-start-from)).",
    ),
    "federation": (
        "data",
        Dataset,
        (),
        "Every data set also takes `root`, the folder of its files. [Data](data.md) says how they "
        "are split and what is refused.",
    ),
}
"""Tables whose `name` chooses the record: kind, base, fields not given there, and a remark."""
BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}"}
WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def page() -> str:
    """The whole page."""
    if unknown := set(KEYS) ^ set(TOP):
        raise KeyError(f"tools/experiment_keys.py does not say what {sorted(unknown)} is")
    rows = [f"| `{key}` | {kind} | {said} |" for key, (kind, said) in TOP.items()]
    parts = [HEAD, "## Keys of the first level\n", "| key | type | meaning |\n|---|---|---|", *rows]
    for key, (record, without) in ALONE.items():
        parts += [f"\n## {key}\n", _summary(record), "", *table(record, without)]
        if key == "sweep":
            parts += ["\nA range, in place of a list of values:\n", *table(SearchRange, ())]
    parts += [
        *_privacy(),
        *_poison(),
        "\n## proxy\n\nA data set, as [federation](#federation), or samples that people give up:\n",
    ]
    parts += table(ReleasedSamples, ())
    for key, (kind, base, _, remark) in NAMED.items():
        known = (f"[{name}](options/{kind}.md#{name})" for name in names(kind, base))
        parts.append(f"\n## {key}\n\n{remark}\n\nNames: {', '.join(known)}.")
    return "\n".join(parts) + "\n"


def options(key: str) -> str:
    """The page of everything that a key can name, with its options."""
    kind, base, without, remark = NAMED[key]
    parts = [f"# Options of {kind}\n\nOf [experiment files](../experiment.md). {remark}"]
    for name in names(kind, base):
        record = find(kind, name, base)
        linked = f"[Its page](../methods/{name}.md)." if kind == "methods" else ""
        parts.append(f"\n## {name}\n\n{_summary(record)} {linked}".rstrip())
        if kind == "data":  # a module of its own: what it reads, the files, licence and source
            about = inspect.cleandoc(sys.modules[record.__module__].__doc__ or "")
            parts.append(f"\n{USERS.sub('', about)}")
        if rows := table(record, without):
            parts += ["", *rows]
    text = "\n".join(parts)
    return text.replace("](runs.md", "](../runs.md").replace("](data.md", "](../data.md") + "\n"


def _privacy() -> Iterator[str]:
    yield (
        "\n## privacy\n\nThe [threat model](../explanation/threat_model.md) says what each of them "
        "protects, and what it does not. Each has a page: [secure aggregation]"
        "(../explanation/secure_aggregation.md), [differential privacy]"
        "(../explanation/differential_privacy.md) (`user`, `solver`, `mask`), [the cut]"
        "(../explanation/cut.md) (`cut`, `output_range`, `split_guard`) and [robust rules]"
        "(../how-to/robust.md).\n\n### privacy.aggregation\n"
    )
    yield f'`"plain"` (default), `"secure"`, or a table. {_summary(SecureAggregationConfig)}\n'
    yield from table(SecureAggregationConfig, ())
    for name, record in privacy.RECORDS.items():
        yield f"\n### privacy.{name}\n\n{_summary(record)}\n"
        yield from table(record, ())
    for name, record in privacy.CUTS.items():
        yield f"\n### privacy.cut {name}\n\n{_summary(record)}\n"
        yield from table(record, ())
    yield "\n### privacy.robust\n\nThe name of a rule, or a table with `name` and its options."
    for name in names("privacy.robust", RobustRule):
        rule = find("privacy.robust", name, RobustRule)
        yield f"\n**{name}**: {_summary(rule)}"
        if rows := table(rule, ()):
            yield from ["", *rows]
    yield (
        "\n### privacy.own\n\nA list of tables, each with `name` (`file.py` or "
        "`package.module:Class`) and the options of a protection of your own "
        "([how to write one](../../CONTRIBUTING.md#add-a-protection))."
    )


def _poison() -> Iterator[str]:
    yield f"\n## poison\n\n{_summary(Poison)}\n"
    yield from table(Poison, ())
    for name, record in privacy.ON_DATA.items():
        given = ("share", "seed") if name == "noisy_data" else ()
        yield f'\nWith `attack = "{name}"`: {_summary(record)}\n'
        yield from table(record, given)


def table(record: type, without: Collection[str], above: str = "") -> list[str]:
    """Rows of a record's fields: key, type, default, meaning; none where it has none.

    Raises:
        KeyError: a field has no line in a docstring.
    """
    hints = typing.get_type_hints(record, include_extras=True)
    texts = option_texts(record)
    rows = []
    for field in fields(record):
        if field.name in without or not field.init:
            continue
        if field.name not in texts:
            raise KeyError(f"the docstring of {record.__qualname__} says nothing of '{field.name}'")
        hint = hints[field.name]
        cells = [f"`{above}{field.name}`", kind(hint), default(field), texts[field.name]]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        if is_dataclass(hint) and isinstance(hint, type):
            rows += table(hint, without, f"{above}{field.name}.")[2:]
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows] if rows else []


def kind(hint: Any) -> str:
    """A type in words, as somebody who writes TOML needs it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([kind(inner[0]), *_bounds(inner[1:])])
    if origin is Literal:
        return " or ".join(f"`{toml(value)}`" for value in inner if value != "") or "text"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(each) for each in inner if each is not types.NoneType)
    if origin is tuple and inner[-1] is not Ellipsis:
        kinds = [kind(each) for each in inner]
        same = "≥" in kinds[0] and len(set(kinds)) == 1
        return f"list of {len(inner)}: {', '.join(kinds[:1] if same else kinds)}"
    if origin is tuple:
        each = kind(inner[0])
        word, rule, bounds = each.partition(" ≥")
        plural = "s" if word.endswith(("number", "text")) else ""
        return f"list of {word}{plural}{rule}{bounds}"
    if origin in (Mapping, dict):
        return f"table, each value a {kind(inner[1])}"
    return WORDS.get(hint, "table")


def _bounds(marks: Collection[Any]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, Interval | Ge | Gt | Le | Lt):
            found = {text: getattr(mark, sign, None) for sign, text in BOUNDS.items()}
            yield " and ".join(t.format(f"{v:.10g}") for t, v in found.items() if v is not None)


def default(field: Field[Any]) -> str:
    """A field's default as TOML."""
    if field.default_factory is not MISSING:
        value = field.default_factory()
    elif field.default is MISSING:
        return "must be given"
    else:
        value = field.default
    if value is None:
        return "none"
    return "as below" if is_dataclass(value) else f"`{toml(value)}`"


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return repr(value)


def _summary(record: type) -> str:
    return (record.__doc__ or "").partition("\n")[0]
