"""The owner of PE-ZSL and SG-ZSL: a teacher, and answers to questions about made-up samples.

Used by `audit.run`, `methods.generative.pe_zsl` and `methods.generative.sg_zsl`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit, forward, step
from vergence.core.data import Batch
from vergence.core.local_training import FRESH
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Tree
from vergence.core.params import Params
from vergence.core.stages import SMASHED
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.methods.generative.losses import KNOWN, REAL, TEACHER
from vergence.methods.generative.provider import NOTHING, Taught
from vergence.methods.generative.sample_generator import KIND


@tagged("Owner")
@dataclass(frozen=True)
class Owner:
    """The teacher, the classes it knows as `classes` `[classes]`, and a profile of its data.

    `profile` holds what a method compares made-up samples with: the mean `shares` `[1, entries]` of
    real samples, or their `moments` `[2, entries]`, means and standard deviations. All three are
    None before the teacher is trained.
    """

    teacher: Params | None = None
    known: Params | None = None
    profile: Params | None = None


@dataclass(frozen=True)
class TeacherMethod(Taught[Owner]):
    """Base of methods with an owner whose teacher answers questions: the owner's side.

    An owner handles a request that needs no samples without access to its samples. It answers only
    the requests that its options use.
    """

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "guide": Exposure(
            "each",
            trees=("scores", "gradients"),
            metrics=(),
            down=("made", "kinds"),
            numbered=("question",),
        ),
        "compare": Exposure(
            "each",
            trees=("scores", "gradients"),
            metrics=(),
            down=("made",),
            numbered=("question",),
        ),
        "judge": Exposure(
            "each",
            trees=("scores",),
            metrics=(),
            down=("made",),
            numbered=("question",),
            blind=True,
        ),
        "teach": Exposure("each", trees=("known",), down=()),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "made": Tree("made-up samples", "values"),
        "kinds": Tree("their classes", "values"),
        "scores": Tree("what the teacher says of them", "answers"),
        "gradients": Tree("which way each of them would have to change", "gradients"),
        "known": Tree("which classes it knows", "answers"),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        "teacher": "a model that answers",
        "known": "which classes it knows",
        "profile": "what recordings look like on average",
    }
    setup_verbs: ClassVar[tuple[str, ...]] = ("teach",)

    def __post_init__(self) -> None:
        super().__post_init__()
        # An owner must not answer what its own options never ask: a server could draw samples out
        # of it by a request of another variant.
        asked = {"teach", self.verb, "judge"}
        table = {verb: e for verb, e in type(self).exposure.items() if verb in asked}
        for verb in {"guide", "compare"} & set(table):
            table[verb] = replace(table[verb], blind=not self.looks, raw=self.looks)
        object.__setattr__(self, "exposure", table)

    @property
    def compares(self) -> bool:
        """Return whether made-up samples are compared with real ones."""
        return self.regulariser != "none" and self.alpha > 0

    @property
    def verb(self) -> str:
        """Return the kind of requests (verb) to an owner during the generator's training."""
        if self.guide == "gradients":
            return "guide"
        return "compare" if self.compares else "judge"

    @property
    def looks(self) -> bool:
        """Return whether each question compares with real samples themselves."""
        return self.compares

    def client(self, task: Task) -> Owner:
        """Return the state of a new owner: no teacher yet."""
        return Owner()

    def on_teach(
        self, c: Owner, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Owner, Reply]]:
        """Train the teacher, and send the classes that it knows."""
        # Another initial model than the student's, which the provider knows: a teacher that started
        # there would be close to the student before it learned.
        start = replace(site.task, seed=site.task.seed + 1).init()
        fitted = yield from fit(start, site.train, self.local)
        known = torch.ones(len(site.task.class_names()))
        if self.knows == "seen":
            known[list(site.task.unseen_classes)] = 0
        if self.knows == "own":
            labels = yield from compute(fitted.params, site.train, "classes")
            known = labels.bincount(minlength=len(known)).clamp(max=1).float()
        classes = Params.named(classes=known)
        c = replace(c, teacher=fitted.params, known=classes)
        return c, reply(known=classes, metrics=fitted.metrics)

    def on_judge(
        self, c: Owner, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Owner, Reply]]:
        """Send the teacher's scores of made-up samples."""
        made = msg["made"]["made"]
        if c.teacher is None or c.known is None:
            # With weight 0, so that the means of answers leave this owner out.
            return c, Reply(self.empty_trees(msg, site.task), 0.0)
        output = yield from forward(c.teacher, {SMASHED: made}, on=self.judge)
        scores = site.task.prediction(site.task.restrict_to_known(output, c.known["classes"]))
        return c, reply(scores=Params.named(scores=scores))

    def on_guide(
        self, c: Owner, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Owner, Reply]]:
        """Send scores, and the gradient of the teacher's loss plus the distance from real data."""
        c, answer = yield from self.on_judge(c, msg, site)
        if c.teacher is None or c.known is None:
            return c, answer
        batch = {
            SMASHED: msg["made"]["made"],
            **self.real(c, msg, site),
            KIND: msg["kinds"]["kinds"].long(),
            TEACHER: c.teacher.flat,
            KNOWN: c.known["classes"],
        }
        return c, (yield from self.add_gradient(answer, batch))

    def on_compare(
        self, c: Owner, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Owner, Reply]]:
        """Send scores, and the gradient of the distance from real samples."""
        c, answer = yield from self.on_judge(c, msg, site)
        if c.teacher is None:
            return c, answer
        batch = {SMASHED: msg["made"]["made"], **self.real(c, msg, site)}
        return c, (yield from self.add_gradient(answer, batch))

    def add_gradient(self, answer: Reply, batch: dict[str, Tensor]) -> Conversation[Reply]:
        """Add to an answer the gradient by the samples."""
        result = yield from step(NOTHING, FRESH, batch, self.steps, on=self.guidance, wrt=SMASHED)
        assert result.gradient is not None
        return replace(
            answer, trees={**answer.trees, "gradients": Params.named(made=result.gradient)}
        )

    @abstractmethod
    def real(self, c: Owner, msg: Message, site: ClientContext) -> Batch:
        """Return the column `real` for the comparison; an empty batch without a comparison."""

    def real_samples(self, msg: Message, site: ClientContext) -> Batch:
        """Return as many real samples as made-up ones, drawn anew for every question."""
        rng = site.rng.child(str(msg.facts["question"])).torch()
        rows = torch.randint(len(site.train), (len(msg["made"]["made"]),), generator=rng)
        real, _ = site.task.inputs(site.train.take(rows))
        # Training data may lie on a GPU, questions do not.
        return {REAL: real.cpu()}

    def empty_trees(self, msg: Message, task: Task) -> dict[str, Params]:
        """Return the trees of a reply without a teacher: zeros."""
        made = msg["made"]
        shape = task.prediction(
            torch.zeros(len(made["made"]), *self.server(task).score_shape)
        ).shape
        trees = {"scores": Params.zeros(Params.named(scores=torch.zeros(shape)).layout)}
        if "gradients" in self.exposure[msg.verb].trees:
            trees["gradients"] = made * 0.0
        return trees
