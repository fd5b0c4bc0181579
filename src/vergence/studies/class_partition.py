"""`vergence data partition`: numbers of images by person and class, as a table and a picture.

Used by `cli.data` and `reports.html`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from vergence.errors import ConfigError
from vergence.experiment.class_counts import FILE, MOST, Counts, counts
from vergence.results.figure_style import (
    MUTED,
    SHARED,
    canvas,
    column_names,
    figure_format,
    save,
    styled,
)
from vergence.results.read import StudyResults, table

NAMED = 30
"""Largest number of classes or people whose names the picture shows."""


def of_study(study: StudyResults) -> Figure | None:
    """Draw everybody's classes in a run; None if samples have no classes.

    Raises:
        StateError: the run's table is damaged.
    """
    # The folder of one of several methods lies below the table.
    homes = (study.folder, study.folder.parent)
    path = next((home / FILE for home in homes if (home / FILE).is_file()), None)
    if path is None:
        return None
    found = {
        person: dict(zip(own["class"], own.samples, strict=True))
        for person, own in table(path).groupby("person", sort=False)
    }
    return bubbles(found) if found else None


@styled
def bubbles(counts: Counts) -> Figure:
    """Return a figure of people by classes; a disc's area is the number of training samples."""
    people, kinds = list(counts), list(next(iter(counts.values())))
    cell = 0.3 if max(len(people), len(kinds)) <= NAMED else 0.16
    figure = canvas(1.9 + cell * max(len(people), 8), 1.2 + cell * max(len(kinds), 8))
    axes = figure.add_subplot()
    most = max(max(own.values()) for own in counts.values())
    for column, own in enumerate(counts.values()):
        for row, count in enumerate(own.values()):
            if count:
                # matplotlib takes areas in square points, of which an inch has 72 on a side.
                area = (0.9 * cell * 72) ** 2 * count / most
                axes.scatter(column, row, s=area, color=SHARED, edgecolor=MUTED, linewidth=0.4)
    axes.set(xlim=(-0.7, len(people) - 0.3), ylim=(len(kinds) - 0.3, -0.7))
    if len(people) <= NAMED:
        column_names(axes, people)
    if len(kinds) <= NAMED:
        axes.set_yticks(range(len(kinds)), kinds)
    else:
        axes.set_ylabel("class")
    axes.set_title(f"training samples, the largest disc {most:,}")
    return figure


def show(
    target: str,
    root: str | None,
    console: Console,
    sets: Sequence[str] = (),
    picture: Path | None = None,
) -> None:
    """Print everybody's number of training samples of each class; draw them in `picture`.

    Raises:
        ConfigError: samples have no classes, or there are too many people.
    """
    # Reports import this module, and need not load all of scipy's tests with it.
    from vergence.studies.skew import load

    if picture is not None:
        figure_format(picture)
    federation = load(target, root, sets)
    if len(federation.people) > MOST:
        raise ConfigError(
            f"partition shows at most {MOST} people, '{federation.name}' has "
            f"{len(federation.people):,}; set federation.people to fewer"
        )
    if (found := counts(federation)) is None:
        raise ConfigError(
            f"partition counts classes, and samples of '{federation.name}' have no `label`; "
            "`vergence data skew` shows how any data differ"
        )
    # One row per person: the classes they have, with training samples, and test samples.
    out = Table("", "training", "test", "classes", "of which", title=f"{federation.name}, by class")
    for person, own in found.items():
        present = {kind: n for kind, n in own.items() if n}
        text = ", ".join(f"{kind} {n:,}" for kind, n in present.items())
        tested = len(federation.people[person].test)
        out.add_row(person, f"{sum(own.values()):,}", f"{tested:,}", str(len(present)), text)
    console.print(out)
    console.print(federation.about.get("split", ""), highlight=False)
    if picture is not None:
        save(bubbles(found), picture)
        console.print(f"picture: {picture}", soft_wrap=True)
