"""Video summaries: how important people find each frame of a clip.

Used by `video.shot_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.data.io.checks import data_path
from vergence.data.synthetic.clip_synthetic import PROXY, draw_clip
from vergence.data.video_summaries.h5_files import read_videos
from vergence.errors import ConfigError, DataError
from vergence.metrics.intervals import CORRELATION, SHARE, Bounds
from vergence.metrics.summaries import (
    HumanSelections,
    agreement,
    capacity,
    counted_f,
    counted_human_f,
    human_agreement,
    knapsack,
    rest_agreement,
    shot_values,
    spread,
)

Logits = Float[Tensor, "clips longest"]
DRAWS = 5
"""Random rankings per clip, whose mean is reported."""


@dataclass(frozen=True)
class SummaryTask(Task):
    """Predict the importance of a clip's steps, `target` in [0, 1], from their features.

    Attributes:
        criterion: the loss, a mean over a clip's steps and then over clips: the squared error of
            the importance, or its cross-entropy (`bce`).
        judged: data set whose protocol scores summaries. `tvsum`: F is the mean over people, ranks
            are compared with each person and averaged. `summe`: F is the largest, ranks are
            compared with people's mean.
        counts: weight of a client in weighted means: its number of `frames` (steps, frame-weighted
            FedAvg) or of `clips`.
        proxy: h5 file of another data set, with whose videos people are compared; absolute, or
            relative to the working directory, else to VERGENCE_DATA. Empty: synthetic clips.

    Source: Zhang et al., "Video summarization with long short-term memory", ECCV 2016 (squared
    error); Otani et al., "Rethinking the evaluation of video summaries", CVPR 2019 (ranks); the
    Durham thesis, Equation 4.2 (frames).
    """

    criterion: Literal["mse", "bce"] = "mse"
    judged: Literal["tvsum", "summe"] = "tvsum"
    counts: Literal["frames", "clips"] = "frames"
    proxy: str = ""

    input_columns: ClassVar[tuple[str, ...]] = ("features", "steps")
    labels: ClassVar[tuple[str, ...]] = ("target", "steps")
    scored_columns: ClassVar[tuple[str, ...]] = (
        "rows",
        "shots",
        "inside",
        "both",
        "pick",
        "ratings",
    )
    headline: ClassVar[str] = "tau"
    bounds: ClassVar[Mapping[str, Bounds]] = {"f": SHARE, "tau": CORRELATION, "rho": CORRELATION}

    @property
    def over(self) -> Literal["max", "mean"]:
        """Reduction of F over people."""
        return "max" if self.judged == "summe" else "mean"

    def forward(self, module: nn.Module, batch: Batch) -> Logits:
        """Return the logit of every step's importance, 0 beyond a clip's end.

        Raises:
            ConfigError: a network for other features, or one that returns another shape.
        """
        x, steps = batch["features"], batch["steps"]
        width, wanted = x.shape[1], getattr(self.network, "features", x.shape[2])
        if wanted != x.shape[2]:
            raise ConfigError(
                f"summary: clips have {x.shape[2]} features a frame, the model takes {wanted}; set "
                f"model.features = {x.shape[2]}"
            )
        # Clips differ tenfold in length: padding that no clip of the batch needs costs time. On a
        # GPU reading the longest would end the recording of a step.
        longest = width if x.is_cuda else int(steps.max())
        output = module(x[:, :longest], steps)
        if tuple(output.shape) != (len(x), longest):
            raise ConfigError(
                f"summary: {type(module).__name__} returned {list(output.shape)} for {len(x)} "
                f"clips of {longest} steps; a score per step, [{len(x)}, {longest}], is needed"
            )
        return functional.pad(output * inside(steps, longest), (0, width - longest))

    def loss(self, output: Logits, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss: the mean over clips of each clip's mean over its steps."""
        target, steps = batch["target"], batch["steps"]
        each = (
            functional.binary_cross_entropy_with_logits(output, target, reduction="none")
            if self.criterion == "bce"
            else (output.sigmoid() - target).square()
        )
        there = inside(steps, output.shape[1])
        return ((each * there).sum(1) / steps).mean()

    def weigh(self, samples: Samples) -> float:
        """Return the number of steps, or of clips."""
        by_frames = self.counts == "frames"
        return float(samples.columns["steps"].sum()) if by_frames else float(len(samples))

    def sequences(self, samples: Samples) -> list[Tensor]:
        """Return every clip's features `[steps, d]`."""
        x = samples.banks["features"].rows
        columns = samples.columns
        pairs = zip(columns["rows"], columns["steps"], strict=True)
        return [x[rows[:steps]] for rows, steps in pairs]

    def proxies(self, count: int) -> list[Tensor]:
        """Return the features of videos of the file `proxy`, or of synthetic clips.

        Raises:
            ConfigError: the network does not say how many features a frame has.
            DataError: the file cannot be read, or has too few videos with such features.
        """
        width = getattr(self.network, "features", None)
        if width is None:
            raise ConfigError(
                f"{type(self.network).__name__} has no option 'features', by which proxies are made"
            )
        if not self.proxy:
            made = (
                draw_clip(RandomStream("proxy", i).numpy(), *PROXY, width) for i in range(count)
            )
            return [torch.from_numpy(x).float() for x in made]
        path = Path(data_path(self.proxy))
        known = [v.features for v in read_videos(path).values() if v.features is not None]
        fitting = [x for x in known if x.shape[1] == width]
        if len(fitting) < count:
            raise DataError(
                f"{path} has {len(fitting)} videos with {width} features a frame, {count} are "
                "needed as proxies: name another file as task.proxy"
            )
        drawn_rows = RandomStream("proxy").numpy().permutation(len(fitting))[:count]
        return [torch.from_numpy(fitting[i]) for i in drawn_rows]

    def metrics(self, outputs: Logits, samples: Samples) -> dict[str, float]:
        """Return F, Kendall's tau, Spearman's rho and the score, means over clips."""
        importance = outputs.sigmoid().double().numpy()
        rows = [
            self.judge(clip, row[: len(clip.picks)])
            for clip, row in zip(clips(samples), importance, strict=True)
        ]
        return mean_metrics(rows)

    def judge(
        self, clip: JudgedSummary, importance: NDArray[np.float64]
    ) -> tuple[float, float, float]:
        """Return F, tau and rho of a clip for the predicted importance of its steps."""
        frames = int(clip.shots[-1, 1]) + 1
        values = shot_values(spread(importance, clip.picks, frames), clip.shots)
        lengths = clip.shots[:, 1] - clip.shots[:, 0] + 1
        selection = knapsack(values, lengths, capacity(frames))
        ratings = clip.ratings.mean(0, keepdims=True) if self.over == "max" else clip.ratings
        tau, rho = agreement(importance, ratings)
        return counted_f(selection, clip.shots, clip.selections, self.over), tau, rho

    def check(self, federation: Federation) -> None:
        """Refuse data of another protocol, or without the banks `pick` and `ratings`.

        Raises:
            ConfigError: `judged` differs from the data set's protocol.
            DataError: `pick` or `ratings` is missing, or is a column.
        """
        wanted = federation.about.get("judged", self.judged)
        if wanted != self.judged:
            raise ConfigError(
                f"summary: '{federation.name}' is judged as {wanted}, the task as {self.judged}; "
                f'set task.judged = "{wanted}"'
            )
        for person, splits in federation.people.items():
            for name in ("pick", "ratings"):
                if name not in splits.test.banks:
                    there = "a column" if name in splits.test.columns else "missing"
                    raise DataError(
                        f"summary: '{name}' of {person} is {there}; give it a row for each step "
                        f"of all clips, which `rows` names: Samples(columns, {{'{name}': "
                        "SharedRows(values, by='rows')})"
                    )

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics, by baseline and person, of random importance and of people.

        Random importance is scored on the same shots, as the mean of five draws.

        `people` is every person's summary and ranking against the others', averaged.
        """
        # A stream of its own, so that the table is the same whenever it is made.
        rng = RandomStream("summary", self.seed, "random").numpy()

        def random(clip: JudgedSummary) -> Any:
            return np.mean([self.judge(clip, rng.random(len(clip.picks))) for _ in range(DRAWS)], 0)

        def human(clip: JudgedSummary) -> Any:
            peers = rest_agreement if self.over == "max" else human_agreement
            ranks = peers(clip.ratings) if len(clip.ratings) > 1 else (0.0, 0.0)
            return counted_human_f(clip.selections, self.over), *ranks

        rows: dict[str, Callable[[JudgedSummary], Any]] = {"random": random, "people": human}
        return {
            name: {
                p: mean_metrics([row(clip) for clip in clips(s.test)])
                for p, s in federation.scored_people.items()
            }
            for name, row in rows.items()
        }


@dataclass(frozen=True, eq=False)
class JudgedSummary:
    """Data for judging a clip: its steps' frames, its shots, people's ratings and selections."""

    picks: NDArray[np.int32]
    shots: NDArray[np.int32]
    ratings: Float[np.ndarray, "people steps"]
    selections: HumanSelections


def clips(samples: Samples) -> Iterator[JudgedSummary]:
    """Yield the data for judging each clip, without padding."""
    picks, ratings = (samples.banks[name].rows.numpy() for name in ("pick", "ratings"))
    names = ("steps", "rows", "shots", "inside", "both")
    columns = (samples.columns[name].numpy() for name in names)
    for steps, rows, shots, counts, both in zip(*columns, strict=True):
        at = rows[:steps]
        raters = ratings[at].T
        # Negative numbers pad the shots of a clip; NaN stands where a person did not rate it.
        real = shots[:, 1] >= 0
        yield JudgedSummary(
            picks[at],
            shots[real],
            raters[~np.isnan(raters).any(1)],
            HumanSelections(counts[real], both),
        )


def inside(steps: Tensor, longest: int) -> Tensor:
    """Return `[clips, longest]`, true at a clip's steps and false beyond its end."""
    return torch.arange(longest, device=steps.device) < steps[:, None]


def mean_metrics(rows: list[Any]) -> dict[str, float]:
    """Return the means over clips of F, tau and rho, and the score."""
    f, tau, rho = map(float, np.mean(rows, 0))
    # Not F, which depends more on the length of shots than on their choice.
    return {"f": f, "tau": tau, "rho": rho, "score": (1 + tau) / 2}
