"""The owner of PE-ZSL and SG-ZSL: a teacher, and answers to questions about made-up samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vergence.core.conversation import Conversation, compute, fit, forward, step
from vergence.core.generator import KIND
from vergence.core.method import Exposed
from vergence.core.params import Params
from vergence.core.provider import NOTHING, STILL, Taught
from vergence.core.site import Batch, Site
from vergence.core.stages import SMASHED
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply
from vergence.core.zero_shot import KNOWN, REAL, TEACHER


@dataclass(frozen=True)
class Owner:
    """The teacher, the classes it knows as `classes` `[classes]`, and what its data look like.

    `profile` holds the mean `shares` `[1, entries]` of real samples where they are compared with
    that; all is nothing before the teacher learned.
    """

    teacher: Params | None = None
    known: Params | None = None
    profile: Params | None = None


@dataclass(frozen=True)
class Guarded(Taught[Owner]):
    """What a method of this kind has in common on the owner's side.

    A verb that needs no samples is given none; an owner answers no verb that its options do not
    name.
    """

    exposure: ClassVar[Mapping[str, Exposed]] = {
        "guide": Exposed("each", trees=("scores", "gradients"), metrics=(), down=("made", "kinds"),
                         numbered=("question",)),
        "compare": Exposed("each", trees=("scores", "gradients"), metrics=(), down=("made",),
                           numbered=("question",)),
        "judge": Exposed("each", trees=("scores",), metrics=(), down=("made",),
                         numbered=("question",), blind=True),
        "teach": Exposed("each", trees=("known",), down=()),
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = {"teach", self.verb, "judge"}
        table = {verb: e for verb, e in type(self).exposure.items() if verb in asked}
        for verb in {"guide", "compare"} & set(table):
            table[verb] = replace(table[verb], blind=not self.looks, raw=self.looks)
        object.__setattr__(self, "exposure", table)

    @property
    def compares(self) -> bool:
        """Whether made-up samples are compared with real ones."""
        return self.regulariser != "none" and self.alpha > 0

    @property
    def verb(self) -> str:
        """Return what an owner is asked while the generator learns."""
        if self.guide == "gradients":
            return "guide"
        return "compare" if self.compares else "judge"

    @property
    def looks(self) -> bool:
        """Whether that is done with the samples themselves, at every question."""
        return self.compares

    def client(self, task: Task) -> Owner:
        """Have no teacher yet."""
        return Owner()

    def on_teach(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Train the teacher, and tell which classes it knows."""
        start = replace(site.task, seed=site.task.seed + 1).init()
        fitted = yield from fit(start, site.train, self.local)
        known = torch.ones(len(site.task.class_names()))
        if self.knows == "seen":
            known[list(site.task.unseen_classes)] = 0
        if self.knows == "own":
            there = yield from compute(fitted.params, site.train, "classes")
            known = there.bincount(minlength=len(known)).clamp(max=1).float()
        told = Params.named(classes=known)
        c = replace(c, teacher=fitted.params, known=told)
        return c, reply(known=told, metrics=fitted.metrics)

    def on_judge(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Tell what the teacher says of made-up samples."""
        made = msg["made"]["made"]
        if c.teacher is None or c.known is None:
            return c, Reply(self.silence(msg, site.task), 0.0)
        output = yield from forward(c.teacher, {SMASHED: made}, on=self.judge)
        scores = site.task.told(site.task.among(output, c.known["classes"]))
        return c, reply(scores=Params.named(scores=scores))

    def on_guide(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Tell scores, and the gradient of the teacher's loss and of the distance from real."""
        c, told = yield from self.on_judge(c, msg, site)
        if c.teacher is None or c.known is None:
            return c, told
        batch = {SMASHED: msg["made"]["made"], **self.real(c, msg, site),
                 KIND: msg["kinds"]["kinds"].long(),
                 TEACHER: c.teacher.flat, KNOWN: c.known["classes"]}  # fmt: skip
        return c, (yield from self.pulling(told, batch))

    def on_compare(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Tell scores, and the gradient of the distance from real samples."""
        c, told = yield from self.on_judge(c, msg, site)
        if c.teacher is None:
            return c, told
        batch = {SMASHED: msg["made"]["made"], **self.real(c, msg, site)}
        return c, (yield from self.pulling(told, batch))

    def pulling(self, told: Reply, batch: dict[str, Tensor]) -> Conversation[Reply]:
        """Add the gradient by samples to what is told of them."""
        found = yield from step(NOTHING, STILL, batch, self.steps, on=self.guidance, wrt=SMASHED)
        assert found.gradient is not None
        return replace(told, trees={**told.trees, "gradients": Params.named(made=found.gradient)})

    @abstractmethod
    def real(self, c: Owner, msg: Message, site: Site) -> Batch:
        """Return what made-up samples are compared with as `real`; nothing where they are not."""

    def alongside(self, msg: Message, site: Site) -> Batch:
        """Return as many real samples as made-up ones, drawn anew for every question."""
        rng = site.rng.child(str(msg.facts["question"])).torch()
        rows = torch.randint(len(site.train), (len(msg["made"]["made"]),), generator=rng)
        real, _ = site.task.inputs(site.train.take(rows))
        return {REAL: real.cpu()}  # training data may lie on a GPU, questions do not

    def silence(self, msg: Message, task: Task) -> dict[str, Params]:
        """Return what a reply of an owner without a teacher has in it: zeros, erased."""
        made = msg["made"]
        shape = task.told(torch.zeros(len(made["made"]), *self.server(task).said)).shape
        found = {"scores": Params.zeros(Params.named(scores=torch.zeros(shape)).layout)}
        if "gradients" in self.exposure[msg.verb].trees:
            found["gradients"] = made * 0.0
        return found
