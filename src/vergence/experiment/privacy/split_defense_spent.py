"""Privacy budget of a defence at the cut, as promised before a run and as spent after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.requests import Forward
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.engine.protections.split_defense import outlook
from vergence.methods.split.base import Cutting
from vergence.privacy.release_log import FOLDER
from vergence.privacy.split.defense import IMAGE, BottleneckCut, NoPeekCut, PixelCut
from vergence.privacy.split.pixel_dp import promise
from vergence.privacy.split.sent_images import books
from vergence.training.steps import Trainer

PICTURE = "the same pictures of a client, one replaced by any other"
PIXEL = "the same pictures of a client, one changed by 1 in L1: a pixel from black to white"
AGAINST = "whoever sees smashed data, the server too"
LEARNT = "updates of the clients' layers, "
SENT = "labels and whatever else is sent beside smashed data"


def foretold(plan: Plan, method: Method, task: Task, federation: Federation) -> list[str]:
    """Say in words what the defence at the cut of a run does; see `explain`.

    Raises:
        ConfigError: it cannot stand at this method's cut.
    """
    defence = plan.privacy.cut
    if defence is None:
        return []
    seen = outlook(plan, method, task, federation)
    samples = federation.people[federation.clients[0]].train
    if isinstance(defence, NoPeekCut):
        return [
            f"pictures: {defence.weight:g} times the distance correlation of pictures and smashed "
            "data is part of the clients' loss; this promises nothing: see `vergence privacy audit`"
        ]
    often = f"a picture is sent {seen.releases} times, through other layers each time"
    if seen.still:
        often = "clients do not train their layers, so that a picture is released once"
    if isinstance(defence, PixelCut):
        height, width = samples.columns[IMAGE].shape[-2:]
        return [f"pixels: {promise(defence.level, height, width, seen.releases)}; {often}"]
    assert isinstance(defence, BottleneckCut)
    assert isinstance(method, Cutting)
    assert seen.noise_spec is not None
    front = method.front(task)
    ask = Forward(front.init(), samples.take(slice(0, 1)), method.front)
    features = Trainer(front).forward(ask).numel()
    spent = defence.amounts(seen.releases * defence.cost(seen.noise_spec.multiple))
    noise = seen.noise_spec.scale
    return [
        f"pictures: smashed vectors ({features} features) are cut to {defence.clip:g} and get "
        f"noise of {noise:.4g} on every feature, drawn once per picture and state of "
        f"the layers; {often}: epsilon {spent:.3g} at delta {defence.delta:g} per picture, seed "
        f"and method, against any other in its place, in smashed data alone, not in "
        f"{SENT if seen.still else LEARNT + SENT}"
    ]


def spent(plan: Plan, state: Path) -> Mapping[str, Any]:
    """Budget that a run spent on its pictures, by its release logs, for the block `privacy`."""
    defence = plan.privacy.cut
    if not isinstance(defence, BottleneckCut | PixelCut):
        return {}
    kept = list(books(state / FOLDER, defence.cost))
    if not kept:  # they lie with the clients of a deployment
        return {}
    found = defence.amounts(max(book.most for book in kept))
    if isinstance(defence, PixelCut):
        told = {"neighbours": PIXEL, "level": defence.level, "delta": 0.0, "allowed": None}
        told["only"] = ", an obfuscation that promises nothing for a picture"
        return {"pixel": {**told, "against": AGAINST, "epsilon": found, "check": None}}
    told = {"neighbours": PICTURE, "clip": defence.clip, "delta": defence.delta}
    told |= {
        "allowed": defence.epsilon,
        "only": f" in smashed data alone, not in {SENT if defence.still else LEARNT + SENT}",
    }
    return {"picture": {**told, "against": AGAINST, "epsilon": found, "check": None}}
