"""Chapter 4 of the Durham thesis: its training runs on any clips, and what they are judged by.

Source: the Durham thesis, sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from vergence.experiment.run import load_data
from vergence.experiment.saved_run import read_saved
from vergence.experiment.schema import Experiment, merge
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.metrics.clustering import silhouette
from vergence.metrics.dtw import dtw
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import SUMMARY, Ground
from vergence.reproduce.printed import paper_tables
from vergence.reproduce.running import PartResult, priors_of, settle
from vergence.results.read import Run, StudyResults

F, (SPREAD,), (ROUNDS,), (SILHOUETTE,) = (
    "f",
    *(SUMMARY[name] for name in ("spread", "rounds", "silhouette")),
)
LEVELS = {"tvsum": 0.48, "summe": 0.30}
"""Of F, whose first round Table 4.1 prints."""
PRIOR = " (prior)"


class Clips(NamedTuple):
    """Counts of a ground of clips: classes in all, and the m groups that CFed-VS makes."""

    classes: int
    groups: int


CLIPS = {
    "clip_synthetic": Clips(3, 3),
    "tvsum_keyframes": Clips(1, 2),
    "tvsum": Clips(10, 3),
    "summe": Clips(3, 2),
}
Above = Callable[[Ground], Mapping[str, Any]]


def with_(classes: int | None) -> str:
    """Return the end of a row's label: so many classes per client; None: all, as good as IID."""
    return f" with {'all' if classes is None else classes} class{'' if classes == 1 else 'es'}"


def lacking(classes: int | None) -> Callable[[Ground], str]:
    """Function for the reason why clients of a data set cannot differ with so many classes."""

    def reason(ground: Ground) -> str:
        there = CLIPS[ground.name].classes
        if classes is None or classes < there:
            return ""
        return f"{ground.name} has {there} class{'es' if there > 1 else ''} in all"

    return reason


def trained(network: str, classes: int | None, more: Above | Mapping[str, Any] = {}) -> Above:  # noqa: B006
    """Function that gives an experiment this network, with so many classes per client."""

    def above(ground: Ground) -> Mapping[str, Any]:
        clips = CLIPS[ground.name]
        own: Table = {
            "federation": {"classes": classes or clips.classes},
            "presence": {"cohort": 0.8},
            "run": {"evaluate_every": 1},
        }
        extra = more(ground) if callable(more) else more
        return merge(merge(own, ground.networks[network]), dict(extra))

    return above


def grouped(offset: int = 0) -> Callable[[Ground], list[Table]]:
    """Return CFed-VS with as many groups as the thesis found best, or so many more."""
    return lambda ground: [{"name": "cfedvs", "clusters": CLIPS[ground.name].groups + offset}]


def rivals(ground: Ground) -> list[Table]:
    """Return the other methods that make groups, as many."""
    return [{"name": name, "clusters": CLIPS[ground.name].groups} for name in ("ifca", "fedgroup")]


def others(ground: Ground) -> list[Table]:
    """Return the methods of one model, and CFed-VS with all but the head shared."""
    (own,) = grouped()(ground)
    return [
        {"name": "fedavg"},
        {"name": "fedprox"},
        {**own, "label": "cfedvs_shared", "share_body": True},
    ]


def frame_weighted(classes: int | None) -> TablePart:
    """Return vsLSTM by frame-weighted FedAvg, with so many classes per client."""
    return TablePart(
        f"vslstm_{classes or 'all'}",
        [{"name": "fedavg"}],
        "paced",
        trained("vslstm", classes),
        with_(classes),
        lacking=lacking(classes),
    )


def mixture(
    name: str,
    methods: Callable[[Ground], list[Table]],
    classes: int = 1,
    suffix: str = "",
    more: Above | Mapping[str, Any] = {},  # noqa: B006
) -> TablePart:
    """Return the Mixture Transformer by some methods, with so many classes per client."""
    above = trained("mixture_transformer", classes, more)
    return TablePart(
        name, methods, "paced", above, suffix or with_(classes), lacking=lacking(classes)
    )


def compared(classes: int) -> tuple[TablePart, ...]:
    """Return every method of Table 4.2, CFed-VS first."""
    made = {"cfedvs": grouped(), "rivals": rivals, "others": others}
    return tuple(mixture(f"{name}_{classes}", entry, classes) for name, entry in made.items())


def centre(label: str, network: str, classes: int | None = None, **options: Any) -> TablePart:
    """Return a network trained in a data centre, on clients with all classes unless told."""
    suffix = "" if classes is None else with_(classes)
    above = trained(network, classes, {"model": options})
    return TablePart(
        f"{label}{suffix.replace(' ', '_')}",
        [{"name": "centralised", "label": label}],
        "paced",
        above,
        suffix,
        lacking=lacking(classes),
    )


def weighed(counts: str) -> TablePart:
    """Return vsLSTM by FedAvg weighted by `frames` or `clips`, on clips of unequal length.

    Generated people differ in nothing else; of other data everybody has all classes.
    """

    def unequal(ground: Ground) -> Mapping[str, Any]:
        lengths = {"classes": 1, "communities": "lengths", "strength": 0.0}
        told = {"federation": lengths} if ground.kind == "generated" else {}
        return {**told, "task": {"counts": counts}}

    entry = [{"name": "fedavg", "label": f"fedavg_{counts}"}]
    return TablePart(f"by_{counts}", entry, "paced", trained("vslstm", None, unequal))


def groups(offset: int) -> TablePart:
    """Return CFed-VS with so many groups more than m, one class per client."""
    return mixture(f"groups_{offset:+d}", grouped(offset), suffix=in_groups(offset))


def in_groups(offset: int) -> str:
    """Return the end of a label."""
    return f" in m {'-' if offset < 0 else '+'} {abs(offset)} groups"


def crowd(people: int) -> TablePart:
    """Return CFed-VS among so many clients, one class each."""

    def more(ground: Ground) -> Mapping[str, Any]:
        # 100 fragments of SumMe, whole videos held out, leave nothing to test many people on.
        cut = {"samples": 10 * people, "least": 5} if ground.name == "summe" else {}
        return {"federation": {"people": people, **cut}}

    return mixture(f"people_{people}", grouped(), suffix=among(people), more=more)


def among(people: int) -> str:
    """Return the end of a label."""
    return f" among {people} people"


def paced(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on their own held-out data; and how far people are apart, and the pace.

    Both are told seed by seed, so that verdicts on them are over seeds. A run that never reaches
    the level counts as if it did one round after its last. Of groups that CFed-VS makes, their
    silhouette, the same for every seed.
    """
    study = settle(experiment, out)
    level = level_of(experiment, study)
    scores = {}
    for run in study.runs:
        by_metric = {metric: run.scores(metric) for metric in run.results["metrics"]}
        by_metric |= {SPREAD: spread(run), ROUNDS: rounds_to(level, run)}
        method = experiment.methods[run.label]
        if isinstance(method, CFedVS):
            by_metric[SILHOUETTE] = {"groups": separation(run, method.per_frame)}
        scores[run.label + part.suffix] = by_metric
    floors = {
        label.removesuffix(PRIOR) + part.suffix + PRIOR: told
        for label, told in priors_of(study).items()
    }
    return PartResult({**scores, **floors}, study, lower=frozenset({SPREAD, ROUNDS}))


def level_of(experiment: Experiment, study: StudyResults) -> float:
    """Return the F to be reached: as printed; of data that the thesis has not, half way.

    Between random importance and people, each judged by the others.
    """
    data = experiment.table["federation"]
    if data["name"] in LEVELS and not data.get("keyframes"):
        return LEVELS[data["name"]]
    floors = priors_of(study)
    ends = [list(floors[f"{who}{PRIOR}"][F].values()) for who in ("random", "people")]
    return float(np.mean(ends))


def spread(run: Run) -> dict[str, float]:
    """Return per seed how far the best person's F is above the worst one's, in points."""
    by_seed = run.final(F).groupby("seed").value
    apart = 100 * (by_seed.max() - by_seed.min())
    return {f"seed {seed}": float(apart[seed]) for seed in run.seeds}


def rounds_to(level: float, run: Run) -> dict[str, float]:
    """Return per seed the first round whose mean F is at the level."""
    rounds, curves = run.curve(F)
    late = float(rounds[-1] + 1)
    return {
        f"seed {seed}": next(
            (float(r) for r, f in zip(rounds, curve, strict=True) if f >= level), late
        )
        for seed, curve in zip(run.seeds, curves, strict=True)
    }


def separation(run: Run, per_frame: bool) -> float:
    """Return the silhouette of CFed-VS's groups by |d_i - d_j|; 0 for one group."""
    saved = read_saved(run.folder)
    proxies = [clip.numpy() for clip in saved.server.proxies.values()]
    if not proxies:
        return 0.0
    everybody = load_data(saved.experiment).ready.people
    groups_of: Mapping[str, int] = saved.server.groups
    d = []
    for person in groups_of:
        clips = saved.task.sequences(everybody[person].train)
        d.append(
            [np.mean([dtw(clip.numpy(), proxy, per_frame) for clip in clips]) for proxy in proxies]
        )
    return silhouette(cdist(d, d), np.array(list(groups_of.values())))


PROTOCOLS = {"paced": paced}
"""Protocol -> how a part is run under it."""

VSLSTM, MIXTURE, PLAIN = "vslstm", "mixture", "plain_attention"
"""Labels of a data centre's networks: the last has plain attention in the Mixture Transformer."""
CENTRES = (
    centre(VSLSTM, "vslstm"),
    centre(MIXTURE, "mixture_transformer"),
    centre(PLAIN, "mixture_transformer", mixture="none"),
)
TABLES = paper_tables(
    "cfedvs",
    {
        "cfedvs/table4.1": (
            *map(frame_weighted, (1, 2, 4, None)),
            CENTRES[0],
            centre(VSLSTM, "vslstm", 1),
        ),
        "cfedvs/table4.2": tuple(part for classes in (1, 2, 4) for part in compared(classes)),
        "cfedvs/table4.3": CENTRES,
        "cfedvs/table4.4": CENTRES,
        "cfedvs/fig4.2": (weighed("frames"), weighed("clips")),
        "cfedvs/fig4.5": tuple(part for classes in (1, 2) for part in compared(classes)[:2]),
        "cfedvs/fig4.6": (groups(-1), compared(1)[0], groups(1)),
        "cfedvs/fig4.7": (compared(1)[0], *map(crowd, (15, 20, 30))),
    },
)
