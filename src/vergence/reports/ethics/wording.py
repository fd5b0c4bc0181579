"""Wording of the page for an ethics board: sentences about a plan.

Every sentence follows from the plan; none says that something is hidden unless a mechanism of the
plan hides it.

Used by `reports.ethics.attack_findings`, `reports.ethics.facts`, `reports.ethics.visibility` and
`reports.explain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from vergence.core.federation import Federation
from vergence.core.method import Exposure, Method
from vergence.core.naming import plural
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.experiment.privacy.spent import statements
from vergence.privacy.hooks import Statement
from vergence.reports.ethics.subjects import EthicsSubject, subject

STRONG, SOME = 1.0, 10.0
"""Epsilons up to which a promise about people is strong, and is worth the name.

Source: Ponomareva et al., "How to DP-fy ML", JAIR 2023, section 5.2, tiers 1 to 3.
"""
# From here on two decimals would print as 100 %, which no epsilon gives.
CERTAIN = 0.99995
HARDLY = 1.1
"""An attack whose error is less than a tenth below chance is called hardly better."""
UPDATES = frozenset({"update", "groups"})
"""Kinds of trees that are updates of parameters."""


def kinds(method: Method, exposed: Exposure) -> set[str]:
    """Return the kinds of the trees in replies to a request."""
    return {method.tree(name).kind for name in exposed.trees}


def compares(method: Method, exposed: Exposure) -> bool:
    """Return whether an answer holds gradients that compare a sample with the owner's samples."""
    return exposed.raw and "gradients" in kinds(method, exposed)


Ran = Literal["", "computer", "cluster", "devices"]
"""Where recordings lay in a run: on one computer, a cluster's, or people's devices; "": none."""
WHERE: Mapping[Ran, str] = {
    "": "Nothing has been run. A simulation of this plan would have all recordings on one computer",
    "computer": "This run was a simulation: all recordings were on one computer",
    "cluster": "This run was a simulation: all recordings were on the machines of one cluster",
}


@dataclass(frozen=True)
class PrivacyMeans:
    """A plan seen from its privacy: what leaves a device, where it was run, and who takes part.

    Attributes:
        plan: the plan with its protections.
        method: the method.
        task: the task.
        ran: where recordings lay in a run; "" for a plan.
        people: the data, None if unknown.
    """

    plan: Plan
    method: Method
    task: Task
    ran: Ran = ""
    people: Federation | None = None

    @property
    def subject(self) -> EthicsSubject:
        """Words for what is recorded and learned in this task."""
        return subject(self.task, self.people)

    @property
    def seen(self) -> list[Exposure]:
        """Exposures of which the server could inspect single replies."""
        return [e for e in self.method.exposure.values() if e.reveal == "each" or not self.least]

    @cached_property
    def kinds(self) -> set[str]:
        """Kinds of trees of which the server could inspect single replies."""
        return {kind for exposed in self.seen for kind in kinds(self.method, exposed)}

    @property
    def compared(self) -> bool:
        """Whether these answers compare made-up samples with single real ones."""
        return any(compares(self.method, exposed) for exposed in self.seen)

    @property
    def numbers(self) -> str:
        """Description of the few numbers that each person discloses, "" if there are none."""
        told = dict.fromkeys(
            self.method.tree(name).everybody for e in self.seen for name in e.trees
        )
        return " and ".join(filter(None, told))

    @property
    def sends(self) -> bool:
        """Whether anything learned leaves the device."""
        return any(e.trees for e in self.method.exposure.values())

    @property
    def device(self) -> str:
        """Place where a person's recordings lie in a deployment."""
        return "the machine of each person's lab" if self.plan.silos else "each person's device"

    @property
    def sender(self) -> str:
        """Owner of a reply that leaves: a person, or a lab, which sums over its people."""
        return "lab" if self.plan.silos else "person"

    @property
    def parties(self) -> str:
        """The aggregators' names."""
        return ", ".join(self.plan.privacy.aggregators)

    @property
    def least(self) -> int:
        """Smallest number of people in a sum, 0 if single replies are seen."""
        return self.plan.privacy.least

    @cached_property
    def statements(self) -> list[Statement]:
        """Sentences of the plan's protections."""
        return statements(self.plan, self.method, self.task, self.people)

    def sentences(self, part: str) -> list[str]:
        """Sentences of the plan's protections for a part of the page."""
        return [each.text for each in self.statements if each.part == part]

    def sentences_or(self, part: str, plain: list[str]) -> list[str]:
        """Return these sentences, after `plain` ones unless a checked protection replaces them."""
        replaced = any(each.part == part and each.checked for each in self.statements)
        return [*([] if replaced else plain), *self.sentences(part)]


def certainty(epsilon: float) -> float:
    """Return the highest certainty that somebody can reach who began with a chance of 50 %.

    Examples:
        >>> round(certainty(1.0), 2), round(certainty(8.0), 4)
        (0.73, 0.9997)
    """
    # Bayes with even odds: the posterior odds are at most e^epsilon. exp(710) overflows a double.
    return 1 / (1 + math.exp(-min(epsilon, 700.0)))


def tier(epsilon: float) -> str:
    """Return the strength of a promise of epsilon, in words."""
    if epsilon <= STRONG:
        return "strong"
    return "some, far from strong" if epsilon <= SOME else "none to speak of"


def in_words(unit: str, epsilon: float, delta: float, of: str) -> str:
    """Return the meaning of epsilon and delta, in a sentence for readers without mathematics."""
    sure = certainty(epsilon)
    shown = f"{100 * sure:.2f}" if sure < CERTAIN else "more than 99.99"
    return (
        f"Somebody who holds it for as likely as not that {of}, and then studies everything that "
        f"is published, can become {shown} % sure at most (epsilon {epsilon:.3g} per {unit}; with "
        f"a chance of {delta:g} this may fail). What it is worth: {tier(epsilon)}."
    )


def nearness(times: float) -> str:
    """Return the result of an attack on pictures in words; `times`: chance's error by its error."""
    if times <= HARDLY:
        return f"{'hardly' if times > 1 else 'no'} better than chance"
    return f"{times:.3g} times nearer than chance: something of the person is left"


FOUND_OUT = "Attacks found out more about people than chance does: who it was, or who was in."


def verdict(
    means: PrivacyMeans, budget: Mapping[str, Any], rebuilt: float | None, people: bool = False
) -> list[str]:
    """Return the few sentences that a reader must know.

    Args:
        means: the plan.
        budget: its privacy promises.
        rebuilt: how many times nearer than chance an attack on pictures came; None: none was tried.
        people: whether an attack on people was better than chance.
    """
    if means.method.pooled:
        return [
            "Everybody's recordings and labels are brought to one place.",
            "Nothing in this plan hides anybody from whoever works there.",
            *([f"{WHERE[means.ran]}."] if means.ran in WHERE else []),
        ]
    if not means.sends:
        stays = "What is learned from them stays there too; only measurements leave."
        return [_where(means), stays]
    tried = "Whether pictures can be rebuilt from it was not tried here."
    if rebuilt is not None:
        tried = (
            f"Pictures were rebuilt from it, {rebuilt:.3g} times nearer to the originals than by "
            "chance."
            if rebuilt > HARDLY
            else f"The attack that was tried rebuilt pictures {nearness(rebuilt)}."
        )
    smashed = "smashed" in means.kinds
    return [
        _where(means),
        *_leaves(means),
        *([tried] if smashed or rebuilt is not None else []),
        *([FOUND_OUT] if people else []),
        *_promise(budget, means.subject.samples),
    ]


def _leaves(means: PrivacyMeans) -> list[str]:
    """Return the sentences on what the server sees of what was learned."""
    if "smashed" in means.kinds:
        labels = f", and with it {means.subject.labels}" if "labels" in means.kinds else ""
        return [f"Something made from every single picture goes to the server{labels}."]
    if "answers" in means.kinds:
        asks = (
            "A model trained on them stays there too, and answers questions. The server learns "
            "from what it says of made-up samples."
        )
        compares = (
            f"Every answer compares these with single real {means.subject.rebuilt}, and real ones "
            "can be worked out from it."
        )
        return [asks, compares] if means.compared else [asks]
    if means.least:
        many = "labs" if means.plan.silos else "people"
        return [
            f"The server sees only sums over {means.least} {many} or more, as long as not too "
            "many of those involved conspire."
        ]
    return [
        "What was learned from the people of a lab is added up there, and the server sees each "
        "lab's sum."
        if means.plan.silos
        else "What was learned from one person is seen, person by person, by the server."
    ]


def _where(means: PrivacyMeans) -> str:
    """Return the sentence on where recordings are."""
    # A simulation has them all on one computer: the page must not say that they stay on devices.
    if means.ran == "devices":
        return f"Recordings stay on {means.device}."
    return (
        f"{WHERE[means.ran]}. In a deployment recordings stay on {means.device}; the rest of this "
        "page is about such a deployment."
    )


def _promise(budget: Mapping[str, Any], samples: str) -> list[str]:
    if "person" in budget:
        part = budget["person"]
        worth = f"Its worth: {part['worth']} (epsilon {part['epsilon']:.3g})."
        useful = part["useful"] or budget.get("lab", {}).get("useful")
        told = [f"There is a promise about each person. {worth}", *([useful] if useful else [])]
        if "lab" in budget:
            lab = budget["lab"]
            told.append(
                f"There is another about each lab as a whole. Its worth: {lab['worth']} (epsilon "
                f"{lab['epsilon']:.3g})."
            )
        return told
    if "sample" in budget:
        return [
            f"There is a promise about single {samples}. There is none about people: many "
            f"{samples} of one person together are not covered."
        ]
    return ["There is no promise about what can be found out from the finished model."]


def assumed(means: PrivacyMeans) -> list[str]:
    """Return the conditions under which the page is true."""
    if means.method.pooled:
        return ["Everybody at the data centre is trusted with everything."]
    honest = (
        "Participants are honest: one who sends false updates can spoil the model."
        if means.sends
        else "Nobody has to trust anybody else: no model is made of more than one person's."
    )
    return [
        *_trusted(means),
        *means.sentences_or("participants", [honest]),
        "Lines are encrypted, and all devices and the server know each other's keys, as in a "
        "deployment; a simulation sends nothing over lines between people.",
    ]


def _trusted(means: PrivacyMeans) -> list[str]:
    """Return the sentences on what the server and the helpers are trusted with."""
    if "smashed" in means.kinds:
        alone = "The server is trusted not to rebuild pictures. Nothing stops it from trying."
        return [alone, *means.sentences("server")]
    if not means.sends:
        return []
    if "answers" in means.kinds:
        return [
            "The server is trusted not to ask until it has a copy of the model on the device. "
            "A limit on answers is the only bound there is."
        ]
    plain = ["The server is trusted with each person's update, and not to keep it."]
    return means.sentences_or("server", plain)


def rights(means: PrivacyMeans) -> list[list[str]]:
    """Return pairs of a person's right and what is technically possible."""
    where = "where they were collected" if means.method.pooled else f"on {means.device}"
    again = (
        "a new training without the person can be started"
        if means.ran == "devices"
        else "the model can be trained again without the person (vergence privacy forget)"
    )
    return [
        [
            "see their data",
            f"The recordings lie {where} and can be shown. What a model has learned from one "
            "person cannot be listed.",
        ],
        [
            "correct them",
            "Recordings can be corrected. A model that has learned from wrong ones must be trained "
            "again.",
        ],
        [
            "have them deleted",
            "Recordings, and what the software keeps of a person, can be deleted, and "
            f"{again}. Copies of models that others have already cannot be called back. A training "
            "that is repeated with the others uses up their promises a second time.",
        ],
        [
            "object or withdraw",
            "Nothing of the person is used or sent any more, if the study stops it. What was "
            "learned before stays in the model until it is trained again.",
        ],
        ["take them along", f"The recordings are ordinary files {where}."],
        ["not be judged by a machine", "The software decides nothing about people by itself."],
    ]


def stored(means: PrivacyMeans) -> list[list[str]]:
    """Return pairs of what the software keeps, and where and how long."""
    here = means.ran == "devices"
    own = (
        f"on {means.device}" if here else f"on {means.device}; in a simulation, in the run's folder"
    )
    folder = "on the server's machine, in the folder of the run, until somebody deletes it"
    spends = means.plan.privacy.spends or means.least or "answers" in means.kinds
    rows = (
        (
            True,
            "recordings",
            "stay where they are until somebody deletes them; decoded frames or features of them "
            "may lie in a cache of the same machine, and a simulation's report shows some samples",
        ),
        (True, "models and results", folder),
        (
            True,
            "logs, with names of devices and times",
            f"{folder}; each device has a log of its own",
        ),
        (
            True,
            "keys of a deployment",
            "on the machine that made them, until somebody deletes them",
        ),
        (
            not means.method.pooled,
            "what belongs to one person, such as personal parts of models",
            f"{own}, until deleted",
        ),
        (
            "smashed" in means.kinds,
            "what the server gets of pictures",
            "used for one step of training; nothing stops a server from keeping it",
        ),
        (
            spends,
            "lists of what was given away (budgets, sums, answers)",
            f"{own}; a device that has lost them, or has older ones, takes no part any more",
        ),
    )
    return [[what, where] for holds, what, where in rows if holds]


def residual(means: PrivacyMeans, budget: Mapping[str, Any]) -> list[str]:
    """Return what may still be found out, and by whom."""
    if means.method.pooled:
        return ["Everything: whoever has the data can look at it, copy it and lose it."]
    return [
        *_rebuilt(means),
        *_from_numbers_and_sums(means),
        *_membership(means, budget),
        f"{means.subject.trait} may be told by a model even where no single recording can "
        "be had from it.",
    ]


def _rebuilt(means: PrivacyMeans) -> list[str]:
    """Return what may be reconstructed from a client's messages: recordings, or its model."""
    many, smashed = means.subject.rebuilt, "smashed" in means.kinds
    answers = "answers" in means.kinds and not smashed
    sent = "a lab's sum of updates" if means.plan.silos else "one person's update"
    sentences = (
        (
            smashed,
            "Rebuilt pictures: from what the first layers make of a picture, its owner's eyes may "
            "be drawn again, and recognised.",
        ),
        (
            smashed and "labels" not in means.kinds,
            f"{means.subject.labels.capitalize()} is not sent, but the server can compute much of "
            "it from what is.",
        ),
        (
            answers,
            "A copy of the model on the device: with enough answers the server has one, and "
            "whatever can be found out from that model.",
        ),
        (
            answers and means.compared,
            f"Single {many}: the answers say how made-up ones would have to change to be more like "
            "real ones. From that real ones can be worked out, nearly exactly.",
        ),
        (
            means.sends and not (means.least or smashed or answers),
            f"Rebuilt {many}: {sent}, which the server sees, may be turned back into {many}, the "
            "more easily the fewer it was made from.",
        ),
    )
    return [text for holds, text in sentences if holds]


def _from_numbers_and_sums(means: PrivacyMeans) -> list[str]:
    """Return what disclosed numbers and sums may reveal."""
    if not means.numbers:
        return means.sentences("residual")
    return [
        f"Names: {means.numbers}. These few numbers may tell the server whose they are "
        "where it knows the recordings, or others of the same person.",
        *means.sentences("residual"),
    ]


def _membership(means: PrivacyMeans, budget: Mapping[str, Any]) -> list[str]:
    """Return how surely the finished model reveals that somebody took part."""
    if "person" not in budget and means.sends:
        return [
            "Membership: from the finished model somebody may find out that a certain "
            "person took part. Nothing here bounds how surely."
        ]
    if means.sends and budget["person"]["epsilon"] > SOME:
        return [
            "Membership: how surely somebody can find out that a certain person took "
            "part is bounded, but too weakly to matter."
        ]
    return []


def unprotected(means: PrivacyMeans) -> list[str]:
    """Return what no part of the plan protects."""
    kept = means.task.by_sample and means.ran != "devices"
    parts = f", and of some also {means.subject.sample} by {means.subject.sample}" if kept else ""
    whose = "the people of each lab have together" if means.plan.silos else "each person has"
    pose = ", and the pose of the head" if "pose" in means.task.side_inputs else ""
    start, samples = means.task.network.start, means.subject.samples
    many = {(data, who) for data, people in start.learned_from for who in people} if start else ()
    words = {"samples": samples, "Samples": samples.capitalize()}
    sentences = (
        (True, "That somebody takes part, when, and how often: the server knows."),
        (True, "The device: whoever unlocks it can read the recordings on it."),
        (True, f"Use: whoever runs the model learns {means.subject.use}. That is what it is for."),
        (True, f"Measurements: {_measured(means, parts)}."),
        (
            means.sends and not means.least and not means.plan.privacy.bounded,
            f"How many recordings {whose}: the server is told.",
        ),
        ("labels" in means.kinds, f"{means.subject.labels.capitalize()}{pose}: sent as it is."),
        (
            start is not None,
            f"The {plural(len(many), 'person')} whom the model had learned from before "
            f"({start and start.data}): it begins as that of another run, and what it tells of "
            "them no promise here counts.",
        ),
        *((True, text.format_map(words)) for text in means.sentences("unprotected")),
        (True, "Mistakes in this software: nobody independent has checked it."),
    )
    return [text for holds, text in sentences if holds]


def _measured(means: PrivacyMeans, parts: str) -> str:
    """Return whose scores are reported, person by person or lab by lab; `parts` is added to it."""
    alone = f"is reported person by person{parts}"
    if not means.plan.silos:
        return f"how well the model works {alone}"
    there = "the server is told of each lab how well the model works in the mean of its people"
    return there if means.ran == "devices" else f"{there}; in a simulation it {alone}"
