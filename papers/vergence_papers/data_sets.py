"""Data sets that the tables can be run on (`data_sets.toml`), and the scores that each has."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vergence.data.images.cifar10 import CLASSES as CIFAR10
from vergence.data.images.cifar10_unseen import SHARED
from vergence.data.images.cifar100 import FINE as CIFAR100
from vergence.data.images.emnist import FILES as EMNIST
from vergence.data.images.fashion_mnist import FILES as FASHION
from vergence.data.synthetic.zsl_synthetic import NAMES
from vergence.data.video_summaries.clients import FOLDS
from vergence.errors import ConfigError, nearest
from vergence.experiment.schema import data_root, merge

HIT: Mapping[str, tuple[str, ...]] = {
    "main": ("f1_hit", "f1_glc", "nss"),
    "recall": ("recall_hit", "recall_glc"),
    "precision": ("precision_hit", "precision_glc"),
    "map": ("nss", "cc"),
}
GLC: Mapping[str, tuple[str, ...]] = {
    "main": ("f1_glc", "f1_hit", "nss"),
    "recall": ("recall_glc", "recall_hit"),
    "precision": ("precision_glc", "precision_hit"),
    "map": ("nss", "cc"),
}
PRUNED: Mapping[str, tuple[str, ...]] = {
    f"{what} {side}": (f"{side} {what} ({unit})",)
    for side in ("server", "client")
    for what, unit in (("zeros", "%"), ("size", "KiB"))
}
"""Of a pruned model's halves, beside its error."""

DEFENDED: Mapping[str, tuple[str, ...]] = {
    "seconds": ("CPU s per round",),
    "sent": ("KiB per client and round",),
    "found": ("attacker's MSE x 1000",),
    "epsilon": ("epsilon",),
    "lied to": ("error under liars",),
}
"""Of a run with a defence, beside its error; of an attacker's pictures more is better."""

ANGLE: Mapping[str, tuple[str, ...]] = {"main": ("angle_error_deg",), **PRUNED, **DEFENDED}

SUMMARY: Mapping[str, tuple[str, ...]] = {
    "main": ("f", "tau", "rho"),
    "tau": ("tau",),
    "rho": ("rho",),
    "spread": ("max - min of F (points)",),
    "rounds": ("rounds to the level",),
    "silhouette": ("silhouette of the groups",),
}
"""Of summaries: F decides, as in the thesis; of spread and rounds less is better."""
FRIENDS: Mapping[str, tuple[str, ...]] = {
    "A_n": ("there: own-test accuracy",),
    "A_n pooled": ("there: pooled-test accuracy",),
    "A_d": ("away: own-test accuracy",),
    "A_d pooled": ("away: pooled-test accuracy",),
}
"""Of AP-FL's friends alone: of people who took part, and of who dropped out."""
IMAGES: Mapping[str, tuple[str, ...]] = {
    "main": ("pooled_accuracy",),
    "own": ("accuracy",),
    "H": ("harmonic_accuracy",),
    **FRIENDS,
}
MADE: Mapping[str, tuple[str, ...]] = {
    "near": ("nearest real sample: accuracy",),
    "apart": ("told from real: accuracy",),
    "far": ("distance to the nearest real sample (real: 1)",),
    "clustered": ("nearest of its like: accuracy",),
}
"""Of what a generator makes; of the second and the third less is better."""
FOUND = "members found, % at 1 % false alarms"
COSTS: Mapping[str, tuple[str, ...]] = {
    "seconds": ("seconds",),
    "up": ("MB up",),
    "down": ("MB down",),
    "kept": ("MB kept",),
}
"""Of a teacher's training or a student's, all of it, and of what its end has to keep."""
TAUGHT: Mapping[str, tuple[str, ...]] = {
    "main": ("H",),
    "T1": ("T1",),
    "u": ("u",),
    "s": ("s",),
    "members": (FOUND,),
    **COSTS,
    **MADE,
}
"""Of a provider that learned from a teacher's answers, and of who attacks both."""

COUNTED = frozenset(
    names[0]
    for told in (PRUNED, DEFENDED, COSTS, MADE, {"members": (FOUND,)})
    for key, names in told.items()
    if key != "lied to"
)
"""Metrics of what is spent, stored, generated or attacked: they are judged without learning."""

QUANTITIES = {
    "hit": HIT,
    "glc": GLC,
    "angle": ANGLE,
    "summary": SUMMARY,
    "images": IMAGES,
    "taught": TAUGHT,
    "error": {"main": ("error",)},
}
CLASSES: Mapping[str, tuple[str, ...]] = {
    "fashion_mnist": FASHION.classes,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "emnist": EMNIST["letters"].classes,
    "zsl_synthetic": NAMES,
    "cifar10_unseen": SHARED,
}
"""Of images, by data set, where their task does not name them."""


@dataclass(frozen=True)
class Ground:
    """A data set to test a paper on.

    Attributes:
        name: what `--on` calls it; mostly that of the data set in `vergence data list`.
        kind: `real` people, `generated` ones, or `toy` numbers for plumbing.
        papers: whose tables it can carry.
        table: task, model, federation and local training.
        rounds: of a full run.
        quantities: a claim's quantity -> metrics; the first decides, the others are told.
        values: what experiments name by `$`. `rho`: largest personal share of the paper's best row;
            `rate`: share of parameters that become personal per round, so that masks fill early;
            `window_rate`: the same where windows are to restart while masks grow; `windows`: what
            else differs there; `mu`: FedProx's;
            `server`: FedAdam's options, fitted to the size of a first update
            (docs/reference/methods/fedadam.md), and `average`: FedAvg's; either may have a client
            rate of its own; `server_small`: FedAdam's for clients that train at a rate of 1e-3;
            `server_printed`: the same for clients that train at the adaptive-FL paper's rate;
            `networks`: the SplitFed thesis's Models 1 to 3, or what stands in their place, with
            their local training, `narrow` being Model 2 with few features at a deep cut; of video
            summaries, the networks of CFed-VS's chapter; `cuts`: the clients' last stage of Models
            3, 3a and 3b, and of `narrow`; `size`: of eye images, in pixels; `labelled`: what
            differs for the thesis's supervised tables, where everybody has equally much data;
            `glances`: what differs where gaze is learned without labels, `eyes` where it is with
            them; `classes` and `groups` of clips, the latter those that CFed-VS makes; `student`
            and `meant`: sizes of the zero-shot methods, and where descriptions of classes lie.
        tuned: what was chosen by looking at scores, and on which data.
        same_as: the paper's data set that this is.
        root: where its files lie below VERGENCE_DATA; None: --root must say; "" for no files.
        note: what differs from the paper.
        classes: of images, by name.
        replicates: name -> settings of experiments that a part is run as, in the place of seeds.
            What is counted by seed is averaged for each name's part before a slash.
        unit: what these parts are.
        over: what intervals are over, where that follows from the replicates.
        omitted: why rows that name a value which the data set lacks are not run.
        incomparable: rows whose order says nothing on these data; `why` says the reason.
    """

    name: str
    kind: Literal["real", "generated", "toy"]
    papers: tuple[str, ...]
    table: Mapping[str, Any]
    rounds: int
    quantities: Mapping[str, tuple[str, ...]]
    values: Mapping[str, Any] = field(default_factory=dict)
    tuned: str = "nothing"
    same_as: str = ""
    root: str | None = ""
    note: str = ""
    classes: tuple[str, ...] = ()
    replicates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unit: str = "seed"
    over: str = ""
    omitted: str = ""
    incomparable: Sequence[str] = ()
    why: str = ""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.table["task"]["name"]

    def filled(self, template: Any) -> Any:
        """A template with values of this data set: `$a.b` names value `b` of `a`.

        A table that a table names by `with` lies below it.

        Raises:
            KeyError: the data set has no such value.
        """
        if isinstance(template, dict):
            found = {key: self.filled(value) for key, value in template.items()}
            below = found.pop("with", {})
            return below | found
        if not isinstance(template, str) or not template.startswith("$"):
            return template
        value: Any = self.values
        for key in template[1:].split("."):
            value = value[key]
        return value


def _pairs(names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return every choice of two unseen classes; of the first seven every class is in two."""
    found: dict[str, Mapping[str, Any]] = {}
    for step in range(1, len(names) // 2 + 1):
        for at, one in enumerate(names):
            unseen = [one, names[(at + step) % len(names)]]
            found[", ".join(unseen)] = {
                "federation": {"unseen": unseen},
                "task": {"unseen": unseen},
            }
    return found


REPLICATES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "pairs": _pairs(SHARED),
    "folds": {
        f"{fold}/partition {partition}": {"federation": {"fold": fold, "split_seed": partition}}
        for partition in range(5)
        for fold in range(FOLDS)
    },
}
"""Experiments that a part is run as, by what a data set calls them."""


def _grounds() -> dict[str, Ground]:
    file = Path(__file__).with_suffix(".toml")
    raw = tomllib.loads(file.read_text(encoding="utf-8"))
    texts = raw.pop("texts")
    found = {}
    for name, entry in raw.items():
        # A ground that is `like` another one differs from it in what it says.
        own = deepcopy(merge(raw[entry["like"]] if "like" in entry else {}, entry))
        own.pop("like", None)
        told = {
            key: own.pop(key).format(**texts) for key in ("tuned", "note", "over") if key in own
        }
        told["root"] = own.pop("root", None if own["kind"] == "real" else "")
        told["replicates"] = REPLICATES.get(own.pop("replicates", ""), {})
        sorts = {
            "papers": tuple(own.pop("papers")),
            "quantities": QUANTITIES[own.pop("quantities")],
        }
        found[name] = Ground(name, **own, **told, **sorts, classes=CLASSES.get(name, ()))
    return found


GROUNDS = _grounds()

DEFAULT = {
    "fedcpf": "ego_synthetic",
    "adaptive": "eye_synthetic",
    "splitfed": "eye_synthetic",
    "cfedvs": "clip_synthetic",
    "apfl": "fashion_mnist",
    "pezsl": "zsl_synthetic",
    "sgzsl": "zsl_synthetic",
}
"""What a paper's tables run on when nobody says."""


def ground(paper: str, name: str | None) -> Ground:
    """Return the data set to run a paper's tables on.

    Raises:
        ConfigError: it cannot carry them.
    """
    name = name or DEFAULT[paper]
    fit = [g for g in GROUNDS if paper in GROUNDS[g].papers]
    if name not in fit:
        raise ConfigError(f"the tables of {paper} cannot run on '{name}'{nearest(name, fit)}")
    return GROUNDS[name]


def at_hand(where: Ground) -> bool:
    """True if a data set needs no files, or has them in their usual place."""
    if not where.root:
        return where.root == ""
    folder = data_root(where.root)
    return folder is not None and Path(folder).is_dir()
