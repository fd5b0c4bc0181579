"""pfl-research as a peer: FedAvg in its simulator, users' rows resident, no evaluation."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import peer_common
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

NEVER = 10**9


class Net(torch.nn.Module):
    """The job's network with the two methods that pfl asks a model for."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.inner, self.criterion = work.module(), peer_common.plain.LOSSES[work.loss]

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Return the mean loss."""
        return self.criterion(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:
        """Return a loss that costs nothing; pfl asks for it in its first round."""
        return {"loss": Weighted(0.0, len(x))}


class Paced(TrainingProcessCallback):
    """Waits for the clock between rounds."""

    def __init__(self) -> None:
        self.gate = peer_common.gate()

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Wait for the first round."""
        self.gate.between_rounds()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Wait for the next round."""
        return not self.gate.between_rounds(), Metrics()


def main() -> None:
    """Train until the clock says 0."""
    work = peer_common.job()
    users = {
        c: Dataset(raw_data=[t.clone() for t in work.rows(c)], user_id=str(c))
        for c in range(len(work.sizes))
    }
    asked = iter([c for cohort in work.cohorts for c in cohort])
    people = FederatedDataset(users.__getitem__, lambda: next(asked, 0))
    net, paced = Net(work), Paced()
    model = PyTorchModel(
        model=net,
        local_optimizer_create=lambda parameters, lr: peer_common.CountedSgd(
            parameters, lr=lr, momentum=work.momentum
        ),
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=len(work.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=people, val_data=people, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=1, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[paced],
    )
    steps = peer_common.CountedSgd.steps
    paced.gate.tell(final=peer_common.final(work, net.inner, steps))


if __name__ == "__main__":
    main()
