"""`vergence data skew`: skew between people's data, as a table and a picture.

Used by `cli.data` and `studies.class_partition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from vergence.core.federation import Dataset, Federation
from vergence.core.naming import plural
from vergence.data.few_data import FewSamples
from vergence.data.noise import Noise
from vergence.errors import ConfigError
from vergence.experiment.registry import find
from vergence.experiment.schema import data_root, override, read
from vergence.experiment.table_binding import record_from_table
from vergence.experiment.trust import current_trust, trust_in_own_file, under
from vergence.metrics.sample_features import compact
from vergence.metrics.skew import MEASURES, Skew, measure_skew
from vergence.results.figure_style import canvas, figure_format, save, styled

SAMPLES, MOST, LEAST = 4000, 400, 20
"""Number of compared training samples of all people, and the most and fewest of one person."""
TITLES = {
    "covariate": "P(x)",
    "label": "P(y)",
    "x_given_y": "P(x|y)",
    "y_given_x": "P(y|x)",
    "dependence": "dependence",
    "quantity": "quantity",
}


def load(target: str, root: str | None, sets: Sequence[str] = ()) -> Federation:
    """Load the data of an experiment file, or of a data set by its name.

    Args:
        target: a TOML file, or a name from `vergence data list`.
        root: the folder of the data; replaces the experiment's.
        sets: settings `federation.key=value` or `noise.key=value`.

    Raises:
        ConfigError: no such name, or an option is out of range.
        DataError: a file is missing, truncated or of another version.
    """
    from_file = target.endswith(".toml")
    table = read(Path(target)) if from_file else {"federation": {"name": target}}
    for item in sets:
        override(table, item)
    federation = table.get("federation")
    if not isinstance(federation, dict) or "name" not in federation:
        raise ConfigError(f"{target} needs federation = {{ name = ... }}")
    options = dict(federation)
    name, own = options.pop("name"), options.pop("root", None)
    # A name on the command line is the user's own; a file may come from somebody else, whose code
    # runs only if the user trusts it.
    with under(current_trust() if from_file else trust_in_own_file()):
        dataset = record_from_table(find("data", name, Dataset), options, f"federation ({name})")
    noise = record_from_table(Noise, table.get("noise", {}), "noise")
    few = record_from_table(FewSamples, table.get("few_data", {}), "few_data")
    return noise.apply(few.apply(dataset.load(data_root(own if root is None else root))))


def skew_of(federation: Federation) -> Skew:
    """Measure the skew of everybody's training samples.

    Raises:
        ConfigError: more than 200 people.
        DataError: a person has too few samples, or they hold nothing to compare.
    """
    people = federation.people
    # Distances between all pairs of samples are in memory at once: their number is limited.
    if len(people) > SAMPLES // LEAST:
        raise ConfigError(
            f"skew compares at most {SAMPLES // LEAST} people, '{federation.name}' has "
            f"{len(people):,}; set federation.people to fewer"
        )
    most = min(MOST, SAMPLES // len(people))
    splits = list(people.values())
    classes = max(
        (int(s.train.columns["label"].max()) + 1 for s in splits if "label" in s.train.columns),
        default=0,
    )
    views = {c: compact(s.train, most, classes) for c, s in people.items()}
    return measure_skew(views, [len(s.train) + len(s.val) + len(s.test) for s in splits])


def show(
    target: str,
    root: str | None,
    console: Console,
    sets: Sequence[str] = (),
    picture: Path | None = None,
) -> None:
    """Print every measure of every client, and draw the shares as a heat map in `picture`."""
    if picture is not None:
        figure_format(picture)
    federation = load(target, root, sets)
    found = skew_of(federation)
    if picture is not None:
        save(heat_map(found, federation.name), picture)
    console.print(table(found, federation.name))
    named = [name for i in range(len(found.clients)) if (name := found.dominating(i))]
    counts = {TITLES[m]: named.count(m) for m in MEASURES if m in named}
    console.print(
        f"Gini coefficient of the amounts {found.gini:.2f}; dominating: "
        + (", ".join(f"{title} {count}" for title, count in counts.items()) or "none")
        + f" of {plural(len(found.clients), 'person')}",
        highlight=False,
    )
    if picture is not None:
        console.print(f"picture: {picture}", soft_wrap=True)


def table(skew: Skew, name: str) -> Table:
    """Return one row per client: value (share), with a star if it is beyond chance."""
    caption = (
        "value (share), each client against all others; * beyond 99 % of what chance gives; "
        "dominating: the largest such share"
    )
    heads = [f"{TITLES[m]}\n{unit}" for m, unit in zip(MEASURES, skew.units, strict=True)]
    out = Table("", "samples", *heads, "dominating", title=f"skew of {name}", caption=caption)
    for i, client in enumerate(skew.clients):
        top = skew.dominating(i)
        marks = ["*" if skew.is_beyond_chance[i, j] else " " for j in range(len(MEASURES))]
        cells = [
            _cell(v, s, mark)
            for v, s, mark in zip(skew.value[i], skew.share[i], marks, strict=True)
        ]
        out.add_row(client, f"{skew.samples[i]:,}", *cells, TITLES[top] if top else "none")
    means = zip(skew.value.mean(0), skew.share.mean(0), strict=True)
    out.add_section()
    out.add_row("mean", f"{skew.samples.mean():,.0f}", *(_cell(v, s, " ") for v, s in means), "")
    return out


def _cell(value: float, share: float, mark: str) -> str:
    number = f"{value:.0f}" if value >= 20 else f"{value:.2f}"
    return f"{number} ({max(share, 0.0):.3f}){mark}"


@styled
def heat_map(skew: Skew, name: str) -> Figure:
    """Return a picture of the shares, clients by measures; cells within chance are pale."""
    count = len(skew.clients)
    figure = canvas(7, 1.6 + 0.28 * count)
    axes = figure.subplots()
    share = skew.share.clip(0, 1)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=max(share.max(), 0.05), aspect="auto")
    axes.set_xticks(range(len(MEASURES)), [TITLES[m] for m in MEASURES])
    axes.set_yticks(range(count), skew.clients)
    for (i, j), value in np.ndenumerate(share):
        dark = value > 0.6 * image.get_clim()[1]
        beyond = bool(skew.is_beyond_chance[i, j])
        axes.text(
            j,
            i,
            f"{value:.2f}{'*' if beyond else ''}",
            ha="center",
            va="center",
            fontsize=8,
            alpha=1.0 if beyond else 0.45,
            color="white" if dark else "black",
        )
    figure.colorbar(image, label="share")
    axes.set_title(f"skew of {name} (* beyond chance)")
    return figure
