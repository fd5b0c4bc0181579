"""FedAvg: one model for everybody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vergence.core.conversation import Conversation, aggregate
from vergence.core.identifiers import ClientId
from vergence.core.method import Global, NoState, UpdateMethod


@dataclass(frozen=True)
class FedAvg(UpdateMethod[Global, NoState]):
    """Average the clients' updates.

    model <- model + sum_i (n_i / sum_j n_j) (local_i - model), over the cohort.

    Args:
        weights: clients count by their samples, or equally.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, Algorithm 1.
    """

    weights: Literal["samples", "equal"] = "samples"

    def round(self, s: Global, cohort: Sequence[ClientId]) -> Conversation[Global]:
        """Let the cohort train and add the mean update."""
        got = yield from aggregate("train", to=cohort)
        return Global(s.model + got.mean("model"))
