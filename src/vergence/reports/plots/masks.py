"""Figures of personal masks: by layer, overlap between people, overview (FedCPF Fig. 2).

Used by `reports.html`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from numpy.typing import NDArray

from vergence.results.figure_style import (
    BLUE,
    INK,
    MUTED,
    PAPER,
    PERSONAL,
    RULE,
    SHARED,
    bare,
    canvas,
    colour_bar,
    column_names,
    styled,
)
from vergence.results.layout import CROWD
from vergence.results.mask_files import Masks
from vergence.results.read import Run, StudyResults

SPLIT = LinearSegmentedColormap.from_list("shared to personal", [SHARED, PERSONAL])
# Columns into which a layer's entries are binned in the overview: more could not be told apart at
# the width of a client's box.
CELLS = 48
# People of a crowd whose masks are drawn, and entries of masks whose pairs are counted: seconds.
DRAWN, PAIRED = 1000, 2e10


def masked(study: StudyResults) -> list[tuple[Run, Masks]]:
    """Return the runs with personal masks, FedCPF first."""
    runs = [(run, run.masks) for run in study.runs if run.masks is not None]
    return sorted(runs, key=lambda pair: pair[0].method != "fedcpf")


@styled
def layers(study: StudyResults) -> Figure | None:
    """Draw the personal share of every layer for every person, one panel per method with masks."""
    # Four panels are as many as fit side by side.
    if not (found := masked(study)[:4]):
        return None
    groups = found[0][1].layers()
    people = max(len(m.people) for _, m in found)
    many = people > CROWD
    found = [(run, mask.some(DRAWN)) for run, mask in found]
    wide = min(max(2.2, 0.24 * people), 8.0 / len(found))
    figure = canvas(1.9 + wide * len(found), max(2.6, 0.19 * len(groups) + 1.2))
    grid = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    shares = [m.shares(m.layers()) for _, m in found]
    # One colour scale for all panels; 1 where nothing is personal yet.
    top = max(float(s.max()) for s in shares) or 1.0
    for axes, (run, mask), share in zip(grid, found, shares, strict=True):
        # Columns without names are in the order of their sums, to be read as a distribution.
        order = share.sum(axis=0).argsort() if many else slice(None)
        axes.imshow(
            share[:, order] * 100,
            aspect="auto",
            cmap="viridis",
            vmin=0,
            vmax=top * 100,
            interpolation="nearest",
        )
        axes.set_title(run.title, fontweight="bold")
        bare(axes, ticks=True)
        if many:
            axes.set(xticks=[], xlabel=f"{len(mask.people):,} of {people:,} people, in order")
        else:
            column_names(axes, mask.people)
        axes.tick_params(axis="x", labelsize=7)
    grid[0].set_yticks(range(len(groups)), list(groups), fontsize=7.5)
    label = "personal entries of the layer (%)"
    colour_bar(figure, grid[-1].images[0], label, ax=list(grid), fraction=0.04, pad=0.02)
    return figure


@styled
def overlap(study: StudyResults) -> Figure | None:
    """Draw the Jaccard index of every two people's masks, and that of random masks."""
    if not (found := masked(study)[:4]):
        return None
    people = max(len(m.people) for _, m in found)
    if people > CROWD:
        return _pairs(found)
    side = min(max(2.6, 0.22 * people), 8.4 / len(found))
    figure = canvas(side * len(found) + 1.0, side + 0.9)
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (run, mask) in zip(grid, found, strict=True):
        table = mask.overlap()
        axes.imshow(table, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        bare(axes, ticks=True)
        column_names(axes, mask.people)
        axes.set_yticks(range(len(mask.people)), mask.people)
        axes.tick_params(labelsize=7)
        axes.set_title(f"{run.title}\n", fontweight="bold")
        pairs = table[~np.eye(len(table), dtype=bool)]
        told = f"mean {(float(pairs.mean()) if pairs.size else 1.0):.2f}, chance {chance(mask):.2f}"
        axes.annotate(told, (0, 1.02), xycoords="axes fraction", fontsize=8, color=MUTED)
        if len(mask.people) <= 8:
            for (i, j), value in np.ndenumerate(table):
                # Light cells of viridis need dark letters.
                colour = "#10141a" if value > 0.6 else "#f4f5f7"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    options = {"ax": list(grid), "fraction": 0.03, "pad": 0.02, "shrink": 0.7}
    colour_bar(figure, grid[-1].images[0], "Jaccard index", **options)
    return figure


def _pairs(masked_runs: Sequence[tuple[Run, Masks]]) -> Figure:
    """Draw how many pairs of people have which Jaccard index."""
    figure = canvas(3.6 * len(masked_runs) + 0.6, 3.1)
    grid = figure.subplots(1, len(masked_runs), sharey=True, squeeze=False)[0]
    for axes, (run, mask) in zip(grid, masked_runs, strict=True):
        some = mask.some(min(DRAWN, max(CROWD, int((PAIRED / mask.n) ** 0.5))))
        table = some.overlap()
        pairs = table[np.triu_indices(len(table), 1)]
        axes.hist(
            pairs, bins=60, range=(0, 1), color=PERSONAL, weights=100 / len(pairs) + 0 * pairs
        )
        for value, colour, name in (
            (float(pairs.mean()), INK, "mean"),
            (chance(mask), MUTED, "chance"),
        ):
            axes.axvline(value, color=colour, linewidth=1.2, label=f"{name} {value:.2f}")
        axes.legend(fontsize=8)
        axes.set_title(run.title, fontweight="bold")
        drawn = f"{len(table):,} of {len(mask.people):,} people"
        axes.set_xlabel(f"Jaccard index of two people; {drawn}")
    grid[0].set_ylabel("pairs (%)")
    return figure


def chance(mask: Masks) -> float:
    """Return the expected Jaccard index of two random masks of the average size: s / (2 - s)."""
    share = float(np.mean(list(mask.totals().values())))
    # Independent masks of share s meet in s^2 of the entries and cover 2 s - s^2 of them.
    return share / (2 - share)


@styled
def overview(study: StudyResults) -> Figure | None:
    """Draw a round of FedCPF with the real masks of a run (after FedCPF, Fig. 2)."""
    if not (found := masked(study)):
        return None
    run, mask = found[0]
    seed = mask.seeds[0]
    everybody = [p for p in mask.people if (seed, p) in mask.packed]
    present = everybody[:: math.ceil(len(everybody) / CROWD)]
    # Five boxes fit; they are spread over all people, and not the first five.
    people = present[:: max(1, len(present) // 5)][:5]
    groups = mask.layers(18)
    tiles = {p: _tile(mask.bits(seed, p), mask, groups) for p in people}
    kept = np.mean([_tile(mask.bits(seed, p), mask, groups) for p in present], axis=0)
    figure = canvas(11, 7, layout="none")
    whole = figure.add_axes((0, 0, 1, 1))
    whole.set_axis_off()
    whole.set(xlim=(0, 1), ylim=(0, 1))
    _server(figure, whole, kept, len(everybody), run.title)
    left, right = 0.16, 0.985
    width = (right - left) / len(people)
    for i, person in enumerate(people):
        share = float(mask.bits(seed, person).mean())
        box = (left + i * width, 0.115, width * 0.86, 0.4)
        _client(figure, whole, box, person, tiles[person], share)
    names = list(groups)
    step = 0.4 / len(names)
    for i, name in enumerate(names):
        whole.text(
            left - 0.012,
            0.115 + 0.4 - (i + 0.5) * step,
            name,
            ha="right",
            va="center",
            fontsize=6.5,
        )
    _key(whole, mask.n, len(everybody) - len(people))
    return figure


def _tile(
    bits: NDArray[np.bool_], mask: Masks, groups: dict[str, list[int]]
) -> NDArray[np.float64]:
    """Return the personal share of `CELLS` equal runs of entries per layer, `[layers, CELLS]`."""
    ends = np.cumsum(mask.sizes())
    rows = []
    for members in groups.values():
        entries = np.concatenate([bits[ends[i] - mask.sizes()[i] : ends[i]] for i in members])
        summed = np.concatenate([[0.0], np.cumsum(entries)])
        edges = np.linspace(0, len(entries), CELLS + 1)
        # Interpolated cumulative sums bin a layer exactly, also one of fewer entries than cells.
        rows.append(np.diff(np.interp(edges, np.arange(len(summed)), summed)) / np.diff(edges))
    return np.stack(rows)


def _server(figure: Figure, whole: Axes, share: NDArray[np.float64], count: int, name: str) -> None:
    whole.add_patch(_box(0.3, 0.7, 0.55, 0.255))
    whole.text(0.315, 0.925, "Server", fontsize=13, fontweight="bold", va="center")
    caption = f"{name}: each entry is the average over the clients that share it"
    whole.text(0.392, 0.924, caption, fontsize=9, color=MUTED, va="center")
    axes = figure.add_axes((0.315, 0.72, 0.44, 0.18))
    image = axes.imshow(
        (1 - share) * count,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=count,
        interpolation="nearest",
    )
    bare(axes)
    bar = figure.colorbar(image, cax=figure.add_axes((0.77, 0.72, 0.01, 0.18)))
    bar.set_label(f"clients averaged, of {count}", fontsize=7.5)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # type: ignore[operator]


def _client(
    figure: Figure,
    whole: Axes,
    box: tuple[float, float, float, float],
    person: str,
    tile: NDArray[np.float64],
    share: float,
) -> None:
    x, y, width, height = box
    whole.add_patch(_box(x - 0.008, y - 0.075, width + 0.016, height + 0.125))
    whole.text(x, y + height + 0.026, person, fontsize=10, fontweight="bold", va="center")
    axes = figure.add_axes(box)
    axes.imshow(tile, aspect="auto", cmap=SPLIT, vmin=0, vmax=1, interpolation="nearest")
    bare(axes)
    for line in range(1, len(tile)):
        axes.axhline(line - 0.5, color=PAPER, linewidth=1.2)
    whole.text(
        x, y - 0.025, f"{share:.0%} personal, stays", fontsize=8, color=PERSONAL, va="center"
    )
    whole.text(
        x, y - 0.053, f"{1 - share:.0%} shared, sent up", fontsize=8, color=BLUE, va="center"
    )
    middle = x + width / 2
    roof, floor = y + height + 0.055, 0.695
    target = min(max(middle, 0.34), 0.81)
    for shift, start, end, colour, wide in (
        (-0.02, roof, floor, BLUE, 1.2 + 3 * (1 - share)),
        (0.02, floor, roof, MUTED, 2.4),
    ):
        here = (middle + shift, roof) if start == roof else (target + shift, floor)
        there = (target + shift, floor) if end == floor else (middle + shift, roof)
        arrow = FancyArrowPatch(
            here,
            there,
            arrowstyle="-|>",
            mutation_scale=13,
            color=colour,
            linewidth=wide,
            shrinkA=1,
            shrinkB=1,
        )
        whole.add_patch(arrow)


def _box(x: float, y: float, width: float, height: float) -> FancyBboxPatch:
    return FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.012",
        facecolor="none",
        edgecolor=RULE,
        linewidth=1.4,
    )


def _key(whole: Axes, entries: int, more: int) -> None:
    """Explain colours and arrows in the free corner left of the server."""
    x, y = 0.02, 0.93
    for colour, text in (
        (PERSONAL, "personal: trained by this client, never sent"),
        (SHARED, "shared: averaged by the server"),
    ):
        patch = FancyBboxPatch(
            (x, y - 0.009), 0.014, 0.018, boxstyle="square,pad=0", fc=colour, ec="none"
        )
        whole.add_patch(patch)
        whole.text(x + 0.024, y, text, fontsize=8, va="center", color=INK)
        y -= 0.037
    for colour, text in ((BLUE, "up: shared entries"), (MUTED, "down: the averages")):
        whole.plot([x, x + 0.014], [y, y], color=colour, linewidth=3)
        whole.text(x + 0.024, y, text, fontsize=8, va="center", color=INK)
        y -= 0.037
    legend = f"rows: layers, input on top\ncolumns: {entries:,} entries, binned"
    if more > 0:
        legend += f"\n{more} more clients not drawn"
    whole.text(x, y + 0.005, legend, fontsize=8, va="top", color=MUTED, linespacing=1.6)
