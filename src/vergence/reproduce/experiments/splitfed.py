"""The SplitFed gaze thesis: its models and training runs, on any eye data.

Source: the SplitFed gaze thesis, sections 3.2, 4.1, 4.2, 4.5 and 4.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vergence.experiment.schema import merge
from vergence.reproduce.claims import LEFT_OUT, Table, TablePart
from vergence.reproduce.data_sets import Ground
from vergence.reproduce.experiments.adaptive import SEED
from vergence.reproduce.printed import paper_tables

EPOCHS = (1, 2, 3)
AMOUNTS = (0.9, 0.95, 0.99, 0.999)
"""Of linear layers' weights that go."""

Above = Callable[[Ground], Mapping[str, Any]]


def model(number: str, local: Mapping[str, Any] | None = None, **options: Any) -> Above:
    """Function that gives an experiment a model of the thesis, on any data set."""
    return lambda ground: merge(
        merge(dict(ground.labelled), ground.networks[number]),
        {"local": dict(local or {}), "model": options},
    )


def row(label: str, number: str) -> str:
    """Return the label of a row of a model, scored on people who took no part."""
    return f"{label} model {number}{LEFT_OUT}"


def strangers(
    name: str, number: str, *methods: Table, as_: str | None = None, **more: Any
) -> TablePart:
    """Return the part that trains without one person at a time; `as_` is what rows call it."""
    above = more.pop("above", model(number))
    return TablePart(name, methods, "leave_one_out", above, row("", as_ or number), **more)


def alone(number: str) -> TablePart:
    """Return individual learning: everybody is judged by the next person's own model."""
    entry = [{"name": "local_only", "label": "individual"}]
    return TablePart(f"individual_{number}", entry, "next", model(number), row("", number))


def cut(number: str) -> TablePart:
    """Return Model 3, or 3a or 3b, which differ in where it is cut."""

    def methods(ground: Ground) -> list[Table]:
        return [{"name": "splitfed", "cut": ground.cuts.get(number, "")}]

    return TablePart(f"sfl_{number}", methods, "leave_one_out", model("3"), row("", number))


def adaptive(ground: Ground) -> list[Table]:
    """Return adaptive FL as printed, with the server's rate of its own reproduction."""
    return [{"name": "fedadam", "label": SEED, "variant": "seed_exact", **ground.server}]


SFL: Table = {"name": "splitfed"}
FL: Table = {"name": "fedavg", "weights": "equal"}
CENTRE: Table = {"name": "centralised"}
SFL_1, SFL_2, SFL_3 = strangers("sfl_1", "1", SFL), strangers("sfl_2", "2", SFL), cut("3")
CENTRES = {number: strangers(f"centre_{number}", number, CENTRE) for number in "123"}
ALONE = {number: alone(number) for number in "123"}
ADAPTIVE = TablePart("adaptive_1", adaptive, "leave_one_out", model("1"), row("", "1"))
NO_POSE = strangers("no_pose", "2", SFL, above=model("2", pose=False), as_="2 without head pose")
FL_2 = strangers("fl_2", "2", FL)
SMASHED = strangers(
    "smashed",
    "2",
    {"name": "smashed_average"},
    {"name": "smashed_average", "label": "smashed_alike", "alike": True},
)


def epochs(count: int) -> TablePart:
    """Return Model 2 with so many local epochs."""
    if count == 1:
        return SFL_2
    above = model("2", {"epochs": count})
    return strangers(f"epochs_{count}", "2", SFL, above=above, as_=f"2, {count} epochs")


def known(part: TablePart) -> TablePart:
    """Return a part, judged by what its models make of the data they were trained on."""
    suffix = part.suffix.replace(LEFT_OUT, " in training")
    return replace(part, protocol="training", suffix=suffix)


TRAINED = tuple(epochs(count) for count in EPOCHS)
TEST_ROWS, TRAIN_ROWS = (
    tuple(f"splitfed{part.suffix}" for part in parts) for parts in (TRAINED, map(known, TRAINED))
)
PRUNED = replace(
    SFL_2,
    protocol="pruned",
    suffix="",
    rows=("as trained", *(f"linear {amount:g}" for amount in AMOUNTS), "conv 0.9"),
)

CROSS: Table = {"task": {"name": "cross_encoder"}, "model": {"name": "cross_encoder"}}
AUTO: Table = {"task": {"name": "auto_encoder"}, "model": {"name": "cross_encoder"}}
EQUAL = merge(AUTO, {"task": {"equal": 1.0}})
SIMCLR: Table = {"task": {"name": "siamese", "objective": "simclr"}, "model": {"name": "siamese"}}
BYOL = merge(SIMCLR, {"task": {"objective": "byol"}, "model": {"target": True}})
UNSEEN = " on unseen people"
MEAN, RANDOM, SHOTS = (
    f"{name}{UNSEEN}" for name in ("mean gaze of the shots", "random encoder", "shots alone")
)


def unlabelled(label: str, kind: Table, method: str = "centralised", **more: Any) -> TablePart:
    """Return a part that learns codes without labels; its rows are read with a few labels."""
    # Pooled batches are larger: a person must be in one twice to give a pair.
    batch = 8 if method == "fedavg" else 32
    local = {
        "epochs": 1,
        "batch": batch,
        "optimizer": "adam",
        "lr": 2e-3,
        "weight_decay": 0.0,
        "schedule": "cosine",
    }

    def above(ground: Ground) -> Mapping[str, Any]:
        own = {"size": ground.size}
        sized = {"options": own} if kind["model"]["name"] == "siamese" else own
        return merge(merge({**kind, "local": local}, {"model": sized}), dict(ground.glances))

    return TablePart(label, [{"name": method, "label": label}], "few_shot", above, UNSEEN, **more)


CROSS_FL = unlabelled("cross_fl", CROSS, "fedavg", rows=(MEAN, RANDOM, SHOTS))
CROSS_ALONE = unlabelled("cross", CROSS)
RIVALS = (
    unlabelled("auto_encoder", AUTO),
    unlabelled("equal_features", EQUAL),
    unlabelled("simclr", SIMCLR),
    unlabelled("byol", BYOL),
)
SUPERVISED = TablePart(
    "supervised",
    [SFL],
    "strangers",
    lambda ground: merge(dict(ground.networks["2"]), dict(ground.eyes)),
    UNSEEN,
)

TABLES = paper_tables(
    "splitfed",
    {
        "splitfed/fig4.1": (SFL_1, CENTRES["1"], ALONE["1"], ADAPTIVE),
        "splitfed/fig4.2": (SFL_2, CENTRES["2"], ALONE["2"], SFL_1),
        "splitfed/fig4.3": (SFL_3, CENTRES["3"], ALONE["3"], SFL_2, ALONE["2"]),
        "splitfed/fig4.7": (*TRAINED, *map(known, TRAINED)),
        "splitfed/table4.6": (SFL_3, cut("3a"), cut("3b")),
        "splitfed/table4.7": (SFL_2, FL_2),
        "splitfed/table4.4": (PRUNED,),
        "splitfed/table4.5": (PRUNED,),
        "splitfed/table4.9": (CROSS_FL, SUPERVISED),
        "splitfed/table4.10": (CROSS_FL, CROSS_ALONE, *RIVALS),
    },
)
