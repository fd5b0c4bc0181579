"""FedGen: the server learns a generator of features, on which clients then train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Generator, Tensor, nn
from torch.func import vmap
from torch.nn.functional import linear

from vergence.core.aggregation import add_up
from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, collect, compute, fit, step
from vergence.core.data import Batch, Samples
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.messages import Message, Reply, SealedReply, reply
from vergence.core.method import Exposure, Method, NoState, Tree
from vergence.core.naming import registry_name
from vergence.core.objectives import Objective, loss_per_sample
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.stages import WrappedTask
from vergence.core.tags import tagged
from vergence.core.task import Model, Task
from vergence.errors import ConfigError
from vergence.models.generator import ConditionalNet, conditional

# The authors' programme decays its rates and weights by 0.98 a round.
DECAY, LEAST = 0.98, 1e-4
"""Factor of rates and weights from round to round, and the least weight of a client's terms."""
# The weight decay of the generator's Adam in the authors' programme.
WEIGHT_DECAY = 1e-2


@tagged("Teachers")
@dataclass(frozen=True)
class Teachers:
    """The model, the generator with Adam's moments, and the classes that the generator learned.

    `known` holds `classes` `[K]`, 1 where somebody had samples; `head` names the head's tensors.
    """

    model: Params
    generator: Params
    first: Params
    second: Params
    known: Params
    head: tuple[str, ...]
    seed: int
    round: int = 0


@dataclass(frozen=True)
class FedGen(Method[Teachers, NoState]):
    """Average as FedAvg; teach a generator of features by clients' heads; train on its features.

    Server, `steps` times a round, with y drawn evenly from the classes that the cohort has, eps
    uniform in [0, 1), z = G(y, eps) and head h_k of client k:
    sum_k mean(a_k^y F(h_k(z), y)) + eta exp(-mean_jl(MSE(eps_j, eps_l) MAE(z_j, z_l)))
    - adversarial KL(sum_k a_k^y h_k(z) || h(z)), a_k^y = n_k^y / sum_j n_j^y, h last round's head.
    Client, from the second round on: F(x, y) + alpha_r F(h(G(y')), y') + beta_r KL(h(G(y)) || x's
    output), y' drawn evenly from all known classes, alpha_r = max(1e-4, alpha 0.98^r), beta_r too.

    Args:
        alpha: weight of the loss on made-up features in local training, in round 0.
        beta: weight of the pull of outputs to those of made-up features of their class, in round 0.
        eta: weight of the generator's diversity term.
        adversarial: weight of the generator's search for features on which the average model errs.
        steps: Adam's steps of the generator per round; 0 is FedAvg.
        rate: learning rate of these steps, times 0.98 per round.
        batch: made-up features in each step.
        hidden: width of the generator.
        noise: number of random entries from which a feature is made.
        weights: clients count in the average by their samples, or equally.

    Source: Zhu, Hong, Zhou, "Data-free knowledge distillation for heterogeneous federated
    learning", ICML 2021, Algorithm 1, Equations 4 and 5, and the authors' programme.
    Differs: see docs/reference/methods/fedgen.md. Gaze: classes are the cells of a grid, F is the
    task's loss, the mean squared difference takes the place of KL.
    """

    alpha: Annotated[float, Ge(0)] = 10.0
    beta: Annotated[float, Ge(0)] = 10.0
    eta: Annotated[float, Ge(0)] = 1.0
    adversarial: Annotated[float, Ge(0)] = 0.0
    steps: Annotated[int, Ge(0)] = 50
    rate: Annotated[float, Gt(0)] = 3e-4
    batch: Annotated[int, Ge(1)] = 32
    hidden: Annotated[int, Ge(1)] = 256
    noise: Annotated[int, Ge(2)] = 32
    weights: Literal["samples", "equal"] = "samples"

    resident: ClassVar[bool] = False
    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure("each", trees=("model", "counts"))
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "generator": Tree("generator of features", "values"),
        "known": Tree("which classes it knows", "values"),
        "counts": Tree(
            "how many samples of each class the person has",
            "numbers",
            "how many recordings of each class each person has",
        ),
    }

    def check(self, task: Task) -> None:
        """Refuse a task without classes, or with personal priors, and a head of several layers."""
        super().check(task)
        if task.own_prior:
            raise ConfigError(
                "fedgen trains on made-up features, which have no personal prior; leave out "
                "task.personal_prior (0), or use another method"
            )
        task.labelled(torch.zeros(1, dtype=torch.int64), torch.zeros(1, self.noise))

    def server(self, task: Task) -> Teachers:
        """Return the first server state: the task's initial model, and a new generator.

        Raises:
            ConfigError: the task tells no classes apart, or its head is not one linear layer.
        """
        if not task.classes:
            raise ConfigError(
                f"task '{registry_name(task)}' tells no classes apart, which fedgen needs"
            )
        model, layer = task.init(), task.linear_head()
        head = tuple(n for n in model.layout.names if n.rpartition(".")[0] == layer)
        generator = self.generator_objective(task).init()
        known = Params.named(classes=torch.zeros(task.classes))
        zero = generator * 0.0
        return Teachers(model, generator, zero, zero, known, head, task.seed)

    def generator_objective(self, task: Task) -> Consensus:
        """Return the training objective of the generator."""
        network = latents(task, self.noise, self.hidden)
        return Consensus(network, task.seed, task, self.eta, self.adversarial)

    def offer(self, s: Teachers, client: ClientId) -> Mapping[str, Params]:
        """Return the model, the generator, and the classes that it has learned (none at first)."""
        return {"model": s.model, "generator": s.generator, "known": s.known}

    def round(self, s: Teachers, cohort: Sequence[ClientId]) -> Conversation[Teachers]:
        """Let the cohort train, train the generator by their heads, and average."""
        counts = Params.named(counts=s.known["classes"])
        replies = yield from collect("train", to=cohort, like={"counts": counts})
        came = [replies[c] for c in cohort if c in replies]
        if not came:
            return s
        s = yield from self.train_generator(s, came)
        model = s.model + add_up(came, {"model": s.model}).mean("model")
        return replace(s, model=model, round=s.round + 1)

    def train_generator(self, s: Teachers, came: Sequence[SealedReply]) -> Conversation[Teachers]:
        """Train the generator by the heads of the clients that replied."""
        # A client may send negative counts, and the server must not weigh by them.
        counts = torch.stack([r.trees["counts"].total["counts"] for r in came]).clamp(min=0)
        totals = counts.sum(0)
        classes = totals.nonzero()[:, 0]
        if not len(classes) or not self.steps:
            return s
        # The loss weighs the clients' heads one by one, so each reply is added up alone.
        one = {"model": s.model}
        models = [*(s.model + add_up([r], one).mean("model") for r in came), s.model]
        heads = stack_heads([model.only(s.head) for model in models])
        adam = OptimizerState(
            {"exp_avg": s.first.copy(), "exp_avg_sq": s.second.copy()}, s.round * self.steps
        )
        local = LocalTraining(
            optimizer="adam", lr=self.rate * DECAY**s.round, weight_decay=WEIGHT_DECAY, clip=0.0
        )
        # Steps change parameters in place, and the state may be the checkpoint's.
        generator = s.generator.copy()
        for at in range(self.steps):
            draw = RandomStream("fedgen", s.seed, s.round, at).torch()
            y = classes[torch.randint(len(classes), (self.batch,), generator=draw)]
            noise = torch.rand(self.batch, self.noise, generator=draw)
            shares = (counts / totals.clamp(min=1))[:, y]
            batch = {"class": y, "noise": noise, "shares": shares, **heads}
            done = yield from step(generator, adam, batch, local, self.generator_objective)
            generator, adam = done.params, done.optimiser
        slots, known = adam.slots, torch.maximum(s.known["classes"], (totals > 0).float())
        return replace(
            s,
            generator=generator,
            first=slots["exp_avg"],
            second=slots["exp_avg_sq"],
            known=Params.named(classes=known),
        )

    def on_train(
        self, c: NoState, msg: Message, site: ClientContext
    ) -> Conversation[tuple[NoState, Reply]]:
        """Train on own samples and made-up features; also send the number of samples per class."""
        classes = yield from compute(msg["model"], site.train, "classes")
        # A generator that has learned no class yet, as in round 0, has no features to train on.
        objective = self.client_objective(msg, site) if msg["known"].flat.any() else None
        fitted = yield from fit(msg["model"], site.train, self.local, objective=objective)
        update = fitted.params - msg["model"]
        counts = classes.bincount(minlength=site.task.classes).float()
        return c, reply(
            model=update,
            counts=Params.named(counts=counts),
            weight={"model": fitted.weight(self.weights), "counts": 1.0},
            metrics=fitted.metrics,
        )

    def client_objective(self, msg: Message, site: ClientContext) -> Regularised:
        """Return the training objective of a client in this round."""
        alpha, beta = (
            max(LEAST, w * DECAY**site.round) if w else 0.0 for w in (self.alpha, self.beta)
        )
        classes = msg["known"]["classes"].nonzero()[:, 0]
        return Regularised(msg["generator"], self.noise, classes, alpha, beta)


@dataclass(frozen=True)
class Latents(Model):
    """The generator's network, from classes and noise to the features that enter the head."""

    classes: int = 1
    noise: int = 32
    hidden: int = 256
    features: int = 1

    def build(self) -> ConditionalNet:
        """Return the network, initialised from torch's global generator."""
        return ConditionalNet(self.classes, self.noise, self.hidden, self.features)


@lru_cache(maxsize=16)
def latents(task: Task, noise: int, hidden: int) -> Latents:
    """Return the network that makes features for a task's head."""
    weight = task.init()[f"{task.linear_head()}.weight".lstrip(".")]
    return Latents(task.classes, noise, hidden, weight.shape[1])


@dataclass(frozen=True)
class Regularised(Objective):
    """The loss on own samples, the loss on made-up features, and the pull to their outputs."""

    generator: Params
    noise: int
    classes: Tensor
    alpha: float
    beta: float

    def loss(self, task: Task, module: nn.Module, batch: Batch, draw: Generator) -> Tensor:
        """Return the sum of the three terms."""
        head = module.get_submodule(task.linear_head())
        output = task.forward(module, batch)
        loss, n = task.loss(output, batch), len(output)
        if self.beta:
            alike, _ = self.outputs_on_made_up(task.class_of(batch), head, draw)
            # The targets are fixed, as in the authors' programme: the pull trains the output on
            # real samples only.
            loss = loss + self.beta * task.imitation(output, alike.detach())
        if self.alpha:
            places = torch.randint(len(self.classes), (n,), generator=draw)
            classes = self.classes[places.to(self.classes.device)]
            outputs, noise = self.outputs_on_made_up(classes, head, draw)
            loss = loss + self.alpha * task.loss(outputs, task.labelled(classes, noise))
        return loss

    def outputs_on_made_up(
        self, classes: Tensor, head: nn.Module, draw: Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the head's outputs on made-up features of these classes, and their noise."""
        noise = torch.rand(len(classes), self.noise, generator=draw).to(classes.device)
        made = conditional(self.generator, classes, noise)
        return head(made.to(next(head.parameters()).dtype)), noise


@dataclass(frozen=True)
class Consensus(WrappedTask):
    """Objective of the generator: features that heads, weighted by class, assign to their class.

    A batch holds `class` `[batch]`, `noise` `[batch, noise]`, `shares` a_k^y `[clients, batch]` and
    the heads of clients and, last, of the average model: `weight` `[clients + 1, out, features]`
    and `bias` `[clients + 1, out]`.
    """

    eta: float = 1.0
    adversarial: float = 0.0

    headline: ClassVar[str] = "loss"

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return made-up features `[batch, features]`."""
        return module(batch["class"], batch["noise"])

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of the heads, plus the terms of diversity and of the average model."""
        task, shares = self.task, batch["shares"]
        labels = task.labelled(batch["class"], batch["noise"])
        outputs = vmap(linear, (None, 0, 0))(output, batch["weight"], batch["bias"])
        losses = vmap(lambda of_head: loss_per_sample(task, of_head, labels))(outputs[:-1])
        loss = (shares * losses).mean(1).sum() + self.eta * diversity(batch["noise"], output)
        if self.adversarial:
            ensemble = (shares[..., None] * outputs[:-1]).sum(0)
            loss = loss - self.adversarial * task.imitation(outputs[-1], ensemble)
        return loss

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return zeros: there is nothing to measure on made-up features."""
        return {"loss": 0.0, "score": 0.0}


def stack_heads(heads: Sequence[Params]) -> Batch:
    """Return linear layers as `weight` `[layers, out, in]` and `bias` `[layers, out]`."""
    named = [{n.rpartition(".")[2]: t.float() for n, t in head.items()} for head in heads]
    weight = torch.stack([n["weight"] for n in named])
    bias = torch.stack([n.get("bias", n["weight"].new_zeros(weight.shape[1])) for n in named])
    return {"weight": weight, "bias": bias}


def diversity(noise: Tensor, made: Tensor) -> Tensor:
    """Return exp(-mean_jl(MSE(noise_j, noise_l) MAE(made_j, made_l))), in (0, 1]; j = l counts."""
    far = (noise[:, None] - noise).square().mean(2)
    return (-(far * (made[:, None] - made).abs().mean(2)).mean()).exp()
