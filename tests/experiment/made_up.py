"""People as arrays and a network of one's own, for tests of training from Python."""

import numpy as np
from torch import nn
from torch.nn.functional import mse_loss

import vergence as vg


def arrays(people=5, rows=40, seed=0):
    """Everybody weighs four inputs in their own way."""
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(people):
        x = rng.normal(size=(rows, 4))
        weights = 1 + rng.normal(size=4)
        found[f"p{number:02d}"] = {"x": x, "y": x @ weights + 0.1 * rng.normal(size=rows)}
    return found


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def regression(**options):
    return vg.task_from(network, loss=mse_loss, **options)


def trained(out=None, method=None, rounds=3, task=None, people=None, **options):
    return vg.train(
        vg.methods.FedPer() if method is None else method,
        regression() if task is None else task,
        vg.Federation.from_arrays(arrays()) if people is None else people,
        rounds=rounds,
        out=out,
        **{"workers": 1, "progress": False, **options},
    )
