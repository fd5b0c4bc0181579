"""PFLlib as a peer: its own server and client of FedAvg, from a checkout, without evaluation.

PFLLIB names the folder `system` of the checkout. Changed from the outside: targets stay real
numbers (upstream makes them class labels), the loss is the job's, SGD has momentum that begins
anew every round, and a round takes the clients that all engines take.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import peer_common
import torch

sys.path.insert(0, str(Path(os.environ["PFLLIB"]).resolve()))
sys.modules.setdefault("torchvision", types.ModuleType("torchvision"))
import utils.data_utils as reading  # noqa: E402
from flcore.clients.clientavg import clientAVG  # noqa: E402
from flcore.servers.serveravg import FedAvg  # noqa: E402

DATA = "bench"
NEVER = 10**9
WORK = peer_common.job()


def pairs(data: dict[str, np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return samples one by one, as PFLlib wants them."""
    return list(zip(torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), strict=True))


class Client(clientAVG):
    """A client with the job's loss and optimiser."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.loss = peer_common.plain.LOSSES[WORK.loss]
        self.optimizer = peer_common.CountedSgd(
            self.model.parameters(), lr=self.learning_rate, momentum=WORK.momentum
        )

    def train(self) -> None:
        """Train with fresh momentum."""
        self.optimizer.state.clear()
        super().train()


class Server(FedAvg):
    """FedAvg that waits for the clock and takes the job's cohorts."""

    def set_clients(self, kind: type) -> None:
        """Make clients of our kind."""
        super().set_clients(Client)
        self.gate, self.number = peer_common.gate(), 0

    def select_clients(self) -> list[Any]:
        """Wait for the clock; PFLlib has no other end than an exception before its last saving."""
        if not self.gate.between_rounds():
            raise StopIteration
        cohort = WORK.cohorts[self.number % WORK.rounds]
        self.number, self.current_num_join_clients = self.number + 1, len(cohort)
        return [self.clients[c] for c in cohort]

    def evaluate(self, *args: Any, **more: Any) -> None:
        """Do not."""


def options() -> types.SimpleNamespace:
    """Return every option that PFLlib reads."""
    return types.SimpleNamespace(
        model=WORK.module(),
        algorithm="FedAvg",
        dataset=DATA,
        device="cpu",
        save_folder_name="items",
        num_classes=2,
        batch_size=WORK.batch,
        local_learning_rate=WORK.lr,
        local_epochs=1,
        few_shot=0,
        learning_rate_decay_gamma=0.99,
        learning_rate_decay=False,
        global_rounds=WORK.rounds,
        num_clients=len(WORK.sizes),
        join_ratio=len(WORK.cohorts[0]) / len(WORK.sizes),
        random_join_ratio=False,
        time_select=False,
        goal="bench",
        time_threthold=NEVER,
        top_cnt=100,
        auto_break=False,
        eval_gap=NEVER,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        dlg_eval=False,
        dlg_gap=NEVER,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
    )


def main() -> None:
    """Train until the clock says 0."""
    reading.process_image = pairs
    with tempfile.TemporaryDirectory(dir=os.environ["VERGENCE_BENCH_JOB"]) as place:
        for part in ("train", "test"):
            folder = Path(place) / "dataset" / DATA / part
            folder.mkdir(parents=True)
            for client in range(len(WORK.sizes)):
                x, y = (t[:1] if part == "test" else t for t in WORK.rows(client))
                with (folder / f"{client}.npz").open("wb") as file:
                    np.savez(file, data=np.array({"x": x.numpy(), "y": y.numpy()}, dtype=object))
        (Path(place) / "system").mkdir()
        os.chdir(Path(place) / "system")
        server = Server(options(), 0)
        try:
            server.train()
        except StopIteration:
            steps = peer_common.CountedSgd.steps
            server.gate.tell(final=peer_common.final(WORK, server.global_model, steps))
        os.chdir("/")


if __name__ == "__main__":
    main()
