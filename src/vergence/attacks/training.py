"""Training loop of attackers' networks: Adam on shuffled batches with a cosine schedule.

Used by `attacks.hijacking`, `attacks.inverse_network`, `attacks.label_inference`,
`attacks.model_extraction` and `attacks.score`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

BATCH = 32


def learn(
    network: nn.Module,
    loss: Callable[[Tensor, Generator], Tensor],
    samples: int,
    epochs: int,
    rate: float = 2e-3,
    seed: int = 0,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Train a network in place.

    Args:
        network: the network; left in evaluation mode.
        loss: from the indices of a batch's samples (int64) and a generator for noise to a scalar.
        samples: number of samples.
        epochs: passes over the samples.
        rate: Adam's initial learning rate, which falls to zero as a cosine.
        seed: seed of order and noise.
        after: called after every step.
    """
    # A generator of its own: an attack on a run must not advance the run's random draws.
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-samples // BATCH)
    optimiser = torch.optim.Adam(network.parameters(), rate)
    # At least one step, or the schedule would divide by 0 where nothing is trained.
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(samples, generator=generator).split(BATCH):
            optimiser.zero_grad()
            loss(rows, generator).backward()
            optimiser.step()
            falling.step()
            after()
    network.eval()
