"""Re-identification table of `vergence privacy audit`: people recognised, and gaze inferred.

The attacker knows everybody's training pictures by name, and has to name the owners of test
pictures of other days. It sees what the run's server received: smashed data, and labels if the
method sends them; if not, gaze is estimated from smashed data.

Used by `audit.disclosed_statistics`, `audit.membership`, `audit.model_extraction`, `audit.run`,
`audit.smashed_data` and `audit.updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vergence.attacks.identity import IdentifiedSamples, matching_rate, votes
from vergence.attacks.label_inference import LabelInferenceAttack
from vergence.attacks.score import Classifier, Rate
from vergence.audit.images import evenly_spaced
from vergence.core.data import Samples, Splits
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.results.text_tables import Record, TextTable

# Pictures per person: known, to be named, and named together by a majority vote. 32 frames are
# about a second of a camera, which a server easily has together.
KNOWN, ASKED, BATCH = 100, 64, 32
# Number of people whose gaze is estimated: each needs a network trained on all others.
READ = 5
# Below this probability chance is printed to a hundredth of a percent: 1 in 250 is not "0 %".
FINE = 0.01
GAZE = 2
"""Number of columns of a gaze label: pitch and yaw."""


def people_table(
    people: Mapping[str, Splits], smashed: Callable[[Samples], Tensor], sent: bool
) -> TextTable:
    """Return the table of a run: rates at which people are named, and error of estimated gaze.

    Args:
        people: data of everybody who took part, in client order.
        smashed: function from samples to smashed data `[samples, ...]` of the run's layers.
        sent: whether clients sent labels together with smashed data.
    """
    known = [evenly_spaced(splits.train, KNOWN) for splits in people.values()]
    asked = [evenly_spaced(splits.test, ASKED) for splits in people.values()]
    sides = [[smashed(part) for part in side] for side in (known, asked)]
    # The classifier takes maps: a vector becomes one of a single pixel.
    maps = [[m if m.ndim == 4 else m.flatten(1)[..., None, None] for m in side] for side in sides]
    owners = torch.repeat_interleave(
        torch.arange(len(known)), torch.tensor([len(part) for part in known])
    )
    network = Classifier(torch.cat(maps[0]), owners)
    named = [network.named(part) for part in maps[1]]
    chance = 1 / len(known)
    lines = [
        rate_record("who: from a frame", naming_rate(named, 1), chance),
        rate_record(f"who: from {BATCH} frames", naming_rate(named, BATCH), chance),
    ]
    gaze = [[part.columns.get("gaze") for part in side] for side in (known, asked)]
    if all(g is not None and g.shape[1:] == (GAZE,) for side in gaze for g in side):
        labels = [[g for g in side if g is not None] for side in gaze]
        if sent:
            glances = IdentifiedSamples.of(labels[0])
            guesses = torch.tensor([glances.named(part) for part in labels[1]])
            rate = matching_rate(guesses)
            lines.append(rate_record("who: from gaze labels alone, which are sent", rate, chance))
        else:
            lines.append(gaze_record(maps, labels))
    return table(
        lines,
        "audit: who it was, and where they looked",
        [
            f"{len(known)} people. The server knows up to {KNOWN} training pictures of each, and "
            f"names up to {ASKED} pictures of other days. Chance is one in the number of people; "
            "for gaze, the error of the others' mean gaze."
        ],
    )


def gaze_record(maps: list[list[Tensor]], gaze: list[list[Tensor]]) -> Record:
    """Return the record of gaze estimated from smashed data by networks trained on other people."""
    errors, means = [], []
    for who in range(min(READ, len(gaze[0]))):
        others = [i for i in range(len(gaze[0])) if i != who]
        labels = torch.cat([gaze[0][i] for i in others])
        network = LabelInferenceAttack().train(torch.cat([maps[0][i] for i in others]), labels)
        with torch.no_grad():
            errors.append(angular_error_deg(network(maps[1][who]), gaze[1][who]))
        mean = mean_direction(labels).expand(len(gaze[1][who]), GAZE)
        means.append(angular_error_deg(mean, gaze[1][who]))
    error, mean = (float(torch.cat(parts).mean()) for parts in (errors, means))
    return {
        "finds": "where: gaze, which is not sent",
        "right": f"{error:.1f} deg off",
        "chance": f"{mean:.1f} deg off",
        "value": error,
        "better": error < mean,
        "as_it_ran": True,
    }


def rate_record(finds: str, rate: Rate, chance: float, as_it_ran: bool = True) -> Record:
    """Return the record of a rate; it is better than chance if its lower bound is above chance."""
    right = f"{rate.value:.0%} ({rate.low:.0%} to {rate.high:.0%})"
    by_chance = f"{chance:.0%}" if chance >= FINE else f"{chance:.2%}"
    return {
        "finds": finds,
        "right": right,
        "chance": by_chance,
        "value": rate.value,
        "low": rate.low,
        "high": rate.high,
        "better": rate.low > chance,
        "as_it_ran": as_it_ran,
    }


def table(lines: Sequence[Record], heading: str, notes: Sequence[str]) -> TextTable:
    """Return a table of records, each with the rate of the attack and the rate by chance."""
    return TextTable(
        heading,
        ["what the server finds", "right", "chance"],
        [[str(line["finds"]), str(line["right"]), str(line["chance"])] for line in lines],
        notes=notes,
        records=lines,
    )


def naming_rate(named: list[Tensor], size: int) -> Rate:
    """Return the rate at which majority votes of `size` successive frames name their owner."""
    hits = of = 0
    for person, guesses in enumerate(named):
        _, most = votes(guesses, torch.arange(len(guesses)) // size)
        hits, of = hits + int((most == person).sum()), of + len(most)
    return Rate(hits, of)
