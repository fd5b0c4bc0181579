"""Flower's simulator (Ray) as a peer: FedAvg by messages, one actor per core.

What a client does is as fast as the floor (one resident network per actor, rows mapped from one
file), so that what is measured is Flower and not a clumsy client.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
from functools import cache
from typing import Any

import peer_common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client_app, server_app = ClientApp(), ServerApp()


class Trainer:
    """One resident network and optimiser per actor."""

    def __init__(self) -> None:
        self.work = peer_common.job()
        self.module = self.work.module().to(memory_format=torch.channels_last)
        self.loss = peer_common.plain.LOSSES[self.work.loss]
        self.optimiser = torch.optim.SGD(
            self.module.parameters(), self.work.lr, self.work.momentum, fused=True
        )

    def fit(self, client: int, start: dict[str, torch.Tensor]) -> int:
        """Train a client from these parameters; return its steps."""
        x, y = self.work.rows(client)
        with torch.no_grad():
            self.module.load_state_dict(start)
        for state in self.optimiser.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"].zero_()
        order = torch.randperm(len(x)).split(self.work.batch)
        for rows in order:
            self.optimiser.zero_grad(set_to_none=True)
            self.loss(self.module(x[rows]), y[rows]).backward()
            self.optimiser.step()
        return len(order)


trainer = cache(Trainer)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    client = int(context.node_config["partition-id"])
    came: Any = message.content["arrays"]
    steps = trainer().fit(client, came.to_torch_state_dict())
    rows = trainer().work.sizes[client]
    told = MetricRecord({"num-examples": rows, "steps": steps})
    arrays = ArrayRecord(trainer().module.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": told}), reply_to=message)


class Paced(FedAvg):
    """FedAvg that waits for the clock and counts steps."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.gate, self.steps = peer_common.gate(), 0
        self.arrays: Any = None

    def configure_train(self, *args: Any, **more: Any) -> Any:
        """Wait for the clock, then ask clients."""
        self.gate.between_rounds()
        return super().configure_train(*args, **more)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average, and add up the steps that clients tell."""
        replies = list(replies)
        self.steps += sum(int(r.content["metrics"]["steps"]) for r in replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.arrays = arrays
        return arrays, metrics


@server_app.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower's signature
    """Run all rounds."""
    work = peer_common.job()
    asked, everybody = len(work.cohorts[0]), len(work.sizes)
    strategy = Paced(
        fraction_train=asked / everybody,
        fraction_evaluate=0.0,
        min_train_nodes=asked,
        min_available_nodes=everybody,
    )
    start = ArrayRecord(work.module().state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=work.rounds)
    strategy.gate.between_rounds()
    module = work.module()
    module.load_state_dict(strategy.arrays.to_torch_state_dict())
    strategy.gate.tell(final=peer_common.final(work, module, strategy.steps))


if __name__ == "__main__":
    # Ray's actors must find the apps in a module that they can import, which __main__ is not.
    import flower_peer
    from flwr.simulation import run_simulation

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=flower_peer.server_app,
        client_app=flower_peer.client_app,
        num_supernodes=len(peer_common.job().sizes),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "log_to_driver": False},
        },
    )
