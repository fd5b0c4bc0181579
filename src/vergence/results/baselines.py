"""Baselines without learning, described in words.

Used in `api`, `deployment`, `reports`, `results` and `studies`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vergence.results.layout import digits, number
from vergence.results.read import StudyResults

OWN_CONSTANT = "own constant"
"""Name in priors.csv of a deployment's baseline: each client always predicts one constant."""
GUESSES = {
    OWN_CONSTANT: "predicting a constant of each client's own, whatever is shown",
    "uniform": "calling every place alike",
    "centre": "predicting the centre",
    "global prior": "predicting where everybody looks most, whatever is shown",
    "personal prior": "predicting where the person looks most, whatever is shown",
    "motion": "predicting where something moves, rather in the middle",
    "mean gaze": "predicting everybody's mean direction",
    "personal mean": "predicting the person's own mean direction",
    "global mean": "predicting everybody's mean",
    "most frequent class": "always answering with everybody's most frequent class",
    "own most frequent": "always answering with the person's own most frequent class",
    "mean image": "drawing the mean of the person's own pictures",
    "best constant": "always giving the one answer that the loss likes best for everybody",
    "chance": "answering at random",
    "random": "choosing at random",
}
"""Name in priors.csv -> description of a baseline that ignores its input."""
REFERENCES = {
    "other people": "other people's gaze on the same pictures",
    "people": "what other people chose in the same videos",
}
"""Name in priors.csv -> description of a reference, which is not a guess.

A reference is made of what other people did when they were shown the same input.
"""
ALONE = {
    "kernel ridge alone": (
        "kernel ridge regression of each person's own samples alone, in closed form"
    ),
    "nearest picture": "where the person looked on the most alike picture of their own",
}
"""Name in priors.csv -> description of a learner that needs neither steps nor other people."""
NO_GUESS = "an upper reference, not a guess"


def plain(name: str) -> str:
    """Return a baseline's name in priors.csv in the form in which it is printed."""
    return name.replace("_", " ")


def kind(name: str) -> str:
    """Return the tag of a baseline's row in tables: `reference`, `alone` or `prior`.

    A reference is made of what other people did when they were shown the same input. `alone` is a
    learner of a person's own samples in closed form. A prior is a guess.
    """
    if plain(name) in REFERENCES:
        return "reference"
    return "alone" if plain(name) in ALONE else "prior"


def description(name: str) -> str:
    """Describe a baseline in words for any reader."""
    name = plain(name)
    if name in REFERENCES:
        return f"{REFERENCES[name]} ({NO_GUESS})"
    return {**GUESSES, **ALONE}.get(name, name)


def means(study: StudyResults, metric: str) -> dict[str, float]:
    """Return baseline -> mean over people of this metric, in the order of priors.csv."""
    by_name: dict[str, float] = {}
    for name, people in study.priors.items():
        values = [metrics.get(metric, np.nan) for metrics in people.values()]
        values = [value for value in values if np.isfinite(value)]
        if values:
            by_name[name] = float(np.mean(values))
    return by_name


def baseline_sentence(study: StudyResults, metric: str) -> str:
    """Return the sentence on what can be reached without any training.

    `vergence compare` prints it. The sentence names the best baseline that guesses, and each
    baseline made of what other people did on the same input. It is "" if no baseline was measured.
    """
    by_name = means(study, metric)
    guesses = {name: value for name, value in by_name.items() if kind(name) == "prior"}
    pick = min if metric in study.lower_is_better else max
    rows = [pick(guesses, key=guesses.__getitem__)] if guesses else []
    rows += [name for name in by_name if kind(name) == "reference"]
    if not rows:
        return ""
    places = digits(by_name.values())
    best = "the best guess, " if guesses else ""
    return f"Without any training: {best}{_in_words({n: by_name[n] for n in rows}, places)}."


def constant_notes(study: StudyResults) -> list[str]:
    """Return a line for each run whose mean is not better than that of the best guess."""
    metric = study.headline
    guesses = {name: value for name, value in means(study, metric).items() if kind(name) == "prior"}
    if not guesses:
        return []
    sign = -1 if metric in study.lower_is_better else 1
    name = max(guesses, key=lambda each: sign * guesses[each])
    places = digits([guesses[name]])
    rows = {run.label: run.estimates[metric].mean for run in study.runs if metric in run.estimates}
    # Written so that a mean that is NaN is not better.
    return [
        f"{label} does not beat a constant: its {metric} is {number(mean, places)}, and "
        f"{description(name)}, has {number(guesses[name], places)}"
        for label, mean in rows.items()
        if not sign * mean > sign * guesses[name]
    ]


def alone_sentence(study: StudyResults, metric: str) -> str:
    """Return the sentence on methods that do not beat the best learner alone, by their means.

    `vergence compare` prints it. It is "" if no such learner was measured. A guess that is better
    than every learner takes its place.
    """
    every = means(study, metric)
    if not any(kind(name) == "alone" for name in every):
        return ""
    by_name = {name: value for name, value in every.items() if kind(name) != "reference"}
    sign = -1 if metric in study.lower_is_better else 1
    name = max(by_name, key=lambda each: sign * by_name[each])
    rows = {run.title: run.estimates[metric].mean for run in study.runs if metric in run.estimates}
    worse = [title for title, mean in rows.items() if sign * mean <= sign * by_name[name]]
    places = digits([by_name[name]])
    comma = "," if kind(name) == "alone" else ""
    text = f"Without training a network: {description(name)}{comma} has "
    text += number(by_name[name], places)
    if not worse:
        return f"{text}; the mean of every method here is better."
    return f"{text}, and is not beaten by {', '.join(worse)}."


def _in_words(by_name: Mapping[str, float], places: int) -> str:
    return "; ".join(
        f"{description(name)}, has {number(value, places)}"
        if kind(name) == "prior"
        else f"{description(name)} has {number(value, places)}"
        for name, value in by_name.items()
    )
