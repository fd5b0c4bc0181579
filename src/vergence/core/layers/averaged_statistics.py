"""BatchNorm's running statistics beside a method that adds, scales and masks parameters.

A variance may be averaged, but not extrapolated: it could become negative. So statistics are the
plain weighted mean of what clients counted, whatever a method does with all other entries.
Functions here return their input if a network has no such statistics.

Used in `engine` and `methods`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from vergence.core.aggregation import Aggregate
from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation
from vergence.core.masks import Mask
from vergence.core.options import T
from vergence.core.params import Params
from vergence.core.task import Task


def with_statistics_of(task: Task, params: Params, other: Params) -> Params:
    """Return parameters whose averaged running statistics are those of `other`."""
    names = task.averaged_statistics()
    return params.put(other.only(names)) if names else params


def maskable(task: Task, among: Mask) -> Mask:
    """Return a mask without averaged running statistics, which are always shared."""
    names = task.averaged_statistics()
    return among & ~Mask.layers(among.layout, *names) if names else among


def never_masking(site: ClientContext) -> ClientContext:
    """Return a client's context whose `choose` never makes averaged running statistics personal."""
    if not site.task.averaged_statistics():
        return site

    def choose(score: Params, k: int | Mapping[str, int], among: Mask) -> Mask:
        return site.choose(score, k, maskable(site.task, among))

    return replace(site, choose=choose)


def averaging_statistics(
    conversation: Conversation[T] | T, before: T, names: Sequence[str]
) -> Conversation[T]:
    """Hold a round, then set the running statistics of its model to the clients' weighted mean.

    The model is the attribute `model` of the server's state, of which clients send updates in the
    tree (named set of parameters) `model`. Methods whose servers have other models only average
    them. A round without replies changes nothing.

    Args:
        conversation: the method's round.
        before: the server's state before the round.
        names: names of the running statistics.
    """
    # A method that has nothing to ask may return its result instead of a generator.
    if not isinstance(conversation, Generator):
        return conversation
    mean: Params | None = None
    try:
        ask = next(conversation)
        while True:
            answer = yield ask
            if isinstance(answer, Aggregate) and answer.count and "model" in answer.totals:
                mean = answer.mean("model")
            ask = conversation.send(answer)
    except StopIteration as end:
        after = end.value
    old, new = getattr(before, "model", None), getattr(after, "model", None)
    if mean is None or not (isinstance(old, Params) and isinstance(new, Params)):
        return after
    counted = old.only(names) + mean.only(names)
    return replace(after, model=new.put(counted))  # type: ignore[type-var]
