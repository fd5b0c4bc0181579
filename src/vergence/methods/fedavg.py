"""FedAvg: one model for everybody."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge

from vergence.core.conversation import Conversation
from vergence.core.identifiers import ClientId
from vergence.core.method import AveragingMethod, Global, NoState, UpdateMethod
from vergence.core.params import Params
from vergence.core.tags import LATER, tagged
from vergence.core.task import Task


@tagged("AveragedModels")
@dataclass(frozen=True)
class AveragedModels(Global):
    """The model, the number of rounds done, and the mean of the models since `swa_start`."""

    rounds: int
    mean: Params


@dataclass(frozen=True)
class FedAvg(UpdateMethod[Global, NoState], AveragingMethod[NoState]):
    """Average the clients' updates.

    model <- model + sum_i (n_i / sum_j n_j) (local_i - model), over the cohort.

    Args:
        weights: clients count by their samples, or equally.
        swa_start: stochastic weight averaging: the final model is the mean of the models after the
            rounds from this one on, counted from 1. 0: the model after the last round. Evaluations
            between rounds, and `early_stopping`, see the model of the round.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, Algorithm 1. `swa_start`: Izmailov et al., "Averaging weights leads to
    wider optima and better generalization", UAI 2018, Algorithm 1, with rounds for its cycles.
    """

    weights: Literal["samples", "equal"] = "samples"
    swa_start: Annotated[int, Ge(0)] = field(default=0, metadata={LATER: True})

    def server(self, task: Task) -> Global:
        """Return the first server state: the task's initial model."""
        start = task.init()
        return AveragedModels(start, 0, start) if self.swa_start else Global(start)

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        last = yield from super().round(s, cohort)
        if not isinstance(s, AveragedModels):
            return last
        rounds = s.rounds + 1
        # Until `swa_start` the mean is the model itself, so that a run may end before it.
        share = 1 / max(rounds - self.swa_start + 1, 1)
        return AveragedModels(last.model, rounds, s.mean + (last.model - s.mean) * share)

    def finish(self, s: Global, clients: Sequence[ClientId]) -> Conversation[Global]:
        """Send nothing; with `swa_start` make the mean of the models the final model."""
        return replace(s, model=s.mean) if isinstance(s, AveragedModels) else s
        # Never reached: it makes this function a generator, as overrides are.
        yield
