"""PE-ZSL: a teacher stands guard over data, and its answers alone train a zero-shot classifier."""

from __future__ import annotations

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
from vergence.core.site import Site
from vergence.core.stages import SMASHED
from vergence.core.task import Task
from vergence.core.wire import Message, Reply, reply
from vergence.core.zero_shot import KNOWN, REAL, TEACHER
from vergence.data.semantics import of_task


@dataclass(frozen=True)
class Owner:
    """The teacher, and the classes it knows as `classes` `[classes]`; nothing before it learned."""

    teacher: Params | None = None
    known: Params | None = None


@dataclass(frozen=True)
class PeZsl(Taught[Owner]):
    """A provider without data learns from an owner's teacher and from the names of classes.

    1. The owner trains a teacher T on its data, and tells which classes T knows.
    2. T_g rounds. The provider makes x = G(z, A(y)) of these classes, with A(y) the vector of y's
       name and z ~ N(0, I); the owner answers softmax T(x) and, in a white box, the gradient by x
       of  L(T(x), y) + alpha R(x),  R how far x is from as many real samples, drawn anew.
       White box: G follows the gradient. Black box: G and the student S minimise
       |T(x) - S(x)|^2 + alpha R(x), of which the owner answers the gradient of alpha R.
    3. Samples that T takes for their class are kept; T_s rounds train S to |T(x) - S(x)|^2.
    4. Where T does not know every class, a classifier, from S, learns all from samples of G.
    Several owners: answers are averaged.

    Source: the Durham thesis, section 5.3, Equations 5.2 to 5.6, Algorithm 2;
    docs/methods/pe_zsl.md.
    Differs: the teacher starts from another initial model than the student; in a black box G has a
    gradient, which the authors' programme cuts off; `student` and `estimates` are ours.
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
        if "guide" in table and not self.compares:
            table["guide"] = replace(table["guide"], blind=True)
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

    def meanings(self, task: Task) -> tuple[Tensor, str]:
        """Return the vectors of the names of classes, and their fingerprint."""
        found = of_task(task, self.semantics, self.prompt)
        return found.vectors, found.fingerprint

    def client(self, task: Task) -> Owner:
        """Have no teacher yet."""
        return Owner()

    def on_teach(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Train the teacher, and tell which classes it knows."""
        start = replace(site.task, seed=site.task.seed + 1).init()
        fitted = yield from fit(start, site.train, self.local)
        known = torch.ones(len(site.task.class_names()))
        if self.knows == "own":
            there = yield from compute(fitted.params, site.train, "classes")
            known = there.bincount(minlength=len(known)).clamp(max=1).float()
        told = Params.named(classes=known)
        return Owner(fitted.params, told), reply(known=told, metrics=fitted.metrics)

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
        batch = {SMASHED: msg["made"]["made"], **self.real(msg, site),
                 KIND: msg["kinds"]["kinds"].long(),
                 TEACHER: c.teacher.flat, KNOWN: c.known["classes"]}  # fmt: skip
        return c, (yield from self.pulling(told, batch))

    def on_compare(self, c: Owner, msg: Message, site: Site) -> Conversation[tuple[Owner, Reply]]:
        """Tell scores, and the gradient of the distance from real samples."""
        c, told = yield from self.on_judge(c, msg, site)
        if c.teacher is None:
            return c, told
        batch = {SMASHED: msg["made"]["made"], **self.real(msg, site)}
        return c, (yield from self.pulling(told, batch))

    def pulling(self, told: Reply, batch: dict[str, Tensor]) -> Conversation[Reply]:
        """Add the gradient by samples to what is told of them."""
        found = yield from step(NOTHING, STILL, batch, self.steps, on=self.guidance, wrt=SMASHED)
        assert found.gradient is not None
        return replace(told, trees={**told.trees, "gradients": Params.named(made=found.gradient)})

    def real(self, msg: Message, site: Site) -> dict[str, Tensor]:
        """Return as many real samples as made-up ones, drawn anew for every question."""
        if not self.compares:
            return {}
        rng = site.rng.child(str(msg.facts["question"])).torch()
        rows = torch.randint(len(site.train), (len(msg["made"]["made"]),), generator=rng)
        return {REAL: site.task.inputs(site.train.take(rows))[0]}

    def silence(self, msg: Message, task: Task) -> dict[str, Params]:
        """Return what a reply of an owner without a teacher has in it: zeros, erased."""
        made = msg["made"]
        shape = task.told(torch.zeros(len(made["made"]), *self.server(task).said)).shape
        found = {"scores": Params.zeros(Params.named(scores=torch.zeros(shape)).layout)}
        if "gradients" in self.exposure[msg.verb].trees:
            found["gradients"] = made * 0.0
        return found
