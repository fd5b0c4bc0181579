"""The report: one self-contained HTML page per study with tables, figures and how to repeat it.

Used by `api.comparison`, `api.finished_run` and `cli.runs`.
"""

import html
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from vergence.core.files import refuse_links, write_text
from vergence.core.naming import dotted
from vergence.errors import ConfigError, nearest
from vergence.monitoring.unfinished import unfinished
from vergence.reports.plots import class_accuracy, gaze_maps, groups
from vergence.reports.plots import masks as plot_masks
from vergence.reports.plots import results as plots
from vergence.results.baselines import kind
from vergence.results.figure_style import colours, inline, save
from vergence.results.layout import CROWD, digits, metric_name, number
from vergence.results.read import Run, StudyResults, read
from vergence.results.significance import best, judge
from vergence.studies import class_partition
from vergence.studies.compare import (
    ANYTHING,
    ComparisonRow,
    check_comparable,
    headline_cells,
    rows,
    with_harm_so_far,
)
from vergence.studies.comparison_tables import best_mean, best_pairs, chance, paired_cells

FIGURES: Mapping[str, Callable[[StudyResults], Figure | None]] = {
    "persons": plots.persons,
    "classes": class_partition.of_study,
    "per_class": class_accuracy.of_study,
    "groups": groups.of_study,
    "slope": plots.slope,
    "convergence": plots.convergence,
    "masks": plots.masks,
    "layers": plot_masks.layers,
    "overlap": plot_masks.overlap,
    "bytes": plots.traffic,
    "strip": gaze_maps.strip,
    "overview": plot_masks.overview,
    "tokens": lambda _: gaze_maps.tokens(),
}

NEEDS = {
    "classes": "samples with classes (task images), of at most 100 people",
    "per_class": "accuracies by class (per_class.csv, written for the task zero_shot)",
    "groups": "a method with groups (cfedvs, fedgroup, ifca), and at most 100 people",
    "slope": "a local-only run and another one (add local_only to methods)",
    "masks": "a method with personal masks (fedcpf, fedselect)",
    "layers": "a method with personal masks (fedcpf, fedselect)",
    "overlap": "a method with personal masks (fedcpf, fedselect)",
    "overview": "a method with personal masks (fedcpf, fedselect)",
    "strip": "heat maps (maps.npz, written for the task gaze_map)",
}

SECTIONS = (
    (
        "persons",
        "Everyone at a glance",
        "Each dot is a person, seeds averaged. The diamond is the mean over people, the bar its "
        "95 % interval. Rows above the dotted line need no training.",
    ),
    (
        "classes",
        "Who has what",
        "People by classes; the area of a disc is the number of training samples.",
    ),
    (
        "per_class",
        "Class by class",
        "Accuracy of every class, seeds and people averaged; of starred classes whoever predicts "
        "had no samples.",
    ),
    (
        "groups",
        "Who is grouped with whom",
        "Every group has a model of its own; a line leads from it to each person that it serves at "
        "the end of the first seed. Beside a name stands the person's headline in that seed.",
    ),
    (
        "slope",
        "Who gains, who loses",
        "Each line is one person, from a model trained alone to the federated one. Dashed dark "
        "lines are people whose score is worse by more than 1 %: column 'harmed' of the results "
        "says for whom that is shown. The thick line is the mean.",
    ),
    (
        "strip",
        "What they look at",
        "Heat maps for the same held-out samples, one row per method, the truth on top. Dots are "
        "the real gaze points.",
    ),
    (
        "convergence",
        "Convergence",
        "Mean over people after so many rounds (P0: what each person would use next, before "
        "training further). The band runs from the lowest to the highest seed.",
    ),
    (
        "bytes",
        "What it costs to send",
        "Left: what is reached for the bytes a client has sent. Right: bytes per client and round "
        "as counted on the wire, change against FedAvg.",
    ),
    (
        "masks",
        "How much becomes personal",
        "Share of the parameters that a client keeps to itself as the rounds go by: thin lines are "
        "people, the thick one is their mean. Right: each person at the end.",
    ),
    (
        "layers",
        "Where it becomes personal",
        "Personal share of every layer, input on top, one column per person.",
    ),
    (
        "overlap",
        "Do people keep the same parameters?",
        "Jaccard index of two people's masks: 1 = the same entries. Chance is what two random "
        "masks of this size would share.",
    ),
    (
        "overview",
        "One round, with the real masks",
        "Every client keeps its orange entries and sends the blue ones; the server averages each "
        "entry over those who share it.",
    ),
)

CROWDED = {
    "persons": "How many people have which value, seeds averaged. Dots are the five lowest and the "
    "five highest; the diamond is the mean over people, the bar its 95 % interval. Rows above the "
    "dotted line need no training.",
    "slope": "How many people gain how much, from a model trained alone to the federated one. Dark "
    "parts are people whose score is worse by more than 1 %: column 'harmed' of the results says "
    "for whom that is shown. The thick line is the mean.",
    "masks": "Share of the parameters that a client keeps to itself as the rounds go by, mean "
    "over people. Right: how many people end where.",
    "layers": "Personal share of every layer, input on top, one column per person, of at most a "
    "thousand; columns are in the order of their sums.",
    "overlap": "How many pairs of people have masks with which Jaccard index: 1 = the same "
    "entries. Chance is what two random masks of this size would share.",
    "overview": "Every client keeps its orange entries and sends the blue ones; the server "
    "averages each entry over those who share it. Its colours are those of at most a hundred "
    "people, spread over all.",
}
"""Captions of figures that show more than `CROWD` people in another way."""
WORST = 10
"""People of a crowd who are listed for each method."""
LEVELS = {"lowest": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "highest": 100}
"""Percentiles that are listed of a crowd."""

# Figures of more inches scroll on a telephone: shrunk to its width, their letters are too small.
WIDE = 6

AFTERWARDS = ("verify", "compare", "report")
"""What may be done with a finished run."""


def report(folder: Path | str, study: StudyResults | None = None) -> Path:
    """Write `report.html` into a folder of runs, or one run directory; return its path.

    Args:
        folder: what `vergence run --out` wrote, or a run directory below.
        study: the results of this folder, if they were read already.

    Raises:
        StateError: there is no finished run, or links in its folder lead elsewhere.
        PartialRun: the page cannot be written.
    """
    study = study or read(folder)
    # The page holds results of single people: a link in a folder from somebody else could lead it
    # over another file of the user.
    refuse_links(study.folder)
    study = with_harm_so_far(study)
    environment = Environment(
        loader=PackageLoader("vergence.reports"),
        # Names of people and methods come from files: none may become HTML of the page.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(_context(study))
    path = study.folder / "report.html"
    write_text(path, page)
    return path


def figure(folder: Path | str, name: str, path: Path | str) -> Path:
    """Write one figure as png, svg or pdf.

    Raises:
        ConfigError: an unknown figure, or the runs lack what it needs.
        StateError: links in the folder lead elsewhere.
    """
    if name not in FIGURES:
        raise ConfigError(f"no figure '{name}'{nearest(name, FIGURES)}")
    if (drawn := FIGURES[name](read(folder))) is None:
        raise ConfigError(f"figure '{name}' needs {NEEDS[name]}; {folder} has none")
    refuse_links(Path(folder))
    return save(drawn, path)


def _context(study: StudyResults) -> dict[str, Any]:
    listed = rows(study)
    first = study.runs[0]
    judged = judge(study)
    return {
        "task": first.results["task"].replace("_", " "),
        "federation": _federation(first),
        "findings": [*best_mean(study, study.headline), *best_pairs(study, study.headline, judged)],
        "poisoned": next((run.poison for run in study.runs if run.poison), ""),
        "unfinished": unfinished(study.folder),
        "notes": check_comparable(study.runs, ANYTHING),
        "facts": _facts(study),
        "headline": metric_name(study.headline),
        "lower": study.headline in study.lower_is_better,
        "table": _table(study, listed),
        "pairs": [
            {
                "a": study.run(j.pair.a).title,
                "b": study.run(j.pair.b).title,
                "cells": [*paired_cells(j.pair), chance(j.holm)],
                "different": j.different,
                "word": j.word,
            }
            for j in judged
        ],
        "people": [_people(study, metric) for metric in first.estimates],
        "crowd": len(first.people) if len(first.people) > CROWD else 0,
        "worst": WORST,
        "figures": list(_figures(study)),
        "trouble": list(_trouble(study)),
        "runs": [_recipe(run) for run in study.runs],
        # The command has a place of its own on the page, ready to be copied.
        "provenance": [
            (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in dotted(first.provenance)
            if name != "command"
        ],
        "repeat": _repeat(_command(first), study.folder),
    }


def _federation(run: Run) -> str:
    # Runs of early versions wrote the name alone.
    federation = run.results["federation"]
    name = federation.get("name", "") if isinstance(federation, Mapping) else str(federation)
    return name.replace("_", " ")


def _facts(study: StudyResults) -> list[tuple[str, str]]:
    first = study.runs[0]
    count, trained = len(first.people), first.results.get("clients", 0)
    text = f"people measured of {trained}" if trained > count else "people"
    rounds = first.results.get("rounds")
    seconds = sum(float(r.results.get("seconds") or 0) for r in study.runs)
    return [
        (str(count), text),
        _many(first.seeds, "seed"),
        *([(str(rounds), "rounds")] if "rounds" in first.results else []),
        _many(study.runs, "method"),
        *([(_duration(seconds), "of computing")] if seconds else []),
    ]


def _many(things: Sequence[Any], name: str) -> tuple[str, str]:
    return str(len(things)), name if len(things) == 1 else f"{name}s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _repeat(command: str, folder: Path) -> str:
    """Return commands that repeat a run and inspect it, for the current working directory."""
    at = folder.resolve()
    near = at.relative_to(Path.cwd()) if at.is_relative_to(Path.cwd()) else folder
    # Quoted: the line is copied into a shell, and a folder's name may hold blanks or worse.
    quoted = shlex.quote(str(near))
    return "\n".join([command, *(f"vergence {verb} {quoted}" for verb in AFTERWARDS)])


def _table(study: StudyResults, listed: Sequence[ComparisonRow]) -> dict[str, Any]:
    """Return the headline table, with the ends of each row's interval in percent of its width."""
    tint = colours(study.runs)
    others = [m for m in study.runs[0].estimates if m != study.headline]
    shown = [r.metrics[study.headline] for r in listed if study.headline in r.metrics]
    low, high = min(e.lo for e in shown), max(e.hi for e in shown)
    # All values may be equal, as for one method and one person.
    span = (high - low) or 1.0
    places = {m: digits(r.metrics[m].mean for r in listed if m in r.metrics) for m in others}
    leader = best(study, study.headline)
    lines = []
    for row in listed:
        e = row.metrics.get(study.headline)
        ends = [100 * (v - low) / span for v in (e.lo, e.mean, e.hi)] if e else None
        cells = [
            (number(row.metrics[m].mean, places[m]), _hover(row.metrics[m], places[m]))
            if m in row.metrics
            else ("", "")
            for m in others
        ]
        lines.append(
            {
                "name": row.name,
                "prior": row.prior,
                "kind": kind(row.label) if row.prior else "",
                "best": leader is not None and row.label == leader.label and len(study.runs) > 1,
                "colour": tint.get(row.label, "var(--muted)"),
                "cells": headline_cells(listed, row, study.headline),
                "ends": ends,
                "others": cells,
            }
        )
    names = [metric_name(m) + (" ↓" if m in study.lower_is_better else "") for m in others]
    return {"lines": lines, "others": names}


def _hover(e: tuple[float, ...], places: int) -> str:
    _, lo, hi, _, worst = e
    return (
        f"95 % interval {number(lo, places)} to {number(hi, places)}; worst {number(worst, places)}"
    )


def _people(study: StudyResults, metric: str) -> dict[str, Any]:
    """Return one metric person by person; the worst person of each method is marked."""
    tint = colours(study.runs)
    scores = {run.label: run.scores(metric) for run in study.runs}
    people = list(dict.fromkeys(p for by_person in scores.values() for p in by_person))
    places = digits(v for by_person in scores.values() for v in by_person.values())
    pick, prefer = (max, min) if metric in study.lower_is_better else (min, max)
    worst = {label: pick(own, key=own.__getitem__) for label, own in scores.items() if own}
    heads = [(run.title, tint[run.label]) for run in study.runs]
    lower = metric in study.lower_is_better
    lines = []
    if len(people) > CROWD:
        lines = _percentiles([list(own.values()) for own in scores.values()], places)
        people = list(dict.fromkeys(p for own in scores.values() for p in _last(own, lower)))
    for person in people:
        here = {k: f[person] for k, f in scores.items() if person in f}
        top = prefer(here.values())
        cells = [
            {
                "text": number(here.get(run.label, math.nan), places),
                "worst": worst.get(run.label) == person,
                "best": len(here) > 1 and here.get(run.label) == top,
            }
            for run in study.runs
        ]
        lines.append({"person": person, "cells": cells})
    return {"metric": metric_name(metric), "lower": lower, "heads": heads, "lines": lines}


def _percentiles(columns: Sequence[Sequence[float]], places: int) -> list[dict[str, Any]]:
    """Return a line of the table of people for every level, with a cell for each column."""

    def cell(column: Sequence[float], level: int) -> dict[str, Any]:
        value = np.nanpercentile(column, level) if column else math.nan
        return {"text": number(value, places), "worst": False, "best": False}

    return [
        {"person": name, "cells": [cell(column, level) for column in columns]}
        for name, level in LEVELS.items()
    ]


def _last(scores: Mapping[str, float], lower: bool) -> list[str]:
    """Return the people with the worst scores; nobody's are worse than those that are NaN."""
    sign = -1 if lower else 1
    return sorted(scores, key=lambda p: (not math.isnan(scores[p]), sign * scores[p]))[:WORST]


def _figures(study: StudyResults) -> Iterator[dict[str, Any]]:
    crowded = CROWDED if len(study.runs[0].people) > CROWD else {}
    for name, heading, text in SECTIONS:
        caption = crowded.get(name, text)
        if (drawn := FIGURES[name](study)) is not None:
            # `Markup` ends the escaping: matplotlib has escaped the names within its SVG.
            svg = inline(drawn, html.escape(f"{heading}. {caption}"))
            section = {"id": name, "heading": heading, "caption": caption, "svg": Markup(svg)}
            # Number, name and colour of the curves of a figure that a reader can switch off.
            tint = colours(study.runs)
            runs = [(i, run.title, tint[run.label]) for i, run in enumerate(study.runs)]
            curves = [curve for curve in runs if f'data-curve="{curve[0]}"' in svg]
            yield section | {
                # A switch for a single curve would leave an empty figure.
                "curves": curves if len(curves) > 1 else [],
                "wide": drawn.get_figwidth() > WIDE,
            }


def _trouble(study: StudyResults) -> Iterator[tuple[str, str, int]]:
    """Yield method, status and number of the clients' turns that did not count."""
    for run in study.runs:
        counted = Counter(run.turns.status[run.turns.status != "ok"])
        for status, count in counted.most_common():
            yield run.title, status, count


def _recipe(run: Run) -> dict[str, Any]:
    prints = sorted((run.results.get("fingerprint") or {}).items(), key=lambda kv: int(kv[0]))
    return {
        "name": run.title,
        "label": run.label,
        "config": run.config.strip(),
        "prints": [(seed, str(value)) for seed, value in prints],
        "peak": number(float(run.results.get("peak_mb") or math.nan), 0),
    }


def _command(run: Run) -> str:
    command = run.provenance.get("command", "")
    return command if isinstance(command, str) else " ".join(map(str, command))
