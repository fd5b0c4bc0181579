"""Predictors that need no training, by names that say what each of them is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vergence.results.layout import digits, number
from vergence.results.read import StudyResults

OWN_CONSTANT = "own constant"
"""Name in priors.csv of a deployment, where each client scores a constant of its own."""
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
"""Name in priors.csv -> what is predicted, whatever is shown."""
REFERENCES = {
    "other people": "other people's gaze on the same pictures",
    "people": "what other people chose in the same videos",
}
"""Name in priors.csv -> what others did who were shown the same: this is no guess."""
NO_GUESS = "an upper reference, not a guess"


def plain(name: str) -> str:
    """A name of priors.csv, as printed."""
    return name.replace("_", " ")


def kind(name: str) -> str:
    """The tag of a row in a table: a prior, or a reference, made by others shown the same."""
    return "reference" if plain(name) in REFERENCES else "prior"


def description(name: str) -> str:
    """A predictor in words for any reader."""
    name = plain(name)
    if name in REFERENCES:
        return f"{REFERENCES[name]} ({NO_GUESS})"
    return GUESSES.get(name, name)


def means(study: StudyResults, metric: str) -> dict[str, float]:
    """Mean over people by name, of the predictors with this metric, in the file's order."""
    found: dict[str, float] = {}
    for name, people in study.priors.items():
        values = [told.get(metric, np.nan) for told in people.values()]
        values = [value for value in values if np.isfinite(value)]
        if values:
            found[name] = float(np.mean(values))
    return found


def baseline_sentence(study: StudyResults, metric: str) -> str:
    """The sentence on what needs no training, to stand beside the best trained method.

    It names the best guess and every upper reference; "" where none was measured.
    """
    found = means(study, metric)
    guesses = {name: value for name, value in found.items() if kind(name) == "prior"}
    pick = min if metric in study.lower_is_better else max
    told = [pick(guesses, key=guesses.__getitem__)] if guesses else []
    told += [name for name in found if kind(name) == "reference"]
    if not told:
        return ""
    places = digits(found.values())
    best = "the best guess, " if guesses else ""
    return f"Without any training: {best}{_listed({n: found[n] for n in told}, places)}."


def _listed(found: Mapping[str, float], places: int) -> str:
    return "; ".join(
        f"{description(name)}, has {number(value, places)}"
        if kind(name) == "prior"
        else f"{description(name)} has {number(value, places)}"
        for name, value in found.items()
    )
