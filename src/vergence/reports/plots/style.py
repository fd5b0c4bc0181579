"""One look for every figure: colours, names, and saving as a file or into a page."""

from __future__ import annotations

import base64
import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vergence.core.files import replacing
from vergence.errors import ConfigError, nearest
from vergence.results.read import Run

INK, MUTED, RULE, PAPER = "#1b1f24", "#6a717c", "#dfe3e8", "#fefefe"
PERSONAL, SHARED = "#d55e00", "#a9c8e0"

COLOURS = {
    "fedcpf": "#d55e00",
    "fedavg": "#0072b2",
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

METHOD_NAMES = {
    "local_only": "local-only",
    "centralised": "centralised",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg + fine-tuning",
    "fedprox": "FedProx",
    "fedselect": "FedSelect",
    "fedcpf": "FedCPF",
    "fedcpf_random": "random freezing",
    "fedcpf_inverted": "inverted FedCPF",
    "fedpac": "FedPAC",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "fedbabu": "FedBABU",
    "splitfed": "SplitFed V1",
    "splitfed_v2": "SplitFed V2",
    "splitfed_u": "SplitFed U-shape",
    "local_loss_split": "local-loss split",
    "lg_fedavg": "LG-FedAvg",
    "fedbn": "FedBN",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "pfedme": "pFedMe",
    "apfl": "APFL",
    "ap_fl": "AP-FL",
    "scaffold": "SCAFFOLD",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "fedavgm": "FedAvgM",
    "qfedavg": "q-FedAvg",
    "feddf": "FedDF",
    "fedgen": "FedGen",
    "ifca": "IFCA",
    "cfedvs": "CFed-VS",
    "fedgroup": "FedGroup",
    "earned_mix": "earned, not fine-tuned",
    "local_only_long": "local-only, more steps",
    "fedavg_ft_long": "FedAvg + longer fine-tuning",
}

METRIC_NAMES = {
    "f": "F",
    "nss": "NSS",
    "cc": "CC",
    "sim": "SIM",
    "kld": "KLD",
    "auc_judd": "AUC-Judd",
    "auc_shuffled": "shuffled AUC",
    "f1_glc": "F1 (GLC)",
    "f1_hit": "F1 (hit@0.7)",
    "f1_best": "F1 (best)",
    "recall_glc": "recall (GLC)",
    "precision_glc": "precision (GLC)",
    "angle_error_deg": "angular error (°)",
    "angle_error_peak_deg": "angular error of the peak (°)",
    "pitch_error_deg": "pitch error (°)",
    "yaw_error_deg": "yaw error (°)",
    "unseen_error_deg": "error in unseen zones (°)",
    "seen_error_deg": "error in seen zones (°)",
}

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
    "svg.fonttype": "none",
    "svg.hashsalt": "vergence",
}

MINUS, DASH, TIMES = "\u2212", "\u2013", "\u00d7"

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run `draw` under the project's matplotlib settings."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(cast(Any, _RC)):
            return draw(*args, **kwargs)

    return inside


def canvas(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure of this size in inches, without global pyplot state."""
    figure = Figure(figsize=(width, height), **{"layout": "constrained", **options})
    FigureCanvasAgg(figure)
    return figure


def colours(runs: Iterable[Run]) -> dict[str, str]:
    """Return label -> colour; the first run of a known method always gets the method's own."""
    chosen: dict[str, str] = {}
    spare = iter(SPARE)
    for run in runs:
        own = COLOURS.get(run.label) or COLOURS.get(run.method)
        fresh = own if own and own not in chosen.values() else next(spare, MUTED)
        chosen[run.label] = fresh
    return chosen


def title(run: Run) -> str:
    """Return the name of a run as printed: the method's own, or the label where they differ."""
    return METHOD_NAMES.get(run.label, run.label.replace("_", " "))


def metric_name(metric: str) -> str:
    """Return a metric's printed name."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def digits(values: Iterable[float]) -> int:
    """Number of decimals that show about three figures of the largest value."""
    finite = [abs(v) for v in values if math.isfinite(v)]
    top = max(finite, default=0.0)
    return 3 if top < 1.05 else 2 if top < 100 else 1


def number(value: float, decimals: int) -> str:
    """Print a number with a true minus sign, or a dash where there is none."""
    if not math.isfinite(value):
        return DASH
    return f"{value:.{decimals}f}".replace("-", MINUS)


def column_names(axes: Axes, names: Sequence[str]) -> None:
    """Write `names` under the columns of an image, slanted once they would collide."""
    long = len(names) > 6 or max(map(len, names)) > 6
    axes.set_xticks(
        range(len(names)), names, rotation=60 if long else 0, ha="right" if long else "center"
    )
    if long:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")


def figure_format(path: Path | str) -> str:
    """File format of a figure of this name; called before what may take minutes.

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
    """Write one figure; the ending says how: png, svg or pdf.

    Raises:
        ConfigError: another ending.
        PartialRun: the file cannot be written.
    """
    path = Path(path)
    kind = figure_format(path)
    stamp = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}[kind]
    with replacing(path) as scratch:
        figure.savefig(scratch, dpi=170, metadata={stamp: None})
    return path


@styled
def inline(figure: Figure, alt: str) -> str:
    """Return the figure as an SVG element that takes its text and line colours from the page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", dpi=150, transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)
    svg = re.sub(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", _photograph, svg)
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (RULE, "rule"), (PAPER, "paper")):
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _photograph(match: re.Match[str]) -> str:
    """Store large pictures as JPEG: a page of photographs as PNG would be ten times the size."""
    raw = base64.b64decode(match[1])
    if len(raw) < 60_000:
        return match[0]
    out = io.BytesIO()
    Image.open(io.BytesIO(raw), formats=("PNG",)).convert("RGB").save(out, "JPEG", quality=84)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
