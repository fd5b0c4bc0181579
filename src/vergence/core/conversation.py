"""The four words methods are written in; each is one `yield` with a precise return type.

`aggregate` and `collect` ask clients, `fit` and `compute` ask for work on parameters and data.
Whoever drives the generator answers: the simulator, a network, a test.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from vergence.core.fitting import Align, Compute, Fit, Fitted, Local, OptimiserState
from vergence.core.mask import Mask
from vergence.core.params import Params
from vergence.core.site import Samples
from vergence.core.wire import Aggregate, Fact, Message, Sealed

T = TypeVar("T")
Conversation = Generator[Any, Any, T]
ClientId = str


@dataclass(frozen=True)
class Request:
    """Ask clients for a turn. `to` maps each to its message, or to None: what `offer` gives."""

    verb: str
    to: Mapping[ClientId, Message | None]
    reveal: Literal["aggregate", "each"]


def _request(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    reveal: Literal["aggregate", "each"],
    facts: Mapping[str, Fact] | None,
    trees: Mapping[str, Params],
) -> Request:
    if isinstance(to, Mapping):
        return Request(verb, to, reveal)
    message = Message(verb, trees, facts or {}) if trees or facts else None
    return Request(verb, dict.fromkeys(to, message), reveal)


def aggregate(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    **trees: Params,
) -> Conversation[Aggregate]:
    """Ask a cohort for a turn and learn only the weighted sum of what it replies.

    A cohort is sent what the method's `offer` gives, or the trees and facts named here.
    """
    return (yield _request(verb, to, "aggregate", facts, trees))


def collect(
    verb: str,
    to: Sequence[ClientId] | Mapping[ClientId, Message],
    facts: Mapping[str, Fact] | None = None,
    **trees: Params,
) -> Conversation[dict[ClientId, Sealed]]:
    """Ask a cohort for a turn and learn every single reply."""
    return (yield _request(verb, to, "each", facts, trees))


def fit(
    params: Params,
    data: Samples,
    local: Local,
    *,
    trainable: Mask | None = None,
    anchor: tuple[Params, float] | None = None,
    optimiser: OptimiserState | None = None,
    score_on: Samples | None = None,
    correction: Params | None = None,
    align: Align | None = None,
) -> Conversation[Fitted]:
    """Train parameters on data, as `local` says.

    Args:
        params: where training starts.
        data: the samples to train on.
        local: epochs or steps, batch size, optimiser.
        trainable: only these entries may change.
        anchor: `(centre, mu)` adds `mu / 2 * ||params - centre||^2` to the loss.
        optimiser: state to go on from, where a method's optimiser persists.
        score_on: also report the task's score on these samples as `metrics["score"]`.
        correction: added to every gradient.
        align: pull features towards class centres.
    """
    return (
        yield Fit(params, data, local, trainable, anchor, optimiser, score_on, correction, align)
    )


def compute(
    params: Params,
    data: Samples,
    want: Literal["loss", "outputs", "score", "features", "gradient"],
) -> Conversation[Any]:
    """Return something of parameters on data, in evaluation mode.

    The mean loss or the score (a float), the outputs or what enters the head (`[samples, ...]`), or
    the gradient of the mean loss (`Params`).
    """
    return (yield Compute(params, data, want))
