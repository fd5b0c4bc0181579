"""Audit of disclosed statistics: what distances, or counts of classes, tell about their owners.

Nothing is trained again: a person's data give the numbers. Names are known by a copy of the data,
or by other data of the same people (linkage); what is asked are the numbers of training data, as
told, and with noise that the run did not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.attacks.disclosed_statistics import closest, held, likeliest
from vergence.attacks.identity import in_place
from vergence.attacks.score import Rate
from vergence.audit.identity import told
from vergence.audit.images import AS_IT_RAN, few, joined
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.params import Layout, Params
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

MOST, DRAWS = 60, 20
"""Clips of a person that an attacker has, and how often noise is drawn."""
SHORTER = 0.9
"""Share of a video's frames that another cut of it has."""
LEVELS = (("a person", 8.0), ("a person", 1.0), ("a sample", 1.0))
"""Whom noise is to hide, and epsilon."""
AUDIT_NOISE_KEY = NoiseKey(bytes(32))
"""Of noise that hides nothing: the same audit gives the same table."""
NOTES = (
    "Numbers: each was cut to a bound that nobody's data may set, here the least power of two from "
    "the largest up (of distances, or of samples that somebody has), and has Laplace noise for "
    f"that epsilon, which protects these numbers alone; drawn {DRAWS} times.",
)


@dataclass(frozen=True)
class DisclosedNumbers:
    """Numbers people tell, by training data and by others, and the largest effect of a sample.

    Attributes:
        known: `[people, numbers]`, by data that were not trained on.
        asked: the same by training data, as told.
        bound: of each number.
        changes: of every person.
    """

    known: Tensor
    asked: Tensor
    bound: float
    changes: Sequence[Changes]

    def levels(self) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
        """Yield each defence of the numbers, by name, and its function of everybody's numbers."""
        yield f"no noise{AS_IT_RAN}", lambda numbers: numbers
        for at, (whom, epsilon) in enumerate(LEVELS):
            policies = [
                DisclosedStatistics(
                    self.bound, each.person if whom == "a person" else each.sample, epsilon
                )
                for each in self.changes
            ]
            draws = AUDIT_NOISE_KEY.child("numbers", at).draws()
            yield (
                f"noise, epsilon {epsilon:g} for {whom}",
                lambda numbers, policies=policies, draws=draws: torch.cat(
                    [
                        torch.stack(
                            [
                                policy.told(row, draws)
                                for policy, row in zip(policies, numbers, strict=True)
                            ]
                        )
                        for _ in range(DRAWS)
                    ]
                ),
            )


def numbers_told(saved: TrainedRun, data: Federation) -> tuple[list[Record], list[tuple[str, str]]]:
    """Findings from a run's numbers, and attacks not tried with reasons; empty without numbers.

    Args:
        saved: the run.
        data: of its people.
    """
    trees = {tree for exposed in saved.method.exposure.values() for tree in exposed.trees}
    # A server without proxies asks nobody how far they are from them.
    asks = not hasattr(saved.server, "proxies") or bool(saved.server.proxies.layout.n)
    if not trees & {"distances", "counts"} or not asks:
        return [], []
    if len(data.people) < 2:
        return [], [("whose numbers they are", "there is nobody else")]
    if "counts" in trees:
        return list(of_classes(counts_told(saved.task, data))), []
    found, videos = distances_told(saved, data)
    return [*of_distances(found), *of_videos(videos, found.bound)], []


def counts_told(task: Task, data: Federation) -> DisclosedNumbers:
    """Number of samples of each class, for everybody."""
    solver, nothing = Solver(task), Params.zeros(Layout((), ()))
    classes = task.classes or len(task.class_names())

    def counts(samples: Samples) -> Tensor:
        return solver.classes(nothing, samples).bincount(minlength=classes).double()

    people = data.people.values()
    asked = torch.stack([counts(s.train) for s in people])
    bound = above(float(asked.sum(1).max()))
    return DisclosedNumbers(
        torch.stack([counts(others(s)) for s in people]),
        asked,
        bound,
        [of_counts(bound)] * len(asked),
    )


def distances_told(
    saved: TrainedRun, data: Federation
) -> tuple[DisclosedNumbers, tuple[Tensor, Tensor]]:
    """Return everybody's mean distances, and those of training videos: another cut's, and theirs.

    The latter two are `[videos, proxies]`.
    """
    proxies = [proxy.numpy() for proxy in saved.server.proxies.values()]

    def far(clips: Sequence[Tensor]) -> Tensor:
        per_frame = vars(saved.method)["per_frame"]
        return torch.tensor(
            [[dtw(clip.numpy(), proxy, per_frame) for proxy in proxies] for clip in clips],
            dtype=torch.float64,
        )

    known, asked, cut, whole = [], [], [], []
    for splits in data.people.values():
        clips = saved.task.sequences(splits.train)
        asked.append(far(clips))  # all of them: this is what was told
        seen = clips[:MOST]
        cut.append(far([clip[: max(1, round(SHORTER * len(clip)))] for clip in seen]))
        whole.append(asked[-1][:MOST])
        known.append(far(saved.task.sequences(few(others(splits), MOST))).mean(0))
    bound = above(max(float(each.max()) for each in asked))
    changes = [of_mean(bound, len(proxies), len(each)) for each in asked]
    means = torch.stack([each.mean(0) for each in asked])
    return DisclosedNumbers(torch.stack(known), means, bound, changes), (
        torch.cat(cut),
        torch.cat(whole),
    )


def of_distances(numbers: DisclosedNumbers) -> Iterator[Record]:
    """Yield the rate at which the owner of a distance is named."""
    for name, noisy in numbers.levels():
        asked = noisy(numbers.asked)
        for by, known in (
            ("a copy of their videos", numbers.asked),
            ("other videos of theirs", numbers.known),
        ):
            rate = right(closest(known, asked), len(known))
            yield line(f"whose distance it is, by {by}; {name}", rate, 1 / len(known))


def of_videos(videos: tuple[Tensor, Tensor], bound: float) -> Iterator[Record]:
    """Yield the rate at which somebody's only video is named, where another cut of it is known."""
    known, asked = videos
    alone = [of_mean(bound, asked.shape[1], 1)] * len(asked)
    for name, noisy in DisclosedNumbers(known, asked, bound, alone).levels():
        if not name.endswith("a sample"):  # of somebody with one video that is the person
            rate = right(closest(known, noisy(asked)), len(known))
            finds = f"which video it is, of somebody with one, by a shorter cut; {name}"
            yield line(finds, rate, 1 / len(known))


def of_classes(numbers: DisclosedNumbers) -> Iterator[Record]:
    """Yield the rates at which the owner of counts, and the classes they have, are named."""
    has = held(numbers.asked)
    share = float(has.double().mean())
    for name, noisy in numbers.levels():
        asked = noisy(numbers.asked)
        copied = right(closest(numbers.asked, asked), len(has))
        linked = right(likeliest(numbers.known, asked), len(has))
        yield line(f"whose counts they are, by a copy; {name}", copied, 1 / len(has))
        finds = f"whose counts they are, by other samples of theirs; {name}"
        yield line(finds, linked, 1 / len(has))
        same = held(asked) == has.repeat(len(asked) // len(has), 1)
        rate = Rate(int(same.sum()), same.numel())
        yield line(f"whether somebody has a class; {name}", rate, max(share, 1 - share))


def right(guesses: Tensor, people: int) -> Rate:
    """Rate of right guesses, everybody's in turn and again from the first."""
    rates = [in_place(some) for some in guesses.split(people)]
    return Rate(sum(rate.hits for rate in rates), sum(rate.of for rate in rates))


def line(finds: str, rate: Rate, chance: float) -> Record:
    """Return the line of a rate beside chance."""
    return {
        **told(finds, rate, chance, finds.endswith(AS_IT_RAN)),
        "hits": rate.hits,
        "of": rate.of,
        "by_chance": chance,
    }


def above(most: float) -> float:
    """Return the least power of two that is not below a number; 1 where that is 0."""
    return float(2 ** torch.tensor(most).log2().ceil()) if most > 0 else 1.0


def others(splits: Splits) -> Samples:
    """Return somebody's samples that are not trained on."""
    return joined([splits.val, splits.test])
