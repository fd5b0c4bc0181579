"""Arithmetic of the SplitFed thesis's printed tables: what they say against what follows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vergence.app.papers import splitfed_tables as printed
from vergence.app.papers.adaptive import MEAN_GAZE
from vergence.app.papers.checks import Finding
from vergence.app.papers.splitfed import AMOUNTS
from vergence.core.mask import Mask
from vergence.core.pruning import Pruning
from vergence.core.task import Task
from vergence.methods.splitfed import SplitFed
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle

MIB = 2**20
LAST = 0.005
"""Half of the last printed digit of a percentage."""
ROWS: dict[str, tuple[tuple[float, ...], float]] = {
    "Table 4.6, Model 3": ((4.312, 7.069, 5.024, 6.723, 5.566, 6.883), 5.929),
    "Table 4.6, Model 3a": ((4.246, 6.897, 5.051, 6.979, 5.938, 6.519), 5.938),
    "Table 4.6, Model 3b": ((4.449, 7.310, 5.203, 6.747, 5.402, 6.413), 5.921),
    "Table 4.7, SFL": ((4.1829, 7.9252, 4.6522, 6.9007, 5.0672, 7.2435), 5.9953),
    "Table 4.7, FL": ((4.1803, 7.8675, 4.9357, 6.9907, 4.8748, 7.1230), 5.9953),
    "Table 4.9": ((8.73, 9.72, 10.15, 8.36, 10.45, 9.95, 10.70, 10.49, 9.82), 9.82),
}
"""Errors person by person, and their printed average."""


def check_splitfed() -> list[Finding]:
    """Return the findings about the thesis's tables."""
    return [*_means(), *_same(), *_zeros(), *_constant()]


def _means() -> list[Finding]:
    found = []
    for name, (people, mean) in ROWS.items():
        digits = len(str(mean).partition(".")[2])
        computed = sum(people) / len(people)
        found.append(Finding(f"{name}: average {mean}", f"{computed:.{digits}f}",
                             abs(computed - mean) <= 0.5 * 10**-digits + 1e-9))  # fmt: skip
    return found


def _same() -> list[Finding]:
    """Return how far apart single people are where the thesis calls two runs equivalent."""
    found = []
    for one, other in (("Table 4.6, Model 3", "Table 4.6, Model 3a"),
                       ("Table 4.6, Model 3", "Table 4.6, Model 3b"),
                       ("Table 4.7, SFL", "Table 4.7, FL")):  # fmt: skip
        gaps = [abs(a - b) for a, b in zip(ROWS[one][0], ROWS[other][0], strict=True)]
        found.append(Finding(
            f"{one} and {other.partition(', ')[2]} are the same computation",
            f"single people differ by up to {max(gaps):.2f} degrees: other draws, one run each",
            max(gaps) <= printed.SAME,
        ))  # fmt: skip
    return found


def _halves(kept: Mask) -> tuple[float, float, float]:
    """Return zeros of server and client in percent, and the server's size as COO tensors in MiB.

    An entry of a COO tensor has an 8-byte index per dimension and a 4-byte value.
    """
    front = set(SplitFed().front(_task()).init().layout.names)
    views = {name: kept.layout.view(kept.bits, name) for name in kept.layout.names}
    client = [view for name, view in views.items() if name in front]
    server = [view for name, view in views.items() if name not in front]
    size = sum(int(view.sum()) * (8 * view.ndim + 4) for view in server) / MIB
    return _share_gone(server), _share_gone(client), size


def _share_gone(views: Sequence[Tensor]) -> float:
    return 100 * (1 - sum(int(v.sum()) for v in views) / sum(v.numel() for v in views))


def _task() -> Task:
    return GazeAngle(LeNet((20, 80)))


def _zeros() -> list[Finding]:
    task = _task()
    network, params = task.module(), task.init()
    found = []
    for amount in (0.0, *AMOUNTS):
        keep = Pruning(amount).kept(network, params) if amount else Mask.full(params.layout)
        server, _, size = _halves(keep)
        _, zeros, stored = printed.TABLE45[amount]
        found.append(Finding(
            f"Table 4.5, {amount:g} of the linear weights: {zeros} % zeros, {stored} MB",
            f"Model 2 as LeNet with 20 and 80 filters: {server:.2f} %, {size:.2f} MiB as COO",
            abs(server - zeros) <= 2 * LAST and abs(size - stored) <= 0.05,
        ))  # fmt: skip
    server, client, _ = _halves(Pruning(AMOUNTS[0], "conv").kept(network, params))
    _, zeros, client_zeros = printed.TABLE44
    found.append(Finding(
        f"Table 4.4, 0.9 of the convolutions: {zeros} % and {client_zeros} % zeros",
        f"{server:.2f} % at the server, {client:.2f} % at the client",
        max(abs(server - zeros), abs(client - client_zeros)) <= 2 * LAST,
    ))  # fmt: skip
    return found


def _constant() -> list[Finding]:
    told = f"predicting the mean gaze gives {MEAN_GAZE} (evaluation subset, 15 people): "
    levels = {
        "unsupervised FL (Table 4.9)": printed.TABLE410["cross_fl"],
        "averaged smashed data (Table 4.8)": printed.TABLE48[0.0],
        "averaged smashed data with noise l = 0.2": printed.TABLE48[0.2],
        "averaged smashed data with noise l = 0.5": printed.TABLE48[0.5],
        "convolutions pruned (Table 4.4)": printed.TABLE44[0],
    }
    return [
        Finding(f"{name}, {error} degrees, is better than a constant",
                f"{told}{error - MEAN_GAZE:+.2f} degrees", error < MEAN_GAZE)
        for name, error in levels.items()
    ]  # fmt: skip
