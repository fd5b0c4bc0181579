"""Re-identification table of `vergence privacy audit`: people recognised, and gaze read.

Everybody's training pictures are known by name, everybody's test pictures are of other days and
asked for. What is asked is what the server of the run was sent: smashed data, and labels where the
method sends them; where it does not, gaze is read from smashed data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vergence.attacks.identity import IdentifiedSamples, in_place, votes
from vergence.attacks.label_inference import LabelInferenceAttack
from vergence.attacks.score import Classifier, Rate
from vergence.audit.images import few
from vergence.core.data import Samples, Splits
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.results.text_tables import Record, TextTable

KNOWN, ASKED, BATCH = 100, 64, 32
"""Pictures per person that are known, that are asked, and asked together."""
READ = 5
"""People whose gaze is read where it is not sent, each by a network of all others."""
FINE = 0.01
"""Smaller chances are told to a hundredth of a percent."""
GAZE = 2
"""Columns of pitch and yaw."""


def people_block(
    people: Mapping[str, Splits], smashed: Callable[[Samples], Tensor], sent: bool
) -> TextTable:
    """Return the table for a run.

    Args:
        people: everybody who took part, in client order.
        smashed: what the run's layers make of samples, `[samples, ...]`.
        sent: whether labels went to the server beside smashed data.
    """
    known = [few(splits.train, KNOWN) for splits in people.values()]
    asked = [few(splits.test, ASKED) for splits in people.values()]
    sides = [[smashed(part) for part in side] for side in (known, asked)]
    maps = [[m if m.ndim == 4 else m.flatten(1)[..., None, None] for m in side] for side in sides]
    owners = torch.repeat_interleave(
        torch.arange(len(known)), torch.tensor([len(part) for part in known])
    )
    network = Classifier(torch.cat(maps[0]), owners)
    named = [network.named(part) for part in maps[1]]
    chance = 1 / len(known)
    lines = [
        told("who: from a frame", frames(named, 1), chance),
        told(f"who: from {BATCH} frames", frames(named, BATCH), chance),
    ]
    gaze = [[part.columns.get("gaze") for part in side] for side in (known, asked)]
    if all(g is not None and g.shape[1:] == (GAZE,) for side in gaze for g in side):
        labels = [[g for g in side if g is not None] for side in gaze]
        if sent:
            glances = IdentifiedSamples.of(labels[0])
            guesses = torch.tensor([glances.named(part) for part in labels[1]])
            rate = in_place(guesses)
            lines.append(told("who: from gaze labels alone, which are sent", rate, chance))
        else:
            lines.append(read(maps, labels))
    return table(
        lines,
        "audit: who it was, and where they looked",
        [
            f"{len(known)} people, known by up to {KNOWN} of their training pictures and asked by "
            f"up to {ASKED} of other days. Chance is one in the people; for gaze, the mean of "
            "the others'."
        ],
    )


def read(maps: list[list[Tensor]], gaze: list[list[Tensor]]) -> Record:
    """Return the line of gaze read from smashed data: of a few, learned on all others."""
    errors, means = [], []
    for who in range(min(READ, len(gaze[0]))):
        others = [i for i in range(len(gaze[0])) if i != who]
        labels = torch.cat([gaze[0][i] for i in others])
        network = LabelInferenceAttack().learned(torch.cat([maps[0][i] for i in others]), labels)
        with torch.no_grad():
            errors.append(angular_error_deg(network(maps[1][who]), gaze[1][who]))
        mean = mean_direction(labels).expand(len(gaze[1][who]), GAZE)
        means.append(angular_error_deg(mean, gaze[1][who]))
    found, mean = (float(torch.cat(parts).mean()) for parts in (errors, means))
    return {
        "finds": "where: gaze, which is not sent",
        "right": f"{found:.1f} deg off",
        "chance": f"{mean:.1f} deg off",
        "value": found,
        "better": found < mean,
        "as_it_ran": True,
    }


def told(finds: str, rate: Rate, chance: float, as_it_ran: bool = True) -> Record:
    """Return the line of a rate with its bounds; it is better than chance if all of them are."""
    right = f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})"
    beside = f"{chance:.0%}" if chance >= FINE else f"{chance:.2%}"
    return {
        "finds": finds,
        "right": right,
        "chance": beside,
        "value": rate.value,
        "low": rate.low,
        "high": rate.high,
        "better": rate.low > chance,
        "as_it_ran": as_it_ran,
    }


def table(lines: Sequence[Record], heading: str, notes: Sequence[str]) -> TextTable:
    """Return lines of what was found beside chance as a table."""
    return TextTable(
        heading,
        ["what the server finds", "right", "chance"],
        [[str(line["finds"]), str(line["right"]), str(line["chance"])] for line in lines],
        notes=notes,
        records=lines,
    )


def frames(named: list[Tensor], size: int) -> Rate:
    """Rate at which so many frames in a row, by a majority, name their owner."""
    hits = of = 0
    for person, guesses in enumerate(named):
        _, most = votes(guesses, torch.arange(len(guesses)) // size)
        hits, of = hits + int((most == person).sum()), of + len(most)
    return Rate(hits, of)
