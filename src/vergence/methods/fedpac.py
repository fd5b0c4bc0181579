"""FedPAC: features are aligned with common class means, and heads of similar clients combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, aggregate, collect, compute, fit
from vergence.core.identifiers import ClientId
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import Exposure, Layers, Method, Tree
from vergence.core.naming import registry_name
from vergence.core.objectives import FeatureAlignment
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.errors import ConfigError

SMALLEST = 1e-3
"""Weights of heads below this are dropped, as in the authors' code."""


@tagged("Collaboration")
@dataclass(frozen=True)
class Collaboration:
    """The common body, every client's combined head, and the common class means.

    `head` is the mean of all heads, for clients without one; `centres` holds `means` `[K, d]` and
    `counts` `[K]`, and is None before the first round.
    """

    body: Params
    head: Params
    heads: Mapping[str, Params] = field(default_factory=dict)
    centres: Params | None = None


@tagged("Collaborator")
@dataclass(frozen=True)
class Collaborator(Layers):
    """Client state: `Layers`, and H (`h` `[K, d]`) and V (`v` `[1]`) of its last training."""

    sketch: Params | None = None


@dataclass(frozen=True)
class FedPAC(Method[Collaboration, Collaborator]):
    """Train the head, then the body with features pulled to common class means; combine heads.

    Before training a client sends H_k = p_k m_k and V = (1/n)(sum_k p_k s_k - sum_k p_k^2 |m_k|^2)
    of its features (p_k share, m_k mean, s_k mean square of class k). Its next head is
    sum_j alpha_j head_j with alpha = argmin a^T P a over the simplex,
    P = diag(V) + [<H_i - H_j, H_i - H_l>]_jl.

    Args:
        head_rate: learning rate of the head, times that of `local`.
        head_epochs: passes over the data for the head.
        lamda: strength of the pull towards class means, from the second round on.

    Source: Xu, Tong, Huang, "Personalized federated learning with feature alignment and classifier
    collaboration", ICLR 2023, Algorithm 1, Equations 4-12.
    Differs: classes of gaze are the cells of a 4 x 4 grid, used for class means and H only; what
    maps features to gaze is the classifier. People without a head get the mean of all heads.
    """

    head_rate: Annotated[float, Gt(0)] = 10.0
    head_epochs: Annotated[int, Ge(1)] = 1
    lamda: Annotated[float, Ge(0)] = 1.0

    resident: ClassVar[bool] = False
    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(trees=("body",), down=("body", "head", "centres")),
        "share": Exposure("each", trees=("head", "statistics"), metrics=(), down=()),
    }
    trees: ClassVar[Mapping[str, Tree]] = {
        "body": Tree("shared layers (body)"),
        "head": Tree("last layers (head)", "values"),
        "centres": Tree("mean features of every class (centres)", "values"),
        "statistics": Tree("mean features of every class (statistics)", "values"),
    }
    state_labels: ClassVar[Mapping[str, str]] = {
        "params": "the person's own model",
        "sketch": "mean features",
    }

    def check(self, task: Task) -> None:
        """Refuse a task without classes, and a network that cannot be split into body and head."""
        super().check(task)
        if not task.classes:
            raise ConfigError(
                f"task '{registry_name(task)}' tells no classes apart, which fedpac needs"
            )

    def server(self, task: Task) -> Collaboration:
        """Return the first server state: body and head of the task's initial model."""
        start, (body, head) = task.init(), task.parts()
        return Collaboration(start.only(body), start.only(head))

    def client(self, task: Task) -> Collaborator:
        """Return the state of a new client: the task's initial model."""
        return Collaborator(task.init(), task.parts()[1])

    def offer(self, s: Collaboration, client: ClientId) -> Mapping[str, Params]:
        """Return the body, this client's head, and the class means if they are known."""
        sent = {"body": s.body, "head": s.heads.get(client, s.head)}
        return sent if s.centres is None else {**sent, "centres": s.centres}

    def round(self, s: Collaboration, cohort: Sequence[ClientId]) -> Conversation[Collaboration]:
        """Average bodies, then ask for heads and statistics, and combine them."""
        got = yield from aggregate("train", to=cohort)
        replies = yield from collect("share", to={c: Message("share") for c in cohort})
        answers = {c: replies[c] for c in cohort if c in replies}
        body = s.body + got.mean("body")
        if not answers:
            return replace(s, body=body)
        heads = {c: r.trees["head"].total for c, r in answers.items()}
        statistics = [r.trees["statistics"].total for r in answers.values()]
        mixed = combine_heads(heads, statistics)
        mean = sum(heads.values(), s.head * 0.0) / float(len(heads))
        return Collaboration(
            body, mean, {**s.heads, **mixed}, pool_class_means(statistics, s.centres)
        )

    def on_train(
        self, c: Collaborator, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Collaborator, Reply]]:
        """Compute statistics, train the head, then the body; send the body."""
        start = c.params.put(msg["body"]).put(msg["head"])
        means, _, sketch = yield from self.statistics(start, site)
        rate = replace(self.local, lr=self.local.lr * self.head_rate)
        steps = None if rate.steps is None else self.head_epochs * rate.steps
        passes = replace(rate, epochs=self.head_epochs, steps=steps)
        with_head = yield from fit(start, site.train, passes, trainable=c.mask)
        pull = None
        if "centres" in msg.trees:
            common = msg["centres"]
            known = (common["counts"] > 0).unsqueeze(1)
            # A class that nobody has yet pulls to the client's own mean, which is no pull to
            # others.
            pull = FeatureAlignment(torch.where(known, common["means"], means), self.lamda)
        fitted = yield from fit(
            with_head.params, site.train, self.local, trainable=~c.mask, objective=pull
        )
        update = fitted.params.only(msg["body"]) - msg["body"]
        state = Collaborator(fitted.params, c.personal, sketch)
        return state, reply(body=update, weight=fitted.examples, metrics=fitted.metrics)

    def on_share(
        self, c: Collaborator, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Collaborator, Reply]]:
        """Send the head, the class means of the trained network, and H and V."""
        means, counts, before = yield from self.statistics(c.params, site)
        # A client that is asked before its first turn has no H and V from before training.
        sketch = before if c.sketch is None else c.sketch
        statistics = Params.named(h=sketch["h"], v=sketch["v"], means=means, counts=counts)
        return c, reply(head=c.params.only(c.personal), statistics=statistics)

    def statistics(
        self, params: Params, site: ClientContext
    ) -> Conversation[tuple[Tensor, Tensor, Params]]:
        """Return class means `[K, d]`, class counts `[K]`, and H and V of the client's features."""
        features = yield from compute(params, site.train, "features")
        classes = site.task.class_of(dict(site.train.columns))
        member = one_hot(classes, site.task.classes).to(features.dtype)
        return sketched(features, member)

    def model_on(self, c: Collaborator, msg: Message, site: ClientContext) -> Params:
        """Return the received body with the received, combined head."""
        return c.params.put(msg["body"]).put(msg["head"])


def sketched(features: Tensor, member: Tensor) -> tuple[Tensor, Tensor, Params]:
    """Return means, counts, and H and V of features `[n, d]` of classes `[n, K]` (one-hot)."""
    counts, n = member.sum(0), len(features)
    means = member.T @ features / counts.clamp(min=1).unsqueeze(1)
    squares = member.T @ features.square().sum(1) / counts.clamp(min=1)
    p = counts / n
    h = p.unsqueeze(1) * means
    v = ((p * squares).sum() - h.square().sum()) / n
    return means, counts, Params.named(h=h, v=v.reshape(1))


def pool_class_means(statistics: Sequence[Params], before: Params | None) -> Params:
    """Return class means over clients, weighted by counts; absent classes keep former means."""
    counts = torch.stack([s["counts"] for s in statistics])
    means = torch.stack([s["means"] for s in statistics])
    total = counts.sum(0)
    mean = (counts.unsqueeze(2) * means).sum(0) / total.clamp(min=1).unsqueeze(1)
    if before is not None:
        mean = torch.where((total > 0).unsqueeze(1), mean, before["means"])
        total = torch.where(total > 0, total, before["counts"])
    return Params.named(means=mean, counts=total)


def combine_heads(heads: Mapping[str, Params], statistics: Sequence[Params]) -> dict[str, Params]:
    """Return every client's combined head; its own head if the solver finds no weights."""
    h = np.stack([s["h"].double().numpy().ravel() for s in statistics])
    v = np.array([float(s["v"]) for s in statistics])
    stacked = torch.stack([head.flat for head in heads.values()])
    heads_of = {}
    for i, (client, head) in enumerate(heads.items()):
        alpha = head_weights(h, v, i)
        if alpha is None:
            heads_of[client] = head
        else:
            # Weights are solved for in double precision; heads are mixed in their own.
            mix = torch.from_numpy(alpha).to(stacked.dtype)
            heads_of[client] = head.like(mix @ stacked)
    return heads_of


def head_weights(h: np.ndarray, v: np.ndarray, i: int) -> np.ndarray | None:
    """Return alpha of client i `[clients]`, None where the solver fails.

    `h` is every client's H, flat, `[clients, K d]`; `v` is every client's V.
    """
    differences = h[i] - h
    p = np.diag(v) + differences @ differences.T
    # The solver's tolerance is absolute: the largest entry of P is scaled to 1.
    p = p / max(np.abs(p).max(), 1e-30)
    start = np.full(len(v), 1 / len(v))
    solution = minimize(
        lambda a: a @ p @ a,
        start,
        jac=lambda a: 2 * p @ a,
        bounds=[(0, 1)] * len(v),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    if not solution.success or not np.isfinite(solution.x).all():
        return None
    # Of a thousand equal weights none would remain: the largest always does.
    smallest = min(SMALLEST, solution.x.max())
    alpha = np.where(solution.x < smallest, 0.0, solution.x)
    return alpha / alpha.sum()
