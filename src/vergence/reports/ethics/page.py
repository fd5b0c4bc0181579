"""`vergence privacy ethics`: an offline page in plain words, its facts as JSON, and cards.

Used by `cli.privacy`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from jinja2 import Environment, PackageLoader, StrictUndefined

from vergence.core.federation import Federation
from vergence.core.files import refuse_links, write_text
from vergence.errors import ConfigError, DataError, nearest, printable
from vergence.experiment import checksums
from vergence.experiment.privacy.study_description import StudyDescription
from vergence.experiment.schema import Experiment, load
from vergence.experiment.validation import validate
from vergence.reports.ethics.facts import facts, texts
from vergence.results.read import StudyResults, read

PAGE, FACTS = "ethics.html", "ethics.json"
CARDS = ("privacy_card.md", "model_card.md", "dataset_card.md")
# Words that a board would read as a promise of privacy.
CLAIM = re.compile(r"\bprivate(ly)?\b|\banonym\w*", re.IGNORECASE)
SPECIAL = re.compile(r"[&<>|*\[\]\\]")
"""Characters with a meaning in Markdown, within a line or a cell of a table."""
WIDE, HIGH, TOP = 32, 17, 64
"""Of the drawing: letters in a line, the height of a line, and the offset of a box's text."""
MEASURED_ONLY = "measurements alone, nothing that was learned"
"""What leaves a device if no update does."""
LARGE = 1000
"""Numbers from here on are printed without decimals."""


class PageSource(NamedTuple):
    """A method of an experiment, with its data and its finished run if they are on this machine."""

    experiment: Experiment
    label: str
    people: Federation | None
    study: StudyResults | None


def ethics(
    source: Path,
    out: Path | None = None,
    label: str | None = None,
    study: StudyDescription | None = None,
) -> Path:
    """Write page, JSON and cards of a run or a planned experiment; return the page.

    Args:
        source: what `vergence run --out` wrote, a run directory below, or an experiment file.
        out: folder of the page; default that of the run.
        label: label of the method; None if there is only one.
        study: the study's description; None: the table `study` of the experiment.

    Raises:
        ConfigError: an experiment file without `out`; several methods and no `label`, or one that
            is not there; or something says "private" of a plan that promises nothing about people.
        DataError: a plan's privacy budget cannot be computed, as its data are not here.
        StateError: the run is unfinished, or links in its folder lead elsewhere.
        PartialRun: a file cannot be written.
    """
    subject = page_source(source, label)
    if study is not None:
        subject = subject._replace(experiment=replace(subject.experiment, study=study))
    plan = facts(*subject)
    # Before anything is written: a board must not get a page whose words promise too much.
    refuse_claims(plan, source.name)
    if out is None and source.is_file():
        raise ConfigError(f"{source} is a plan, not a run: say where its page goes, --out FOLDER")
    if out is None:
        refuse_links(source)
    folder = source if out is None else out
    values = {
        "plan": plan,
        "drawing": drawing,
        "name": source.name,
        "version": version("vergence"),
    }
    for name in (PAGE, *CARDS):
        write_text(folder / name, environment(name).get_template(name).render(values))
    whole = {"made_by": f"vergence {version('vergence')}", "of": source.name, "plan": plan}
    write_text(folder / FACTS, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return folder / PAGE


def environment(name: str) -> Environment:
    """Return the environment of a template, in which texts of a folder stay plain text."""
    # A folder may come from somebody else, whose names could carry scripts or forged rows.
    template_environment = Environment(
        loader=PackageLoader("vergence.reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=name == PAGE,
        finalize=shown if name == PAGE else in_markdown,
    )
    template_environment.filters["number_text"] = number_text
    return template_environment


def shown(value: Any) -> Any:
    """Return a text as one line, without invisible or direction-changing characters."""
    return printable(" ".join(value.split())) if type(value) is str else value


def in_markdown(value: Any) -> Any:
    """Return a text as Markdown that prints it literally: no tag, link, cell or emphasis."""
    return (
        SPECIAL.sub(lambda match: f"&#{ord(match[0])};", shown(value))
        if type(value) is str
        else value
    )


def sources(source: Path, label: str | None = None) -> Iterator[PageSource]:
    """Yield the methods of a file or folder; from a file only that of `label`, if it is given.

    Raises:
        ConfigError: the file has no method of this label.
        StateError: there is no run, or it is unfinished.
    """
    if source.is_file():
        experiment = load(source, only=label)
        people = here(experiment, needed=experiment.plan.privacy.spends)
        for label in experiment.methods:
            yield PageSource(experiment, label, people, None)
        return
    study = read(source)
    checksums.notice([source, *(run.folder for run in study.runs)])
    people: Federation | None = None
    for number, run in enumerate(study.runs):
        experiment = load(run.folder / "config.toml")
        people = people if number else here(experiment)
        yield PageSource(
            experiment,
            next(iter(experiment.methods)),
            people,
            StudyResults(study.folder, (run,), study.priors),
        )


def page_source(source: Path, label: str | None) -> PageSource:
    """Return the method of a file or folder that the page is about.

    Raises:
        ConfigError: there are several and no `label`, or none of this label.
    """
    by_label = {method.label: method for method in sources(source, label)}
    if label is None and len(by_label) == 1:
        return next(iter(by_label.values()))
    if label in by_label:
        return by_label[label]
    named = ", ".join(by_label)
    if label is None:
        raise ConfigError(
            f"{source} has {len(by_label)} methods, and a board decides about one plan: choose it "
            f"with --method, one of {named}"
        )
    raise ConfigError(f"{source} has no method '{label}', but {named}{nearest(label, by_label)}")


def here(experiment: Experiment, needed: bool = False) -> Federation | None:
    """Return the data as a network takes them, None if they are not on this machine.

    Raises:
        DataError: they are not here and `needed`, to compute a privacy budget.
    """
    try:
        return validate(experiment).ready
    except DataError:
        if needed:
            raise
        return None


def refuse_claims(plan: Mapping[str, Any], name: str = "") -> None:
    """Refuse the words "private" and "anonymous" in a plan, or its file's name, without a proof.

    Raises:
        ConfigError: quotes the text.
    """
    if plan["backed"]:
        return
    for text in (name, *texts(plan)):
        # NFKC and blanks: full-width letters or underscores must not hide a claim.
        if (claim := CLAIM.search(normalize("NFKC", text).replace("_", " "))) is not None:
            raise ConfigError(
                f"'{textwrap.shorten(text, 80)}' says '{claim[0]}', and '{plan['label']}' has no "
                "epsilon of 10 or less per person that backs it; name it otherwise, or set "
                "privacy.user"
            )


def number_text(value: float | None, places: int = 3) -> str:
    """Return a number as the page prints it."""
    if value is None:
        return "not known"
    whole = isinstance(value, int) or abs(value) >= LARGE
    return f"{value:,.0f}" if whole else f"{value:.{places}g}"


def drawing(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts in lines of the drawing's boxes and arrows, and the drawing's height."""
    up = [row["what"] for row in plan["leaves"] if row["up"] and row["counted"]]
    alone = [MEASURED_ONLY] if any(row["up"] for row in plan["leaves"]) else ["nothing"]
    down = [row["what"] for row in plan["leaves"] if not row["up"]]
    sees = dict(plan["sees"])
    server = next(iter(sees))
    helpers = next((who for who in sees if who.startswith("the helpers")), "")
    boxes = {
        "stays": wrapped(plan["stays"] or ["nothing: everything is sent away"]),
        "server": server.removeprefix("whoever runs "),
        "sees": wrapped([sees[server]]),
        "up": wrapped([*dict.fromkeys(up)] or alone),
        "down": wrapped([*dict.fromkeys(down)] or ["nothing"]),
        "helpers": helpers,
    }
    lines = max(len(boxes["stays"]), len(boxes["sees"]), len(boxes["up"]) + len(boxes["down"]) + 5)
    return {**boxes, "high": TOP + HIGH * (lines + 1), "step": HIGH}


def wrapped(parts: Sequence[str]) -> list[str]:
    """Return texts in lines that fit a box."""
    return [line for part in parts for line in textwrap.wrap(part, WIDE)]
