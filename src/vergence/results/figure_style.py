"""Common style of figures: colours, names, and saving as a file or into a page.

Used in most packages.
"""

from __future__ import annotations

import base64
import functools
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike
from PIL import Image

from vergence.core.files import replacing, write_text
from vergence.core.options import P, T
from vergence.errors import ConfigError, nearest
from vergence.results.read import Run

INK, MUTED, RULE, PAPER = "#1b1f24", "#6a717c", "#dfe3e8", "#fefefe"
PERSONAL, SHARED, BLUE = "#d55e00", "#a9c8e0", "#0072b2"
HOVER = "hover:"
PIXELS = 119
"""Largest number of pixels per inch of a figure in a page; the widest figures fill the page."""
COLOURS = {
    "fedcpf": "#d55e00",
    "fedavg": BLUE,
    "local_only": "#7f858e",
    "fedselect": "#009e73",
    "fedprox": "#56b4e9",
    "centralised": "#b565a7",
    "fedavg_ft": "#e69f00",
    "fedcpf_random": "#8c6d31",
    "fedcpf_inverted": "#5254a3",
}
"""Okabe and Ito's colour-blind-safe palette, one colour per method, the same in every figure."""

SPARE = (
    "#ad494a",
    "#1b9e9e",
    "#b3a100",
    "#c77cff",
    "#637939",
    "#3f3f46",
    "#e78ac3",
    "#7fc97f",
    "#386cb0",
    "#fdae61",
)

MARKERS = "osD^vPXhp<>*"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.4, 1.4)), (0, (7, 2, 1.4, 2)), (0, (3, 1)))
"""Dash patterns for the lines of a figure, which differ in colour and marker, too."""

_RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    # Texts stay texts, which a page can style and search.
    "svg.fonttype": "none",
    # Without a fixed salt, ids of elements differ in every file.
    "svg.hashsalt": "vergence",
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Return `draw`, wrapped so that it runs under the project's matplotlib settings."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with mpl.rc_context(cast(Any, _RC)):
            return draw(*args, **kwargs)

    return inside


def canvas(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure of this size in inches, without global pyplot state."""
    figure = Figure(figsize=(width, height), **{"layout": "constrained", **options})
    FigureCanvasAgg(figure)
    return figure


def colours(runs: Iterable[Run]) -> dict[str, str]:
    """Return label -> colour; a known method's first run gets the method's own colour."""
    by_label: dict[str, str] = {}
    spare = iter(SPARE)
    for run in runs:
        own = COLOURS.get(run.label) or COLOURS.get(run.method)
        fresh = own if own and own not in by_label.values() else next(spare, MUTED)
        by_label[run.label] = fresh
    return by_label


def column_names(axes: Axes, names: Sequence[str]) -> None:
    """Write `names` under the columns of an image, slanted if they are many or long."""
    long = len(names) > 6 or max(map(len, names)) > 6
    axes.set_xticks(
        range(len(names)), names, rotation=60 if long else 0, ha="right" if long else "center"
    )
    if long:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")


def bare(axes: Axes, *, ticks: bool = False) -> None:
    """Remove the grid and the frame around a picture, and its ticks if `ticks` is false."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if not ticks:
        axes.set(xticks=[], yticks=[])


def colour_bar(figure: Figure, image: AxesImage, label: str, **options: Any) -> None:
    """Draw the colour scale of an image next to it, without a frame."""
    bar = figure.colorbar(image, **options)
    bar.set_label(label)
    bar.outline.set_visible(False)  # type: ignore[operator]


def hover(points: PathCollection, texts: Sequence[str]) -> None:
    """Give each point a text, which the HTML page shows while the pointer is over the point."""
    points.set_urls([f"{HOVER}{text}" for text in texts])


def distribution(
    axes: Axes, at: float, values: ArrayLike, colour: str, *, upright: bool = False
) -> None:
    """Draw how many of `values` lie where, as a shape whose middle is `at` on the other axis.

    Values lie along x, or along y if `upright`. Those that are not finite are left out.
    """
    every = np.asarray(values, dtype=np.float64)
    counts, edges = np.histogram(every[np.isfinite(every)], bins=60)
    half = 0.3 * counts / max(counts.max(), 1)
    fill = axes.fill_betweenx if upright else axes.fill_between
    fill((edges[1:] + edges[:-1]) / 2, at - half, at + half, color=colour, alpha=0.4, linewidth=0.8)


def mark_curve(number: int, **artists: Artist) -> None:
    """Mark artists as parts of curve `number`, which a reader of the HTML page can hide."""
    for name, artist in artists.items():
        artist.set_gid(f"curve-{number}-{name}")


def _svg(figure: Figure, **options: Any) -> str:
    """Return a figure as SVG text.

    Texts that `hover` gave to points become SVG titles, which browsers show under the pointer.
    Parts that `mark_curve` marked have the curve's number in the attribute `data-curve`, by which
    the HTML page hides the curve.
    """
    out = io.StringIO()
    # Without a date the same figure has the same bytes.
    figure.savefig(out, format="svg", metadata={"Date": None}, **options)
    linked = re.compile(rf'<a xlink:href="{HOVER}([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
    svg = linked.sub(r'<g class="point"><title>\1</title>\2</g>', out.getvalue())
    return re.sub(r'id="curve-(\d+)-\w+"', r'data-curve="\1"', svg)


def figure_format(path: Path | str) -> str:
    """Return the file format of a figure from its path's ending.

    Callers check this before work that may take minutes.

    Raises:
        ConfigError: the ending is none of png, svg, pdf.
    """
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in {"png", "svg", "pdf"}:
        raise ConfigError(
            f"figure {path}: '{kind}' is no format{nearest(kind, ('png', 'svg', 'pdf'))}"
        )
    return kind


@styled
def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure in the format of its file's ending: png, svg or pdf.

    Raises:
        ConfigError: the file has another ending.
        PartialRun: the file cannot be written.
    """
    path = Path(path)
    kind = figure_format(path)
    if kind == "svg":
        write_text(path, _svg(figure, dpi=170))
        return path
    stamp = {"png": "Software", "pdf": "CreationDate"}[kind]
    with replacing(path) as scratch:
        figure.savefig(scratch, dpi=170, metadata={stamp: None})
    return path


@styled
def inline(figure: Figure, alt: str) -> str:
    """Return the figure as an SVG element; the page around it sets the text and line colours.

    `alt` is the text for readers who cannot see the figure.
    """
    svg = _svg(figure, dpi=150, transparent=True)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    wide = f"max-width: {figure.get_figwidth() * PIXELS:.0f}px"
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{alt}" style="{wide}"', 1)
    svg = re.sub(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", _photograph, svg)
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (RULE, "rule"), (PAPER, "paper")):
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _photograph(match: re.Match[str]) -> str:
    """Convert a large PNG picture, matched as base64 in an SVG, to JPEG."""
    raw = base64.b64decode(match[1])
    # A page of photographs as PNG would be ten times the size.
    if len(raw) < 60_000:
        return match[0]
    out = io.BytesIO()
    Image.open(io.BytesIO(raw), formats=("PNG",)).convert("RGB").save(out, "JPEG", quality=84)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
