"""Runs of chapters 5 and 6 of the Durham thesis: teachers asked in many ways, and their scores.

There is one owner, so that nothing is known about a spread over people: everything is told seed by
seed. Source: the Durham thesis, sections 5.4 and 6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vergence.core.serialization import pack
from vergence.data.zero_shot.owner import OWNER
from vergence.experiment.run import load_data
from vergence.experiment.saved_run import read_saved
from vergence.experiment.schema import Experiment
from vergence.reproduce.claims import Table, TablePart
from vergence.reproduce.data_sets import COSTS, Ground
from vergence.reproduce.experiments.apfl import unreadable
from vergence.reproduce.outcome import PRIOR
from vergence.reproduce.printed import paper_tables
from vergence.reproduce.protocols.defences import kept
from vergence.reproduce.running import PartResult, priors_of, settle
from vergence.results.read import Run
from vergence.training.sequential import Solver

KINDS = {"omniscient": " (teacher of all classes)", "quasi": " (teacher of seen classes)"}
"""Which teacher -> the end of a row's label: which classes it saw."""
OM, QUASI = KINDS.values()
TEACHER = "teacher"
SECONDS, UP, DOWN, KEPT = (names[0] for names in COSTS.values())
MB = 1e6
GUIDES = {
    "white_box": "gradients",
    "black_box": "scores",
    "by_its_student": "student",
    "by_estimates": "estimates",
}
"""Row -> how the generator learns; the last two are ours."""
SMALL: Table = {"generator_rounds": 20, "samples": 50, "batch": 160, "hidden": 128}
LISTED: Table = {**SMALL, "generator_rounds": 25, "samples": 100}
THESIS: Table = {"generator_rounds": 50, "samples": 400, "hidden": 4096, "rate": 1e-5}
SIZES = {
    "zsl_synthetic": SMALL,
    "awa1_lists": LISTED,
    "awa2_lists": LISTED,
    "apy_lists": {**LISTED, "alpha": 1.0},
    "cifar10_unseen": {**SMALL, "generator_rounds": 50, "samples": 400},
    "xlsa17": THESIS,
}
"""Of the methods, by ground: alpha is the thesis's, 0.5, and 1 on aPY."""
ATTRIBUTES, NAMES, RANDOM, BERT, VECTORS = "attributes", "names", "random", "bert", "word_vectors"
Meant = Mapping[str, str]


def _published(name: str) -> Meant:
    folder = f"zsl_splits/{name}"
    return {ATTRIBUTES: f"{folder}/att_splits.mat", BERT: f"{folder}/bert_class_embeddings.npz"}


APY = _published("APY")
AWA1, AWA2 = (
    {**_published(name), VECTORS: f"zsl_splits/{name}/att_splits.mat#wv"}
    for name in ("AWA1", "AWA2")
)
MEANT: Mapping[str, Meant] = {
    "zsl_synthetic": {ATTRIBUTES: "words", VECTORS: "glove", "minilm": "minilm"},
    "awa1_lists": AWA1,
    "awa2_lists": AWA2,
    "apy_lists": APY,
    "cifar10_unseen": {**APY, VECTORS: "glove", "minilm": "minilm"},
    "xlsa17": AWA2,
}
"""Ground -> row -> where descriptions of classes come from; spelling and random vectors besides."""


def described(ground: Ground) -> Meant:
    """Return every source of descriptions of a ground, by row."""
    return {**MEANT[ground.name], NAMES: "names", RANDOM: "random"}


def unknown(entry: Table, ground: Ground) -> str:
    """Reason why descriptions cannot be had here; "" where they can."""
    source = entry["semantics"]
    packaged = source in ("glove", "minilm") and ground.classes
    return unreadable(source, "{}", ground.classes) if packaged else ""


def asked(ground: Ground, label: str, **options: Any) -> Table:
    """Return PE-ZSL with the sizes of a ground, attributes telling it what classes are."""
    return {
        "name": "pe_zsl",
        "label": label,
        "semantics": MEANT[ground.name][ATTRIBUTES],
        **SIZES[ground.name],
        **options,
    }


def sentinel(ground: Ground, label: str, **options: Any) -> Table:
    """Return SG-ZSL, comparing with a profile; its teacher knows what the owner says it does."""
    return asked(ground, label, **{"name": "sg_zsl", "knows": "all", **options})


def taught(
    name: str,
    methods: Callable[[Ground], list[Table]],
    suffix: str = OM,
    teacher: str = "omniscient",
) -> TablePart:
    """Return some ways to ask one teacher, which has a row of its own."""
    return TablePart(
        name,
        methods,
        "taught",
        {"federation": {"teacher": teacher}},
        suffix,
        (TEACHER + suffix,),
        barrier=unknown,
    )


def every_way(teacher: str, method: Callable[..., Table] = asked, **options: Any) -> TablePart:
    """Return the white box and all black boxes, of an omniscient or quasi-omniscient teacher."""

    def ways(ground: Ground) -> list[Table]:
        return [method(ground, label, guide=guide, **options) for label, guide in GUIDES.items()]

    return taught(f"ways_{teacher}", ways, KINDS[teacher], teacher)


def judged(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score students, and the teacher that answered the first of them, seed by seed.

    Priors are the same for every seed; that of the most frequent class is the first part's.
    """
    study = settle(experiment, out)
    metrics = study.runs[0].results["metrics"]
    scores = {
        run.label + part.suffix: {m: by_seed(run, m) for m in metrics} | costs(run)
        for run in study.runs
    }
    scores[TEACHER + part.suffix] = kept(out / "teacher.json", lambda: teachers(study.runs[0]))
    chance = priors_of(study)[f"chance{PRIOR}"]
    scores[f"chance{PRIOR}"] = {
        metric: {_seed(seed): people[OWNER] for seed in study.runs[0].seeds}
        for metric, people in chance.items()
    }
    return PartResult(scores, study)


def by_seed(run: Run, metric: str) -> dict[str, float]:
    """Return seed -> the final score of the owner's test samples."""
    own = run.final(metric)
    return dict(zip(map(_seed, own.seed), own.value, strict=True))


def costs(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what the student's training took, and what its provider keeps."""
    took = run.rounds[run.rounds["round"] > 0].drop_duplicates(["seed", "round"], keep="last")

    def of_seed(seed: int) -> dict[str, float]:
        own = run.turns[run.turns.seed == seed]
        return {
            SECONDS: sum(took.seconds[took.seed == seed].tolist()),
            UP: float(own.bytes_up.sum()) / MB,
            DOWN: float(own.bytes_down.sum()) / MB,
            KEPT: len(pack(read_saved(run.folder, seed).server)) / MB,
        }

    return told(run, of_seed)


def teachers(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> scores and costs of the teacher that the owner kept.

    A teacher has no outputs for classes that it does not know.
    """
    before = run.rounds[run.rounds["round"] == 0]
    took = dict(zip(before.seed, before.seconds, strict=True))
    ready = load_data(read_saved(run.folder, run.seeds[0]).experiment).ready
    test = ready.people[OWNER].test

    def of_seed(seed: int) -> dict[str, float]:
        saved = read_saved(run.folder, seed)
        owner = saved.clients.get(OWNER, None)
        output = Solver(saved.task).outputs(owner.teacher, test)
        scores = saved.task.metrics(saved.task.among(output, owner.known["classes"]), test)
        return {**scores, SECONDS: took[seed], KEPT: len(pack(owner)) / MB}

    return told(run, of_seed)


def told(run: Run, measure: Callable[[int], Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what is measured of a seed."""
    found: dict[str, dict[str, float]] = {}
    for seed in run.seeds:
        for metric, value in measure(seed).items():
            found.setdefault(metric, {})[_seed(seed)] = value
    return found


def _seed(seed: int) -> str:
    return f"seed {seed}"


PROTOCOLS = {"taught": judged}
"""Protocol -> how a part is run under it."""

FULL, LABELS, PLAIN, FREE = "black_box", "label_conditioned", "no_verification", "no_regulariser"
CHANCE = f"chance{PRIOR}"
"""The row of somebody who guesses."""


def _ablated(ground: Ground, guide: str, end: str = "") -> list[Table]:
    """Return a black box, and the same without one part of it at a time."""
    sources = described(ground)
    changes = {
        FULL: {},
        LABELS: {"semantics": sources[RANDOM]},
        PLAIN: {"verify": False},
        FREE: {"regulariser": "none"},
    }
    if BERT in sources:  # else attributes are what the full method has
        changes |= {FULL: {"semantics": sources[BERT]}, ATTRIBUTES: {}}
    return [asked(ground, label + end, guide=guide, **more) for label, more in changes.items()]


PRINTED_WAY = taught("ablated", lambda ground: _ablated(ground, "scores"))
OUR_WAY = taught("ablated_estimates", lambda ground: _ablated(ground, "estimates", "_estimates"))
EPOCHS = taught(
    "epochs",
    lambda ground: [
        asked(ground, f"{box}{end}", guide=guide, **more)
        for box, guide in (("white_box", "gradients"), ("black_box", "scores"))
        for end, more in (
            ("", {}),
            ("_no_ver", {"verify": False}),
            ("_no_R", {"regulariser": "none"}),
        )
    ],
)

TABLES = paper_tables(
    "pezsl",
    {
        "pezsl/table5.2": (every_way("omniscient"), every_way("quasi")),
        "pezsl/table5.3": (PRINTED_WAY, OUR_WAY),
        "pezsl/fig5.3": (EPOCHS,),
    },
)
