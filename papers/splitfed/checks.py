"""Arithmetic of the SplitFed thesis's printed tables: what they say against what follows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.task import Task
from vergence.methods.split.splitfed import SplitFed
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import Pruning
from vergence_papers.claims import LEFT_OUT
from vergence_papers.finding import Finding
from vergence_papers.printed import numbers, paper

MIB = 2**20
LAST = 0.005
"""Half of the last printed digit of a percentage."""
SAME = 1e-6
"""Degrees that rounding may make between two orders of the same computation."""
TABLES = paper("splitfed").tables
PRINTED = {id_.partition("/")[2]: table.printed for id_, table in TABLES.items()}
AMOUNTS = (0.9, 0.95, 0.99, 0.999)
"""Of linear layers' weights that go."""
P00 = "MPIIGaze P00"
HALVES = TABLES["splitfed/table4.5"].columns


def averages() -> dict[str, tuple[list[float], float]]:
    """Errors person by person of some rows, and their printed average."""
    return {one["row"]: (one["people"], one["mean"]) for one in numbers("splitfed")["averages"]}


def findings() -> list[Finding]:
    """Return the findings about the thesis's tables."""
    return [*_means(), *_same(), *_zeros(), *_constant()]


def _means() -> list[Finding]:
    found = []
    for name, (people, mean) in averages().items():
        digits = len(str(mean).partition(".")[2])
        computed = sum(people) / len(people)
        found.append(
            Finding(
                f"{name}: average {mean}",
                f"{computed:.{digits}f}",
                abs(computed - mean) <= 0.5 * 10**-digits + 1e-9,
            )
        )
    return found


def _same() -> list[Finding]:
    """Findings where the thesis calls two runs equivalent: distances of single people."""
    found, rows = [], averages()
    for one, other in (
        ("Table 4.6, Model 3", "Table 4.6, Model 3a"),
        ("Table 4.6, Model 3", "Table 4.6, Model 3b"),
        ("Table 4.7, SFL", "Table 4.7, FL"),
    ):
        gaps = [abs(a - b) for a, b in zip(rows[one][0], rows[other][0], strict=True)]
        found.append(
            Finding(
                f"{one} and {other.partition(', ')[2]} are the same computation",
                f"single people differ by up to {max(gaps):.2f} degrees: other draws, one run each",
                max(gaps) <= SAME,
            )
        )
    return found


def _halves(mask: Mask) -> tuple[float, float, float]:
    """Return zeros of server and client in percent, and the server's size as COO tensors in MiB.

    An entry of a COO tensor has an 8-byte index per dimension and a 4-byte value.
    """
    front = set(SplitFed().front(_task()).init().layout.names)
    views = {name: mask.layout.view(mask.bits, name) for name in mask.layout.names}
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
        keep = (
            Pruning(amount).mask_of_remaining(network, params)
            if amount
            else Mask.full(params.layout)
        )
        server, _, size = _halves(keep)
        row = f"linear {amount:g}" if amount else "as trained"
        zeros = PRINTED["table4.5"][P00][row][HALVES.index("zeros server")]
        stored = numbers("splitfed")["sizes_mb"][f"{amount:g}"]
        found.append(
            Finding(
                f"Table 4.5, {amount:g} of the linear weights: {zeros} % zeros, {stored} MB",
                f"Model 2 as LeNet with 20 and 80 filters: {server:.2f} %, {size:.2f} MiB as COO",
                abs(server - zeros) <= 2 * LAST and abs(size - stored) <= 0.05,
            )
        )
    server, client, _ = _halves(Pruning(AMOUNTS[0], "conv").mask_of_remaining(network, params))
    row = PRINTED["table4.4"][P00]["conv 0.9"]
    zeros, client_zeros = (row[HALVES.index(f"zeros {side}")] for side in ("server", "client"))
    found.append(
        Finding(
            f"Table 4.4, 0.9 of the convolutions: {zeros} % and {client_zeros} % zeros",
            f"{server:.2f} % at the server, {client:.2f} % at the client",
            max(abs(server - zeros), abs(client - client_zeros)) <= 2 * LAST,
        )
    )
    return found


def _constant() -> list[Finding]:
    mean_gaze = numbers("adaptive")["mean_gaze"]
    told = f"predicting the mean gaze gives {mean_gaze} (evaluation subset, 15 people): "
    smashed = PRINTED["table4.8"]["MPIIGaze P00-P04"]
    unlabelled = PRINTED["table4.10"]["MPIIGaze"]
    levels = {
        "unsupervised FL (Table 4.9)": unlabelled["cross_fl on unseen people"][0],
        "averaged smashed data (Table 4.8)": smashed[f"smashed_average model 2{LEFT_OUT}"][0],
        **{
            f"averaged smashed data with noise l = {level:g}": smashed[
                f"smashed_average model 2, l = {level:g}{LEFT_OUT}"
            ][0]
            for level in (0.2, 0.5)
        },
        "convolutions pruned (Table 4.4)": PRINTED["table4.4"][P00]["conv 0.9"][0],
    }
    return [
        Finding(
            f"{name}, {error} degrees, is better than a constant",
            f"{told}{error - mean_gaze:+.2f} degrees",
            error < mean_gaze,
        )
        for name, error in levels.items()
    ]
