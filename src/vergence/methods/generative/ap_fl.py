"""AP-FL: a generator trained on clients' classifiers gives absent clients a personal model.

Not Adaptive Personalised Federated Learning, which is `apfl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, collect, compute, fit, forward, step
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH, LocalTraining
from vergence.core.messages import Message, Reply, SealedReply, reply
from vergence.core.method import Exposure, Method, Tree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import FitResult
from vergence.core.stages import Piece
from vergence.core.tags import LATER, tagged
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
    frozen_classifier,
    generator_for,
    labelled_batch,
)

EACH = 10
"""Samples of every class in one step of the generator."""
RATE = LocalTraining(steps=1, optimizer="adam", lr=1e-3, weight_decay=0.0, clip=0.0)
"""Training settings of the generator."""
STEADY = 1e-3
"""Share of its best loss by which a pass of the generator's training must be better to count."""
NEAR = 1e-3
"""Tolerance between vectors of the same text model on two machines."""


@tagged("Memory", template="told")
@dataclass(frozen=True)
class Memory:
    """The base method's state, and the generator with the vectors A(y) it was trained with.

    `template` has the shape of a classifier; `knows` is the fingerprint of A and of the names of
    classes.
    """

    base: Any
    generator: Params
    template: Params
    knows: str
    learned: bool = False


@tagged("Befriended")
@dataclass(frozen=True)
class Befriended:
    """Client state: the base method's state, theta_k, and the friend; both None at first."""

    base: Any
    mine: Params | None = None
    friend: Params | None = None


@dataclass(frozen=True)
class GlobalMemory(Method[Memory, Befriended]):
    """Train by a base method; then a generator passes on what other clients' classifiers know.

    1. Rounds of the base method give theta; theta_k is what client k's last training gave.
    2. At the end clients send theta_k (its last stage for `features`) and n_k^y, how many samples
       of class y they have. With A(y) the vector of y's name and z ~ N(0, I), the server trains
       G on  lamda sum_k alpha_k^y loss(theta_k(G(z, A(y))), y) + (1 - lamda) L_div,
       alpha_k^y = n_k^y / sum_j n_j^y, L_div minus the mean distance of two samples of a class.
    3. Every client gets theta and G. A friend theta_f is trained from theta on samples of G, with
       classes as in its own data; a client that never trained fine-tunes theta to have a theta_k.
       Predictions are those of (1 - beta) theta_k + beta theta_f, or, by Equation 3.10 as printed
       (`beta_literal`), of beta theta_k + (1 - beta) theta_f.
    A client that comes later does step 3 at its first prediction.

    Args:
        base: another method's record; in an experiment `fedavg` if none is given.
        space: G generates inputs of the network, or of its last stage (clients then send only that
            stage, and the friend differs from theta only in it).
        beta: share of the friend; 0 is the client's own model.
        beta_literal: beta is the share of the client's model, as Equation 3.10 has it.
        friend_classes: classes of the samples on which a friend is trained: `own`, as in the
            client's data; `all`, equally many of every class that anybody or the client has. The
            server then tells everybody which classes somebody has.
        tune_own: theta_k is theta, fine-tuned at the end for `tune_epochs` on the client's data, as
            `fedavg_ft` has it, and not what the client's last training gave.
        lamda: share of the classifiers' loss in the generator's.
        distances: L_div uses distances divided by the largest possible one (`relative`), or `plain`
            distances.
        alpha: `class`: clients' weights sum to 1 for each class; `global`: they are n_k^y / |D|.
        semantics: source of the vectors A: `names`, `random`, `minilm`, `glove`, `words` or a file.
        prompt: text for a text model, with a class name in place of {}.
        noise: number of entries of z.
        samples: number of samples made up per class in one pass of the generator's training.
        passes: passes of the generator's training, by Adam at rate 0.001, ten samples of each class
            a step.
        patience: the generator's training ends when so many passes in a row have a mean loss that
            is not .1 % less than the least before; 0: it has all passes.
        generator: network of G: three linear layers (`linear`), or a linear layer and three 3 x 3
            convolutions with two up-samplings (`conv`), for inputs that are images.
        reach: greatest value of a made-up feature; the least is 0.
        tune_epochs: epochs of fine-tuning, and of the friend, on as many samples as the client has.

    Source: the Durham thesis, section 3.3.2, Equations 3.5 to 3.12;
    docs/reference/methods/ap_fl.md.
    Differs: distances are relative, so that L_div is in [-1, 0]; G has linear layers, or GroupNorm
    in place of BatchNorm. Equation 3.10 contradicts its text: with `beta_literal` and `all` classes
    theta_p is as the equation, and the printed scores, have it; defaults are as older runs have it.
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
    friend_classes: Literal["own", "all"] = field(default="own", metadata={LATER: True})
    tune_own: bool = field(default=False, metadata={LATER: True})
    patience: Annotated[int, Ge(0)] = field(default=0, metadata={LATER: True})
    generator: Literal["linear", "conv"] = field(default="linear", metadata={LATER: True})

    resident: ClassVar[bool] = False
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
    state_labels: ClassVar[Mapping[str, str]] = {
        "mine": "the person's own model",
        "friend": "a model made of what others said",
    }

    unfit_for_statistics: ClassVar[str] = (
        "its generator learns from classifiers in training, and every batch of made-up samples "
        "would count"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = {verb: type(self).exposure[verb] for verb in ("tell", "befriend")}
        # Hooks and guards look at a method's own tables, so those of the base are merged in.
        object.__setattr__(self, "exposure", {**self.base_method.exposure, **ends})
        own = dict(type(self).trees)
        if self.friend_classes == "all":
            title = f"{own['generator'].title}, and which classes somebody has"
            own["generator"] = replace(own["generator"], title=title)
        object.__setattr__(self, "trees", {**self.base_method.trees, **own})
        object.__setattr__(self, "setup_verbs", self.base_method.setup_verbs)
        object.__setattr__(self, "finish_verbs", (*self.base_method.finish_verbs, *ends))

    @property
    def base_method(self) -> Method[Any, Any]:
        """The base method, with this method's settings of local training.

        Raises:
            ConfigError: `base` is None.
        """
        if self.base is None:
            raise ConfigError(
                "ap_fl needs a base method to train by: give base, for example FedAvg()"
            )
        return replace(self.base, local=self.local)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Requests of the base method are answered by its own handlers.
        if name.startswith("on_"):
            return partial(self.base_turn, getattr(self.base_method, name))
        raise AttributeError(name)

    def check(self, task: Task) -> None:
        """Refuse a base method without one whole model, and a task without names of classes."""
        over = self.base_method
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
        """Return this method's records, and between them those of the base method."""
        return Memory, *self.base_method.state_records(task), Befriended

    def server(self, task: Task) -> Memory:
        """Return the first state: that of the base method, and an untrained generator."""
        meanings = self.meanings(task)
        fixed = {"meaning": meanings.vectors}
        if self.friend_classes == "all":
            fixed["classes"] = torch.zeros(len(meanings.vectors))
        start = Params.join(self.imagining(task).init(), Params.named(**fixed))
        template = Params.zeros(frozen_classifier(self.judge(task))[0])
        return Memory(self.base_method.server(task), start, template, meanings.fingerprint)

    def client(self, task: Task) -> Befriended:
        """Return the state of a new client: that of the base method."""
        return Befriended(self.base_method.client(task))

    def offer(self, s: Memory, client: ClientId) -> Mapping[str, Params]:
        """Return what the base method sends, and the generator once it is trained."""
        offered = self.base_method.offer(s.base, client)
        return {**offered, "generator": s.generator} if s.learned else offered

    def setup(self, s: Memory, clients: Sequence[ClientId]) -> Conversation[Memory]:
        """Run the setup of the base method."""
        return replace(s, base=(yield from self.base_method.setup(s.base, clients)))

    def round(self, s: Memory, cohort: Sequence[ClientId]) -> Conversation[Memory]:
        """Run a round of the base method."""
        return replace(s, base=(yield from self.base_method.round(s.base, cohort)))

    def base_turn(
        self, handler: Callable[..., Any], c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Befriended, Reply]]:
        """Run a handler of the base method, and store the result of its last training: theta_k."""
        mine = c.mine
        answer, talk = None, handler(c.base, msg, site)
        while isinstance(talk, Generator):
            try:
                answer = yield talk.send(answer)
            except StopIteration as end:
                talk = end.value
            else:
                mine = answer.params if isinstance(answer, FitResult) else mine
        base, base_reply = talk
        return replace(c, base=base, mine=mine), base_reply

    def finish(self, s: Memory, clients: Sequence[ClientId]) -> Conversation[Memory]:
        """Collect classifiers of clients that trained, train the generator, and send it to all."""
        classes = Params.named(counts=torch.zeros(len(s.generator["meaning"])))
        replies: dict[str, SealedReply] = yield from collect(
            "tell",
            {c: Message("tell") for c in clients},
            like={"classifier": s.template, "counts": classes},
        )
        # Only now: a base method that fine-tunes at its end trains absent clients too, whose models
        # would count as those of clients that took part.
        s = replace(s, base=(yield from self.base_method.finish(s.base, clients)))
        answers = [r.trees for _, r in sorted(replies.items()) if r.trees["classifier"].weight]
        if not answers:
            return s
        thetas = torch.stack([trees["classifier"].total.flat for trees in answers])
        counts = torch.stack([trees["counts"].total["counts"] for trees in answers])
        generator = yield from self.train_generator(s.generator, thetas, counts)
        s = replace(s, generator=generator, learned=True)
        sent = {c: {"model": self.base_method.offer(s.base, c)["model"]} for c in clients}
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
        """Send the classifier and the number of samples per class, with weight 0 if untrained."""
        kinds = yield from compute(Params.named(), site.train, "classes")
        names = site.task.class_names()
        counts = Params.named(counts=kinds.bincount(minlength=len(names)).float())
        # A reply has the same shape from every client: one without a model sends zeros' stand-in of
        # weight 0.
        mine = site.task.init() if c.mine is None else c.mine
        part = mine.only(frozen_classifier(self.judge(site.task))[0].names)
        return c, reply(classifier=part, counts=counts, weight=float(c.mine is not None))

    def train_generator(
        self, generator: Params, thetas: Tensor, counts: Tensor
    ) -> Conversation[Params]:
        """Train the generator by classifiers `[clients, n]`, on classes that any client has."""
        net, meaning = layers_and_meaning(generator)
        there = counts.sum(0) > 0
        kinds = there.nonzero().squeeze(1).repeat_interleave(EACH)
        fixed = {
            KIND: kinds,
            MEANING: meaning[kinds],
            CLASSIFIERS: thetas,
            ALPHA: shares(counts, self.alpha),
        }
        rng, state = RandomStream("ap_fl", "noise").torch(), FRESH
        best, worse = math.inf, 0
        for _ in range(self.passes):
            losses = []
            # Rounded up: a pass has at least `samples` samples of each class.
            for _ in range(-(-self.samples // EACH)):
                batch = {**fixed, NOISE: torch.randn(len(kinds), self.noise, generator=rng)}
                done = yield from step(net, state, batch, RATE, on=self.imagining)
                net, state = done.params, done.optimiser
                # The server trains on nobody's samples, so no protection takes the loss away.
                assert done.loss is not None
                losses.append(done.loss)
            mean = sum(losses) / len(losses)
            worse = 0 if mean < best * (1 - math.copysign(STEADY, best)) else worse + 1
            best = min(best, mean)
            if worse == self.patience > 0:
                break
        if "classes" in generator:
            net = Params.join(net, Params.named(classes=there.float()))
        return generator.put(net)

    def on_befriend(
        self, c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Befriended, Reply]]:
        """Train and store the client's friend; nothing goes back."""
        return (yield from self.train_personal(c, msg, site)), reply()

    def train_personal(
        self, c: Befriended, msg: Message, site: ClientContext
    ) -> Conversation[Befriended]:
        """Train a friend from theta, and theta_k unless the client's last training gave it."""
        local = replace(self.local, epochs=self.tune_epochs, steps=None, schedule="constant")
        theta, mine = msg["model"], c.mine
        if mine is None or self.tune_own:
            mine = (yield from fit(theta, site.train, local)).params
        friend = yield from self.train_friend(theta, msg["generator"], site, local)
        return replace(c, mine=mine, friend=friend)

    def train_friend(
        self, theta: Params, generator: Params, site: ClientContext, local: LocalTraining
    ) -> Conversation[Params]:
        """Train theta on made-up samples, as many as the client has, of `friend_classes`."""
        net, meaning = layers_and_meaning(generator)
        # With vectors of another text model the generator would make samples of no class.
        self.check_meanings(meaning, site.task)
        mine = yield from compute(Params.named(), site.train, "classes")
        rng, n, likely = site.rng.child("friend").torch(), len(mine), mine
        if self.friend_classes == "all":
            likely = torch.cat([generator["classes"].nonzero().squeeze(1), mine]).unique()
        kinds = likely[torch.randint(len(likely), (n,), generator=rng)]
        noise = torch.randn(n, self.noise, generator=rng)
        made = {KIND: kinds, MEANING: meaning[kinds], NOISE: noise}
        samples = yield from forward(net, made, on=self.imagining)
        judge, state = self.judge(site.task), FRESH
        part = theta.only(frozen_classifier(judge)[0].names).copy()
        for _ in range(local.epochs):
            for rows in torch.randperm(n, generator=rng).split(local.batch):
                batch = labelled_batch(judge, samples[rows], kinds[rows])
                done = yield from step(part, state, batch, local, on=self.judge)
                part, state = done.params, done.optimiser
        return theta.put(part)

    def model_on(self, c: Befriended, msg: Message, site: ClientContext) -> Conversation[Params]:
        """Return theta_p; before the end of the run, the base method's model.

        A client that has no friend yet first trains one.
        """
        if "generator" not in msg.trees:
            model = self.base_method.model_on(c.base, msg, site)
            return (yield from model) if isinstance(model, Generator) else model
        if c.friend is None:
            c = yield from self.train_personal(c, msg, site)
        assert c.mine is not None
        assert c.friend is not None
        return mix_models(c.mine, c.friend, 1 - self.beta if self.beta_literal else self.beta)

    def judge(self, task: Task) -> Piece:
        """Return the piece of the network that made-up samples enter."""
        return classifier(task, self.space == "features")

    def imagining(self, task: Task) -> Imagining:
        """Return the training objective of the generator."""
        judge, width = self.judge(task), self.meanings(task).vectors.shape[1]
        reach = self.reach if self.space == "features" else None
        made = generator_for(judge, self.noise, width, reach, self.generator == "conv")
        return Imagining(made, task.seed, self.lamda, self.distances == "relative", judge=judge)

    def meanings(self, task: Task) -> Meanings:
        """Return the semantic vectors of the names of the task's classes."""
        return of_task(task, self.semantics, self.prompt)

    def check_meanings(self, meaning: Tensor, task: Task) -> None:
        """Refuse a generator that was trained with other vectors `[classes, d]`.

        Raises:
            ConfigError: the vectors differ; the message names those on this machine.
        """
        here = self.meanings(task)
        if here.vectors.shape != meaning.shape or not torch.allclose(
            here.vectors, meaning, atol=NEAR
        ):
            raise ConfigError(
                f"ap_fl: this generator was trained with other vectors of class names, "
                f"{list(meaning.shape)}, than there are here, {list(here.vectors.shape)} from "
                f"{here.fingerprint}; set semantics, prompt and the names of classes as they were"
            )


def layers_and_meaning(generator: Params) -> tuple[Params, Tensor]:
    """Return the generator's layers, copied, and the vectors `[classes, d]` it was trained with."""
    layers = [name for name in generator if name not in ("meaning", "classes")]
    return generator.only(layers).copy(), generator["meaning"]


def shares(counts: Tensor, over: Literal["class", "global"]) -> Tensor:
    """Return alpha `[clients, classes]` of counts, with sum 1 for each class, or over all."""
    total = counts.sum(0, keepdim=True) if over == "class" else counts.sum()
    return counts / total.clamp(min=1)


def mix_models(mine: Params, friend: Params, share: float) -> Params:
    """Return (1 - share) * mine + share * friend; with share 0 `mine` itself.

    Examples:
        >>> from vergence.core.params import Layout, Params
        >>> one, two = (Params.named(a=torch.tensor(x)) for x in ([1.0, 2.0], [3.0, 6.0]))
        >>> mix_models(one, two, 0.5)["a"].tolist()
        [2.0, 4.0]
    """
    return mine * (1 - share) + friend * share if share else mine
