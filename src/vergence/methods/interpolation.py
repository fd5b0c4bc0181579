"""Interpolation: mix a personal and the common model as far as validation data favours it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation, compute, fit
from vergence.core.messages import Message, Reply, reply
from vergence.core.method import AveragingMethod, Exposure
from vergence.core.params import Params
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.metrics.held_out import BLOCKS, runs_of_neighbours, simplest_near_best


@tagged("Mixing")
@dataclass(frozen=True)
class Mixing:
    """A client's own model, its share in the best mix, and a model trained on its data only."""

    params: Params
    alone: Params
    share: float = 0.0


@dataclass(frozen=True)
class Interpolation(AveragingMethod[Mixing]):
    """Average as FedAvg; also train a personal model, from its best mix with the common one.

    Candidates are share * own + (1 - share) * model for shares 0, 1 / grid, ..., 1. Among those
    whose validation loss is within `errors` standard errors of the lowest, the smallest share wins,
    so that little data means little personalisation. The personal model trains on from that mix.
    After the last round it is fine-tuned, and validation data choose among the mixes before and
    after fine-tuning, and a model that trained on the client's data only.

    Args:
        grid: number of steps between the common model (share 0) and the personal one (share 1).
        errors: how many standard errors worse a smaller share may be; 0: the lowest loss decides.
        tune_epochs: epochs of fine-tuning at the end, at the full learning rate; 0 for none.
        weights: clients count by their samples, or equally, in the common model.

    Source: this project, docs/reference/methods/interpolation.md; the common model is McMahan et
    al. 2017, Algorithm 1; the rule of one standard error Breiman et al. 1984, section 3.4.3.
    """

    grid: Annotated[int, Ge(1)] = 4
    errors: Annotated[float, Ge(0)] = 1.0
    tune_epochs: Annotated[int, Ge(0)] = 3
    weights: Literal["samples", "equal"] = "samples"

    exposure: ClassVar[Mapping[str, Exposure]] = {
        "train": Exposure(),
        "settle": Exposure(trees=(), metrics=()),
    }
    finish_verbs: ClassVar[tuple[str, ...]] = ("settle",)

    @property
    def uses_validation(self) -> bool:
        """True: validation losses choose among the mixes."""
        return True

    def client(self, task: Task) -> Mixing:
        """Return the state of a new client, which follows the common model."""
        start = task.init()
        return Mixing(start, start)

    def on_train(
        self, c: Mixing, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixing, Reply]]:
        """Train the received model to send it back, and the personal one from the best mix."""
        model = msg["model"]
        common = yield from fit(model, site.train, self.local)
        best, share = yield from self.best_candidate(self.candidates(c.params, model), site)
        own = yield from fit(best, site.train, self.local)
        alone = yield from fit(c.alone, site.train, self.local)
        update = common.params - model
        mine = Mixing(own.params, alone.params, share)
        return mine, reply(model=update, weight=common.weight(self.weights), metrics=common.metrics)

    def candidates(self, own: Params, model: Params) -> list[tuple[Params, float]]:
        """Return the mixes from the common to the personal model, each with its share."""
        shares = [step / self.grid for step in range(self.grid + 1)]
        return [(mix_models(own, model, share), share) for share in shares]

    def best_candidate(
        self, candidates: Sequence[tuple[Params, float]], site: ClientContext
    ) -> Conversation[tuple[Params, float]]:
        """Return the first candidate within `errors` standard errors of the lowest loss."""
        # DP-SGD lets a turn look at nothing but whole validation data.
        blocks = (runs_of_neighbours(site.val, BLOCKS) if self.errors else []) or [site.val]
        losses = []
        for block in blocks:
            row = []
            for params, _ in candidates:
                row.append((yield from compute(params, block, "loss")))
            losses.append(row)
        return candidates[simplest_near_best(losses, list(map(len, blocks)), self.errors)]

    def on_settle(
        self, c: Mixing, msg: Message, site: ClientContext
    ) -> Conversation[tuple[Mixing, Reply]]:
        """Fine-tune the best mix, and choose the final personal model; nothing goes back."""
        model = msg["model"]
        candidates = self.candidates(c.params, model)
        if self.tune_epochs:
            best, _ = yield from self.best_candidate(candidates, site)
            local = replace(self.local, epochs=self.tune_epochs, steps=None)
            tuned = yield from fit(best, site.train, local)
            # The first mix of the tuned model is the common model, which is a candidate already.
            candidates += self.candidates(tuned.params, model)[1:]
        # The order matters: of equal losses an earlier candidate wins, training alone last.
        final, _ = yield from self.best_candidate([*candidates, (c.alone, 1.0)], site)
        return Mixing(final, c.alone, 1.0), reply()

    def model_on(self, c: Mixing, msg: Message, site: ClientContext) -> Params:
        """Return the mix that the client last chose, of its own model and the received one."""
        return mix_models(c.params, msg["model"], c.share)


def mix_models(own: Params, model: Params, share: float) -> Params:
    """Return share * own + (1 - share) * model, exactly one of them at 0 and 1."""
    # 1 * own + 0 * model is not own bit for bit where the model holds infinities or -0.
    if share in (0, 1):
        return own if share else model
    return share * own + (1 - share) * model
