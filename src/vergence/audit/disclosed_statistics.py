"""Audit of disclosed statistics: re-identification of clients by distances or class counts.

No model is trained: the statistics follow from a person's data. The attacker has a copy of the
named people's data, or other data of the same people (linkage), and has to name the owner of
statistics of the training data: as the run sent them, and with noise that the run did not add.

Used by `audit.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.attacks.disclosed_statistics import closest, has_class, likeliest
from vergence.attacks.identity import matching_rate
from vergence.attacks.score import Rate
from vergence.audit.identity import rate_record
from vergence.audit.images import AS_IT_RAN, concatenate_common, evenly_spaced
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.dtw import dtw
from vergence.privacy.dp.disclosed_statistics import (
    Changes,
    DisclosedStatistics,
    of_counts,
    of_mean,
)
from vergence.privacy.keyed_noise import NoiseKey
from vergence.results.text_tables import Record
from vergence.training.sequential import Solver

# Largest number of clips of a person that the attacker has, which bounds the distances to compute;
# and number of noise draws, as a rate over one draw per person would be too uncertain.
MOST, DRAWS = 60, 20
# Share of a video's frames in the attacker's copy, which need not begin or end as the owner's does.
SHORTER = 0.9
LEVELS = (("a person", 8.0), ("a person", 1.0), ("a sample", 1.0))
"""Levels of noise: the unit that it protects, and epsilon."""
# A public key: the same audit gives the same table, and its noise has to hide nothing.
AUDIT_NOISE_KEY = NoiseKey(bytes(32))
NOTES = (
    "Numbers: each was clipped to a bound and has Laplace noise for that epsilon, which protects "
    f"these numbers alone; drawn {DRAWS} times. The bound must not follow from people's data; here "
    "it is the least power of two that is not below the largest distance, or number of samples.",
)


@dataclass(frozen=True)
class DisclosedNumbers:
    """Statistics of training data and of other data, with their sensitivities.

    Attributes:
        known: statistics of data that were not trained on, `[people, numbers]`.
        asked: statistics of training data, as sent, `[people, numbers]`.
        bound: upper bound of each number.
        changes: for each person, the largest change of the numbers by one sample, and by all.
    """

    known: Tensor
    asked: Tensor
    bound: float
    changes: Sequence[Changes]

    def levels(self) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
        """Yield each defence's name, and its function from everybody's numbers to noisy ones."""
        yield f"no noise{AS_IT_RAN}", lambda numbers: numbers
        for at, (whom, epsilon) in enumerate(LEVELS):
            policies = [
                DisclosedStatistics(
                    self.bound, change.person if whom == "a person" else change.sample, epsilon
                )
                for change in self.changes
            ]
            draws = AUDIT_NOISE_KEY.child("numbers", at).draws()
            yield (
                f"noise, epsilon {epsilon:g} for {whom}",
                lambda numbers, policies=policies, draws=draws: torch.cat(
                    [
                        torch.stack(
                            [
                                policy.privatize(row, draws)
                                for policy, row in zip(policies, numbers, strict=True)
                            ]
                        )
                        for _ in range(DRAWS)
                    ]
                ),
            )


def audit_statistics(
    saved: TrainedRun, data: Federation
) -> tuple[list[Record], list[tuple[str, str]]]:
    """Attack the statistics that a run disclosed; return records, and attacks that were not tried.

    Both are empty if the method discloses no statistics.

    Args:
        saved: the run.
        data: data of the people who took part.
    """
    trees = {tree for exposed in saved.method.exposure.values() for tree in exposed.trees}
    # A server without proxies asks nobody for distances to them.
    asks = not hasattr(saved.server, "proxies") or bool(saved.server.proxies.layout.n)
    if not trees & {"distances", "counts"} or not asks:
        return [], []
    if len(data.people) < 2:
        return [], [("whose numbers they are", "there is nobody else")]
    if "counts" in trees:
        return list(class_rates(class_counts(saved.task, data))), []
    numbers, videos = proxy_distances(saved, data)
    return [*distance_rates(numbers), *video_rates(videos, numbers.bound)], []


def class_counts(task: Task, data: Federation) -> DisclosedNumbers:
    """Return every client's counts of samples per class."""
    solver, nothing = Solver(task), Params.named()
    classes = task.classes or len(task.class_names())

    def counts(samples: Samples) -> Tensor:
        return solver.classes(nothing, samples).bincount(minlength=classes).double()

    people = data.people.values()
    asked = torch.stack([counts(s.train) for s in people])
    # All of a person's samples may be of one class: the count of a class is bounded by their sum.
    bound = power_of_two_above(float(asked.sum(1).max()))
    return DisclosedNumbers(
        torch.stack([counts(unused_samples(s)) for s in people]),
        asked,
        bound,
        [of_counts(bound)] * len(asked),
    )


def proxy_distances(
    saved: TrainedRun, data: Federation
) -> tuple[DisclosedNumbers, tuple[Tensor, Tensor]]:
    """Return the mean distances of every client, and distances of single training videos.

    The latter are those of a shorter cut of each video, and of the whole video, each
    `[videos, proxies]`.
    """
    proxies = [proxy.numpy() for proxy in saved.server.proxies.values()]

    def distances(clips: Sequence[Tensor]) -> Tensor:
        per_frame = vars(saved.method)["per_frame"]
        return torch.tensor(
            [[dtw(clip.numpy(), proxy, per_frame) for proxy in proxies] for clip in clips],
            dtype=torch.float64,
        )

    known, asked, cut, whole = [], [], [], []
    for splits in data.people.values():
        clips = saved.task.sequences(splits.train)
        # The run sent the mean over all clips: none may be left out here, however many there are.
        asked.append(distances(clips))
        seen = clips[:MOST]
        cut.append(distances([clip[: max(1, round(SHORTER * len(clip)))] for clip in seen]))
        whole.append(asked[-1][:MOST])
        known.append(
            distances(saved.task.sequences(evenly_spaced(unused_samples(splits), MOST))).mean(0)
        )
    bound = power_of_two_above(max(float(rows.max()) for rows in asked))
    changes = [of_mean(bound, len(proxies), len(rows)) for rows in asked]
    means = torch.stack([rows.mean(0) for rows in asked])
    return DisclosedNumbers(torch.stack(known), means, bound, changes), (
        torch.cat(cut),
        torch.cat(whole),
    )


def distance_rates(numbers: DisclosedNumbers) -> Iterator[Record]:
    """Yield records of the rate at which the owner of distances is named."""
    for name, noisy in numbers.levels():
        asked = noisy(numbers.asked)
        for by, known in (
            ("a copy of their videos", numbers.asked),
            ("other videos of theirs", numbers.known),
        ):
            rate = naming_rate(closest(known, asked), len(known))
            yield statistics_record(f"whose distance it is, by {by}; {name}", rate, 1 / len(known))


def video_rates(videos: tuple[Tensor, Tensor], bound: float) -> Iterator[Record]:
    """Yield records of the rate at which a client's only video is named, by a shorter cut of it."""
    known, asked = videos
    changes = [of_mean(bound, asked.shape[1], 1)] * len(asked)
    for name, noisy in DisclosedNumbers(known, asked, bound, changes).levels():
        # For a client with a single video, hiding the sample hides the person: one row is enough.
        if not name.endswith("a sample"):
            rate = naming_rate(closest(known, noisy(asked)), len(known))
            finds = f"which video it is, of somebody with one, by a shorter cut; {name}"
            yield statistics_record(finds, rate, 1 / len(known))


def class_rates(numbers: DisclosedNumbers) -> Iterator[Record]:
    """Yield records of the rates at which owners of counts, and their classes, are named."""
    has = has_class(numbers.asked)
    share = float(has.double().mean())
    for name, noisy in numbers.levels():
        asked = noisy(numbers.asked)
        copied = naming_rate(closest(numbers.asked, asked), len(has))
        linked = naming_rate(likeliest(numbers.known, asked), len(has))
        yield statistics_record(f"whose counts they are, by a copy; {name}", copied, 1 / len(has))
        finds = f"whose counts they are, by other samples of theirs; {name}"
        yield statistics_record(finds, linked, 1 / len(has))
        # The noisy numbers hold DRAWS copies of everybody, one under the other.
        same = has_class(asked) == has.repeat(len(asked) // len(has), 1)
        rate = Rate(int(same.sum()), same.numel())
        yield statistics_record(
            f"whether somebody has a class; {name}", rate, max(share, 1 - share)
        )


def naming_rate(guesses: Tensor, people: int) -> Rate:
    """Return the rate of right guesses, which are of all clients in order, for draw after draw."""
    rates = [matching_rate(draw) for draw in guesses.split(people)]
    return Rate(sum(rate.hits for rate in rates), sum(rate.of for rate in rates))


def statistics_record(finds: str, rate: Rate, chance: float) -> Record:
    """Return the record of a rate, with the rate by chance."""
    return {
        **rate_record(finds, rate, chance, finds.endswith(AS_IT_RAN)),
        "hits": rate.hits,
        "of": rate.of,
        "by_chance": chance,
    }


def power_of_two_above(most: float) -> float:
    """Return the smallest power of two that is at least `most`; 1 if that is 0."""
    return float(2 ** torch.tensor(most).log2().ceil()) if most > 0 else 1.0


def unused_samples(splits: Splits) -> Samples:
    """Return the samples of a person that were not trained on."""
    return concatenate_common([splits.val, splits.test])
