"""AP-FL: a generator trained on people's classifiers serves those who were absent.

Not Adaptive Personalised Federated Learning, which is `apfl`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, collect, compute, fit, forward, step
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.messages import Message, Reply, SealedReply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import FitResult
from vergence.core.stages import Piece
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.data.zero_shot.semantics import Meanings, of_task
from vergence.errors import ConfigError
from vergence.methods.generative.sample_generator import (
    ALPHA,
    CLASSIFIERS,
    KIND,
    MEANING,
    NOISE,
    Imagining,
    classifier,
    frozen,
    labelled,
    made_for,
)

EACH = 10
"""Samples of every class in one step of the generator."""
RATE = LocalTraining(steps=1, optimizer="adam", lr=1e-3, weight_decay=0.0, clip=0.0)
"""How the generator is trained."""
NEAR = 1e-3
"""So much may differ between vectors that the same text model makes on two machines."""
STILL = OptimizerState({}, 0)
NO_PARAMS = Params.zeros(Layout((), ()))


@tagged("Memory")
@dataclass(frozen=True)
class Memory:
    """The base method's state, and the generator with the vectors A(y) it knows.

    `told` has the shape of a classifier; `knows` is the fingerprint of A and of the classes' names.
    """

    base: Any
    generator: Params
    told: Params
    knows: str
    learned: bool = False


@tagged("Befriended")
@dataclass(frozen=True)
class Befriended:
    """The base method's state, theta_k of the last turn, and at the end the friend; None before."""

    base: Any
    mine: Params | None = None
    friend: Params | None = None


@dataclass(frozen=True)
class GlobalMemory(Method[Memory, Befriended]):
    """Train by a base method; then let a generator show everybody what the others know.

    1. Rounds of the base method give theta; theta_k is what client k's last training gave.
    2. At the end clients tell theta_k (its last stage for `features`) and n_k^y, how many samples
       of class y they have. With A(y) the vector of y's name and z ~ N(0, I), the server trains
       G on  lamda sum_k alpha_k^y loss(theta_k(G(z, A(y))), y) + (1 - lamda) L_div,
       alpha_k^y = n_k^y / sum_j n_j^y, L_div less the mean distance of two samples of a class.
    3. Everybody is sent theta and G. A friend theta_f is trained from theta on samples of G, with
       classes as in one's own data; whoever never trained fine-tunes theta to be their theta_k.
       Predictions are those of (1 - beta) theta_k + beta theta_f.
    Whoever comes later does 3 when they first predict.

    Args:
        base: another method's record; in an experiment `fedavg` if none is given.
        space: G makes what enters the network, or what enters its last stage (clients then send
            that stage alone, and the friend differs from theta in it alone).
        beta: share of the friend; 0 is the client's own model.
        beta_literal: beta is the share of the client's model, as Equation 3.10 has it.
        lamda: share of the classifiers' loss in the generator's.
        distances: L_div of distances over the greatest there can be, or of `plain` ones.
        alpha: weights of clients sum to 1 for each `class`, or `global`: n_k^y / |D|.
        semantics: where A comes from: `names`, `random`, `minilm`, `glove`, `words` or a file.
        prompt: what a text model is given, a class name in place of {}.
        noise: entries of z.
        samples: made up of each class in one pass of the generator's training.
        passes: of the generator's training, by Adam at rate 0.001, ten samples of each class a
            step.
        reach: greatest value of a made-up feature; the least is 0.
        tune_epochs: of fine-tuning, and of the friend on as many samples as one has.

    Source: the Durham thesis, section 3.3.2, Equations 3.5 to 3.12;
    docs/reference/methods/ap_fl.md.
    Differs: distances are relative, so that L_div is in [-1, 0]; G is a network of linear layers;
    theta_p as above, where Equation 3.10 contradicts its text.
    """

    base: Method[Any, Any] | None = None
    space: Literal["input", "features"] = "input"
    beta: Annotated[float, Interval(ge=0, le=1)] = 0.1
    beta_literal: bool = False
    lamda: Annotated[float, Interval(ge=0, le=1)] = 0.5
    distances: Literal["relative", "plain"] = "relative"
    alpha: Literal["class", "global"] = "class"
    semantics: str = "names"
    prompt: str = "{}"
    noise: Annotated[int, Ge(1)] = 100
    samples: Annotated[int, Ge(EACH)] = 600
    passes: Annotated[int, Ge(1)] = 5
    reach: Annotated[float, Gt(0)] = 10.0
    tune_epochs: Annotated[int, Ge(1)] = 10

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(),
        "tell": Exposure("each", trees=("classifier", "counts"), metrics=(), down=()),
        "befriend": Exposure(trees=(), down=("model", "generator")),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "classifier": Tree("the person's own model, or its last layers", "values"),
        "generator": Tree("a generator made of everybody's classifiers", "values"),
        "counts": Tree(
            "how many samples of each class the person has",
            "numbers",
            "how many recordings of each class each person has",
        ),
    }
    keeps: ClassVar[Mapping[str, str]] = {
        "mine": "the person's own model",
        "friend": "a model made of what others said",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = {verb: type(self).exposure[verb] for verb in ("tell", "befriend")}
        object.__setattr__(self, "exposure", {**self.over.exposure, **ends})
        object.__setattr__(self, "trees", {**self.over.trees, **type(self).trees})
        object.__setattr__(self, "setup_verbs", self.over.setup_verbs)
        object.__setattr__(self, "finish_verbs", (*self.over.finish_verbs, *ends))

    @property
    def over(self) -> Method[Any, Any]:
        """The base method, which trains as this one does.

        Raises:
            ConfigError: there is none.
        """
        if self.base is None:
            raise ConfigError("ap_fl goes over another method: give base, FedAvg() say")
        return replace(self.base, local=self.local)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("on_"):  # what the base method asks clients for
            return partial(self.turn, getattr(self.over, name))
        raise AttributeError(name)

    def check(self, task: Task) -> None:
        """Refuse a base method without one whole model, and a task without names of classes."""
        over = self.over
        unfit = over.pooled or over.served or "tell" in over.exposure
        offered = {} if unfit else over.offer(over.server(task), "")
        whole = offered.get("model")
        if whole is None or whole.layout != task.init().layout:
            raise ConfigError(
                f"ap_fl needs a base method that sends everybody one whole model, and "
                f"{type(over).__name__} does not; use fedavg, fedprox, fedadam or scaffold, say"
            )
        if task.own_prior:
            raise ConfigError(
                "ap_fl trains on made-up features, which have no personal prior; leave out "
                "task.personal_prior (0), or use another method"
            )
        super().check(task)

    def state_records(self, task: Task) -> tuple[type, ...]:
        """Return this method's records, those of the base between them."""
        return Memory, *self.over.state_records(task), Befriended

    def server(self, task: Task) -> Memory:
        """Start as the base method does, with a generator that learned nothing."""
        known = self.known(task)
        start = Params.join(self.imagining(task).init(), Params.named(meaning=known.vectors))
        told = Params.zeros(frozen(self.judge(task))[0])
        return Memory(self.over.server(task), start, told, known.fingerprint)

    def client(self, task: Task) -> Befriended:
        """Start as the base method does."""
        return Befriended(self.over.client(task))

    def offer(self, s: Memory, client: ClientId) -> Mapping[str, Params]:
        """Send what the base method sends, and the generator once it has learned."""
        offered = self.over.offer(s.base, client)
        return {**offered, "generator": s.generator} if s.learned else offered

    def setup(self, s: Memory, clients: Sequence[ClientId]) -> Conversation[Memory]:
        """Do what the base method does."""
        return replace(s, base=(yield from self.over.setup(s.base, clients)))

    def round(self, s: Memory, cohort: Sequence[ClientId]) -> Conversation[Memory]:
        """Hold a round of the base method."""
        return replace(s, base=(yield from self.over.round(s.base, cohort)))

    def turn(
        self, handler: Callable[..., Any], c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Befriended, Reply]]:
        """Take a turn of the base method, and keep what its last training gave: theta_k."""
        mine = c.mine
        answer, talk = None, handler(c.base, msg, site)
        while isinstance(talk, Generator):
            try:
                answer = yield talk.send(answer)
            except StopIteration as end:
                talk = end.value
            else:
                mine = answer.params if isinstance(answer, FitResult) else mine
        base, answered = talk
        return replace(c, base=base, mine=mine), answered

    def finish(self, s: Memory, clients: Sequence[ClientId]) -> Conversation[Memory]:
        """Let those who trained tell their classifiers, train the generator, send it to all."""
        classes = Params.named(counts=torch.zeros(len(s.generator["meaning"])))
        replies: dict[str, SealedReply] = yield from collect(
            "tell",
            {c: Message("tell") for c in clients},
            like={"classifier": s.told, "counts": classes},
        )
        # Only now: where the base method fine-tunes at its end, those who were away train too.
        s = replace(s, base=(yield from self.over.finish(s.base, clients)))
        told = [r.trees for _, r in sorted(replies.items()) if r.trees["classifier"].weight]
        if not told:
            return s
        thetas = torch.stack([trees["classifier"].total.flat for trees in told])
        counts = torch.stack([trees["counts"].total["counts"] for trees in told])
        generator = yield from self.remembered(s.generator, thetas, counts)
        s = replace(s, generator=generator, learned=True)
        sent = {c: {"model": self.over.offer(s.base, c)["model"]} for c in clients}
        yield from aggregate(
            "befriend",
            {
                c: Message("befriend", {**trees, "generator": generator})
                for c, trees in sent.items()
            },
        )
        return s

    def on_tell(
        self, c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Befriended, Reply]]:
        """Tell one's classifier and how many samples of each class one has, if one ever trained."""
        kinds = yield from compute(NO_PARAMS, site.train, "classes")
        names = site.task.class_names()
        counts = Params.named(counts=kinds.bincount(minlength=len(names)).float())
        mine = site.task.init() if c.mine is None else c.mine
        part = mine.only(frozen(self.judge(site.task))[0].names)
        return c, reply(classifier=part, counts=counts, weight=float(c.mine is not None))

    def remembered(self, generator: Params, thetas: Tensor, counts: Tensor) -> Conversation[Params]:
        """Train the generator by classifiers `[clients, n]`, on classes that somebody has."""
        net, meaning = apart(generator)
        kinds = (counts.sum(0) > 0).nonzero().squeeze(1).repeat_interleave(EACH)
        fixed = {
            KIND: kinds,
            MEANING: meaning[kinds],
            CLASSIFIERS: thetas,
            ALPHA: shares(counts, self.alpha),
        }
        rng, state = RandomStream("ap_fl", "noise").torch(), STILL
        for _ in range(self.passes * -(-self.samples // EACH)):
            batch = {**fixed, NOISE: torch.randn(len(kinds), self.noise, generator=rng)}
            got = yield from step(net, state, batch, RATE, on=self.imagining)
            net, state = got.params, got.optimiser
        return generator.put(net)

    def on_befriend(
        self, c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Befriended, Reply]]:
        """Train one's friend and keep it; nothing goes back."""
        return (yield from self.befriended(c, msg, site)), reply()

    def befriended(
        self, c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[Befriended]:
        """Train a friend from theta, and theta_k too if one never trained."""
        local = replace(self.local, epochs=self.tune_epochs, steps=None, schedule="constant")
        theta, mine = msg["model"], c.mine
        if mine is None:
            mine = (yield from fit(theta, site.train, local)).params
        friend = yield from self.friend(theta, msg["generator"], site, local)
        return replace(c, mine=mine, friend=friend)

    def friend(
        self, theta: Params, generator: Params, site: ClientContext, local: LocalTraining
    ) -> Conversation[Params]:
        """Train theta on made-up samples, as many as one has and with classes as often."""
        net, meaning = apart(generator)
        self.compare(meaning, site.task)
        mine = yield from compute(NO_PARAMS, site.train, "classes")
        rng, n = site.rng.child("friend").torch(), len(mine)
        kinds = mine[torch.randint(n, (n,), generator=rng)]
        noise = torch.randn(n, self.noise, generator=rng)
        made = {KIND: kinds, MEANING: meaning[kinds], NOISE: noise}
        samples = yield from forward(net, made, on=self.imagining)
        judge, state = self.judge(site.task), STILL
        part = theta.only(frozen(judge)[0].names).copy()
        for _ in range(local.epochs):
            for rows in torch.randperm(n, generator=rng).split(local.batch):
                batch = labelled(judge, samples[rows], kinds[rows])
                got = yield from step(part, state, batch, local, on=self.judge)
                part, state = got.params, got.optimiser
        return theta.put(part)

    def model_on(self, c: Befriended, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Predict with theta_p; before the end as the base method does."""
        if "generator" not in msg.trees:
            found = self.over.model_on(c.base, msg, site)
            return (yield from found) if isinstance(found, Generator) else found
        if c.friend is None:
            c = yield from self.befriended(c, msg, site)
        assert c.mine is not None
        assert c.friend is not None
        return mixed(c.mine, c.friend, 1 - self.beta if self.beta_literal else self.beta)

    def judge(self, task: Task) -> Piece:
        """Return the piece of the network that made-up samples enter."""
        return classifier(task, self.space == "features")

    def imagining(self, task: Task) -> Imagining:
        """Training objective of the generator."""
        judge, width = self.judge(task), self.known(task).vectors.shape[1]
        reach = self.reach if self.space == "features" else None
        made = made_for(judge, self.noise, width, reach)
        return Imagining(made, task.seed, self.lamda, self.distances == "relative", judge=judge)

    def known(self, task: Task) -> Meanings:
        """Semantic vectors of the names of the task's classes."""
        return of_task(task, self.semantics, self.prompt)

    def compare(self, meaning: Tensor, task: Task) -> None:
        """Refuse a generator that was trained with other vectors `[classes, d]`.

        Raises:
            ConfigError: says which vectors there are here.
        """
        here = self.known(task)
        if here.vectors.shape != meaning.shape or not torch.allclose(
            here.vectors, meaning, atol=NEAR
        ):
            raise ConfigError(
                f"ap_fl: this generator was trained with other vectors of class names, "
                f"{list(meaning.shape)}, than there are here, {list(here.vectors.shape)} from "
                f"{here.fingerprint}; set semantics, prompt and the names of classes as they were"
            )


def apart(generator: Params) -> tuple[Params, Tensor]:
    """Return the generator's layers, copied, and the vectors `[classes, d]` it was trained with."""
    layers = [name for name in generator if name != "meaning"]
    return generator.only(layers).copy(), generator["meaning"]


def shares(counts: Tensor, over: Literal["class", "global"]) -> Tensor:
    """Return alpha `[clients, classes]` of counts: they sum to 1 for each class, or in all."""
    total = counts.sum(0, keepdim=True) if over == "class" else counts.sum()
    return counts / total.clamp(min=1)


def mixed(mine: Params, friend: Params, share: float) -> Params:
    """Return the mixture of two models, the friend's share of it given; of 0 it is `mine` itself.

    Examples:
        >>> from vergence.core.params import Layout, Params
        >>> one, two = (Params.named(a=torch.tensor(x)) for x in ([1.0, 2.0], [3.0, 6.0]))
        >>> mixed(one, two, 0.5)["a"].tolist()
        [2.0, 4.0]
    """
    return mine * (1 - share) + friend * share if share else mine
