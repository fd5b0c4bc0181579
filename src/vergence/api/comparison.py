"""The tables of `vergence compare` for notebooks and scripts."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vergence.api.finished_run import FinishedRun
from vergence.errors import ConfigError, nearest
from vergence.monitoring.unfinished import unfinished_lines
from vergence.results.divergence import run_notes
from vergence.results.read import StudyResults
from vergence.results.significance import Unit
from vergence.results.text_tables import TextTable
from vergence.studies import compare as tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Characters in a line of the printed tables: a text has no terminal whose width could be taken.
WIDTH = 120
PIXELS = 80
"""Pixels per inch of a figure in a notebook."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of methods: means, fairness to people, and significant differences.

    It prints as `vergence compare` does, and is displayed as tables in a notebook.
    """

    parts: tables.Parts
    rows: tuple[tables.ComparisonRow, ...]
    notes: tuple[str, ...]
    study: StudyResults = field(repr=False)

    @property
    def table(self) -> DataFrame:
        """One row per method and baseline: mean and interval of every metric, and costs."""
        import pandas as pd

        return pd.read_csv(io.StringIO(tables.to_csv(self.rows)), index_col="row")

    @property
    def tests(self) -> DataFrame:
        """One row per pair of methods: mean difference over people, its interval, and p-values.

        Methods are paired with FedAvg and local-only training, or with a `reference` run. The table
        is empty if there is no such run.
        """
        return self._records("tests")

    @property
    def fairness(self) -> DataFrame:
        """One row per method: worst and best scores of people, spread, and people harmed."""
        return self._records("fairness")

    @property
    def ranks(self) -> DataFrame:
        """One row per method: its mean rank over people; empty for fewer than three methods."""
        return self._records("ranks")

    def figure(self, name: str = "persons") -> Picture:
        """Draw a figure of the HTML report, such as one dot per person, or convergence.

        Args:
            name: persons, convergence, bytes, slope or another name of `vergence report --figure`.

        Raises:
            ConfigError: there is no such figure, or the runs lack data for it; the message says
                which of the two.
        """
        from vergence.reports.html import FIGURES, NEEDS

        if name not in FIGURES:
            known = ", ".join(FIGURES)
            raise ConfigError(f"no figure '{name}'{nearest(name, FIGURES)}; there are {known}")
        if (figure := FIGURES[name](self.study)) is None:
            raise ConfigError(f"figure '{name}' needs {NEEDS[name]}")
        return Picture(figure)

    def markdown(self) -> str:
        """Return the tables in Markdown."""
        return "\n".join(block.markdown() for block in self._blocks())

    def _records(self, part: tables.Part) -> DataFrame:
        import pandas as pd

        blocks = self.parts[part]
        return pd.DataFrame(list(blocks[0].records)) if blocks else pd.DataFrame()

    def _blocks(self) -> Iterable[TextTable]:
        return (block for blocks in self.parts.values() for block in blocks)

    def __repr__(self) -> str:
        text = io.StringIO()
        tables.print_parts(self.parts, Console(file=text, width=WIDTH), notes=self.notes)
        return text.getvalue()

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>Note: {html.escape(note)}</p>" for note in self.notes)
        return notes + "".join(map(html_table, self._blocks()))


@dataclass(frozen=True)
class Picture:
    """A figure that a notebook displays.

    Attributes:
        figure: the matplotlib figure, which may be changed.
    """

    figure: Figure

    def save(self, path: Path | str) -> Path:
        """Write the figure in the format of the file's ending: png, svg or pdf.

        Raises:
            ConfigError: the file has another ending.
        """
        from vergence.results.figure_style import save

        return save(self.figure, path)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=PIXELS)
        return content.getvalue()


def compare(
    *runs: Any,
    metric: str | None = None,
    reference: str | None = None,
    margin: float | None = None,
    unit: Unit = "person",
    allow: Iterable[str] = (),
) -> Comparison:
    """Compare finished runs.

    Args:
        runs: runs, mappings of runs as `run_experiment` returns them, or folders. A mapping's keys,
            which may be any text, name its runs in tables.
        metric: metric whose differences are tested; default: the headline metric.
        reference: label of the run with which all others are paired; default: FedAvg and
            local-only.
        margin: largest difference, in the metric's units, that does not matter. It adds a test of
            equivalence. Choose it before you look at results.
        unit: what counts as one observation: "person" (the mean over seeds), or "person-seed" (a
            person in one seed).
        allow: settings in which runs may differ, such as "rounds" or "local.lr".

    Raises:
        ConfigError: there is no run; or runs differ in a setting that would make the table unfair,
            and the message names it.
    """
    listed = [
        run for item in runs for run in (item.values() if isinstance(item, Mapping) else [item])
    ]
    if wrong := [item for item in listed if not isinstance(item, FinishedRun | str | Path)]:
        raise ConfigError(
            f"compare takes runs, as vergence.train gives them, or their folders; got {wrong[0]!r}"
        )
    allowed = [allow] if isinstance(allow, str) else list(allow)
    folders = [item.folder if isinstance(item, FinishedRun) else Path(item) for item in listed]
    study, names = tables.gather(folders, allowed), _names(runs)
    named = tuple(replace(run, label=names.get(run.folder, run.label)) for run in study.runs)
    if len({run.label for run in named}) == len(named):
        study = replace(study, runs=named)
    finished = [item for item in listed if isinstance(item, FinishedRun)]
    called = Counter(names.get(item.folder, item.label) for item in finished)
    twice = [label for label, times in called.items() if times > 1]
    parts = tables.blocks(study, metric, reference, margin, unit)
    alike = [f"several runs are called '{m}': give train label= to tell them apart" for m in twice]
    notes = [*alike, *unfinished_lines(folders), *tables.check_comparable(study.runs, allowed)]
    notes += dict.fromkeys(line for run in study.runs for line in run_notes(run))
    return Comparison(parts, tuple(tables.rows(study)), tuple(notes), study)


def _names(runs: Iterable[Any]) -> dict[Path, str]:
    """Return run directory -> key, for the runs in mappings."""
    pairs = [pair for item in runs if isinstance(item, Mapping) for pair in item.items()]
    return {run.folder: str(key) for key, run in pairs if isinstance(run, FinishedRun)}


def html_table(block: TextTable) -> str:
    """Return a table as HTML; its notes follow below it."""
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in block.heads)
    lines = "".join(
        f"<tr{' style=opacity:0.6' if number in block.dim else ''}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in line)
        + "</tr>"
        for number, line in enumerate(block.lines)
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in block.notes)
    caption = f"<caption>{html.escape(block.heading)}</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{notes}"
