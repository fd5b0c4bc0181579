"""Real and made-up samples of unseen classes side by side, by t-SNE: Figures 5.4 and 6.4."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from vergence.core.optional import import_optional
from vergence.results.figure_style import MUTED, canvas, styled
from vergence_papers.generated_samples import Made, made
from vergence_papers.outcome import ReproducedTable

WIDE = 2.4


@styled
def embedding(outcome: ReproducedTable) -> Figure:
    """Draw a panel per way to ask, a row per teacher; colours are classes.

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    parts = [
        (part, outcome.results[part.name, part.protocol].study.runs)
        for part in outcome.table.parts
        if (part.name, part.protocol) in outcome.results
    ]
    across = max(len(runs) for _, runs in parts)
    figure = canvas(WIDE * across + 1.8, WIDE * len(parts) + 0.4)
    grid = figure.subplots(len(parts), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for row, (part, runs) in zip(grid, parts, strict=True):
        for axes, run in zip(row, runs, strict=False):
            shown = made(run, run.seeds[0], 1)
            _panel(axes, shown)
            axes.set_title(outcome.name(run.label + part.suffix).replace(" (", "\n("))
            if axes is grid[0, 0]:
                _legend(figure, shown)
    return figure


def _panel(axes: Axes, shown: Made) -> None:
    samples = torch.cat([shown.real, shown.made[0]])
    tsne = import_optional("sklearn.manifold", "drawing pictures by t-SNE", "tsne").TSNE
    places = tsne(perplexity=min(30.0, (len(samples) - 1) / 3), init="pca", random_state=0)
    at = places.fit_transform(samples.double().numpy())
    own = len(shown.kinds)
    for colour, kind in zip(_colours(), shown.kinds.unique(), strict=False):
        real = (shown.kinds == kind).nonzero()[:, 0].numpy()
        x, y = at[:, 0], at[:, 1]
        axes.scatter(x[real], y[real], s=16, facecolors="none", edgecolors=[colour])
        axes.scatter(x[real + own], y[real + own], s=18, marker="x", linewidths=1.1, color=[colour])
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def _legend(figure: Figure, shown: Made) -> None:
    (axes, *_) = figure.axes
    marks = [
        axes.scatter([], [], s=16, facecolors="none", edgecolors=MUTED, label="real"),
        axes.scatter([], [], s=18, marker="x", color=MUTED, label="made up"),
    ]
    marks += [
        axes.scatter([], [], s=18, marker="s", color=[colour], label=shown.names[kind])
        for colour, kind in zip(_colours(), shown.kinds.unique().tolist(), strict=False)
    ]
    figure.legend(handles=marks, loc="outside right upper")


def _colours() -> Iterator[str]:
    """Yield colours without end."""
    palette = colormaps["tab20"]
    return (to_hex(palette(2 * i % 20 + (i // 10) % 2)) for i in count())
