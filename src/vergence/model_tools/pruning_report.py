"""Report on the pruning of a run's models: the table, notes on it, and the figure.

Used by `model_tools.pruning_study`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor, nn

from vergence.core.stages import pieces
from vergence.core.task import Task
from vergence.metrics.intervals import interval
from vergence.results.figure_style import COLOURS, MUTED, canvas, styled
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import Record, TextTable
from vergence.training.pruning import Pruning, removable_layers, stored_bytes

KIB = 1024
# Times within 5 % are called alike: repeated measurements differ by as much.
FASTER = 0.95
PARTS = ("client", "server")


@dataclass
class PruningRow:
    """One row of the table.

    Attributes:
        error, tuned: person -> error per seed, before and after further training.
        tensors, network: of the first model that was pruned.
        dense_ms, sparse_ms: milliseconds of one sample with dense and sparse linear layers.
    """

    name: str
    pruning: Pruning | None
    error: dict[str, list[float]] = field(default_factory=dict)
    tuned: dict[str, list[float]] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    network: nn.Module | None = None
    dense_ms: float = float("nan")
    sparse_ms: float = float("nan")

    @property
    def zeros(self) -> float:
        """Share of zeros among the parameters that are left."""
        return zeros(self.tensors)


def zeros(tensors: Mapping[str, Tensor]) -> float:
    """Return the share of zeros, NaN without tensors."""
    count = sum(t.numel() for t in tensors.values())
    return sum(int((t == 0).sum()) for t in tensors.values()) / count if count else float("nan")


def sides(line: PruningRow, task: Task, cut: str | None) -> dict[str, dict[str, Tensor]]:
    """Return the tensors on the client's and the server's side of a cut; empty without a cut.

    Raises:
        ConfigError: the network has no such stage.
    """
    if cut is None:
        return {}
    halves = [piece.init().layout.names for piece in pieces(task, cut)]
    return {
        part: {n: t for n, t in line.tensors.items() if n in names}
        for part, names in zip(PARTS, halves, strict=True)
    }


def record(line: PruningRow, task: Task, cut: str | None) -> Record:
    """Return one CSV line."""
    dense = sum(t.numel() * t.element_size() for t in line.tensors.values())
    record: dict[str, object] = {
        "pruning": line.name,
        "metric": task.headline,
        "value": _mean(line.error),
        "value_after_tuning": _mean(line.tuned),
        "parameters": sum(t.numel() for t in line.tensors.values()),
        "zeros": line.zeros,
        "dense_bytes": dense,
        "stored_bytes": stored_bytes(line.tensors),
        "dense_ms": line.dense_ms,
        "sparse_ms": line.sparse_ms,
    }
    for part, tensors in sides(line, task, cut).items():
        record[f"{part}_zeros"] = zeros(tensors)
        record[f"{part}_stored_bytes"] = stored_bytes(tensors)
    return record


def _people(values: Mapping[str, list[float]]) -> list[float]:
    return [float(np.mean(v)) for v in values.values()]


def _mean(values: Mapping[str, list[float]]) -> float:
    return float(np.mean(_people(values))) if values else float("nan")


def report_table(
    heading: str, lines: Sequence[PruningRow], task: Task, tune: int, cut: str | None
) -> TextTable:
    """Return the table, with notes on how to read it.

    Args:
        heading: of the table.
        lines: its rows.
        task: whose headline is shown.
        tune: number of training batches after pruning.
        cut: stage after which sizes are given for client and server separately.
    """
    records = [record(line, task, cut) for line in lines]
    parts = PARTS if cut else ()
    places = digits(r["value"] for r in records)
    heads = [
        "pruning",
        metric_name(task.headline),
        "95 %",
        "zeros",
        "dense KiB",
        "stored KiB",
        "ms",
        "ms, sparse",
    ]
    heads += [f"{part} {what}" for part in parts for what in ("zeros", "KiB")]
    bounds = task.bounds.get(task.headline)
    cells = []
    for line, r in zip(lines, records, strict=True):
        ends = ", ".join(
            number(end, places) for end in interval(_people(line.error), bounds=bounds)
        )
        cells.append(
            [
                line.name,
                number(r["value"], places),
                f"[{ends}]",
                _share(r["zeros"]),
                f"{r['dense_bytes'] / KIB:.2f}",
                f"{r['stored_bytes'] / KIB:.2f}",
                f"{r['dense_ms']:.3f}",
                f"{r['sparse_ms']:.3f}",
            ]
        )
        for part in parts:
            size = r[f"{part}_stored_bytes"] / KIB
            cells[-1] += [_share(r[f"{part}_zeros"]), f"{size:.2f}"]
        if tune:
            cells[-1].insert(3, number(r["value_after_tuning"], places))
    if tune:
        heads.insert(3, f"after {tune} batches")
    return TextTable(heading, heads, cells, notes=notes(lines), records=records)


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def notes(lines: Sequence[PruningRow]) -> list[str]:
    """Return sentences on speed, and on filters that could not be removed."""
    start = lines[0].dense_ms
    faster = [line.name for line in lines if line.sparse_ms < FASTER * line.dense_ms]
    slower = [line.name for line in lines if line.dense_ms < FASTER * line.sparse_ms]
    sentences = [
        "ms: one sample on one thread, median processor time of interleaved runs. With sparse "
        f"linear layers (SciPy CSR) faster than dense: {', '.join(faster) or 'none'}; slower: "
        f"{', '.join(slower) or 'none'}."
    ]
    for line in lines:
        if line.pruning is None or not line.pruning.structured or line.network is None:
            continue
        if removable_layers(line.network) is None:
            sentences.append(
                f"{line.name}: set to zero, not taken out: {type(line.network).__name__} is no row "
                "of plain layers, its sums and norms need every channel. It gets no faster."
            )
        else:
            sentences.append(f"{line.name}: taken out; {start / line.dense_ms:.2f} times as fast.")
    return sentences


@styled
def picture(lines: Sequence[PruningRow], metric: str) -> Figure:
    """Draw the error, the stored size and the times, a row per pruning."""
    page = canvas(9.0, 0.9 + 0.34 * len(lines))
    error, size, time = page.subplots(1, 3, sharey=True)
    places = np.arange(len(lines))
    error.plot([_mean(line.error) for line in lines], places, "o", color=COLOURS["fedavg"])
    if lines[0].tuned:
        after = [_mean(line.tuned) for line in lines]
        error.plot(after, places, "o", mfc="none", color=COLOURS["fedcpf"], label="trained on")
        error.legend()
    error.set_xlabel(metric_name(metric))
    size.plot(
        # At least one byte, as the axis is logarithmic.
        [max(stored_bytes(line.tensors), 1) / KIB for line in lines],
        places,
        "o",
        color=COLOURS["fedavg"],
    )
    size.set(xscale="log", xlabel="stored (KiB)")
    time.plot([line.dense_ms for line in lines], places, "o", color=MUTED, label="dense")
    time.plot(
        [line.sparse_ms for line in lines],
        places,
        "o",
        mfc="none",
        color=COLOURS["fedavg"],
        label="sparse linear",
    )
    time.set(xlim=(0, None), xlabel="ms, one sample")
    time.legend()
    error.set_yticks(places, [line.name for line in lines])
    error.invert_yaxis()
    return page
