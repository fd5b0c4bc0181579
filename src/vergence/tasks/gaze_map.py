"""Gaze maps: where in each frame of a clip, or in an image, a person looks.

Used by `adaptation.fine_tuning`, `experiment.sample_maps`, `model_tools.onnx_export`,
`video.predict`, `video.predict_maps` and `video.streaming`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Interval
from jaxtyping import Float, Int
from torch import Tensor, nn

from vergence.core.data import Batch, Samples, Splits
from vergence.core.federation import Federation
from vergence.errors import ConfigError, DataError
from vergence.metrics import saliency
from vergence.metrics.gaze_maps import label_maps
from vergence.metrics.intervals import CORRELATION, SHARE, Bounds
from vergence.metrics.map_priors import (
    looks_of,
    motion_maps,
    nearest_maps,
    own_map,
    seen_by_others,
    static_priors,
)
from vergence.metrics.personal_priors import (
    attach_priors,
    common_map,
    cross_fitted,
    prior_of,
    whole_prior,
    with_one_prior,
)
from vergence.metrics.saliency_f1 import FULL_GRID, Hits, harmonic, hits, over_clips, pixel_f1
from vergence.models import motion
from vergence.tasks.base import PriorTask

EPS = 1e-10
"""Number inside the logarithms of the reverse KL, as in the official GLC code."""
MEAN, DEVIATION = 0.45, 0.225
"""Mean and deviation of all channels' pixel values in [0, 1], as in GLC."""
EXPONENTS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""Exponents of the own prior from which a person's validation data choose."""

SHARES = (
    *("auc_judd", "auc_shuffled", "sim", "f1_glc", "recall_glc", "precision_glc", "f1_best"),
    *("threshold_best", "f1_hit", "recall_hit", "precision_hit"),
    *("f1_hit_component", "precision_hit_component"),
)
"""Metrics in [0, 1]."""

Logits = Float[Tensor, "samples frames height width"]


class Scored(NamedTuple):
    """The frames that count, one after the other, and the number of each one's sample."""

    maps: Float[Tensor, "scored height width"]
    points: Float[Tensor, "scored fixations 2"]
    sample: Int[Tensor, " scored"]


@dataclass(frozen=True)
class GazeMap(PriorTask):
    """Predict one probability map per frame from frames (video, images) or frozen features.

    It reads the columns `frame_ids` int64 `[n, T]`, `points` float32 `[n, T, P, 2]` (P fixations
    of every frame, NaN where there is none) and `scene` int64 `[n]` (equal for people who saw the
    same, -1 where nobody else did), and the bank `frames` uint8 `[rows, H, W, 3]`, looked up by
    `frame_ids`. Images have T = 1.

    Attributes:
        criterion: the loss. `kl_reverse` is KL(map || label), the loss of GLC; `kl` is
            KL(label || map) and `ce` the cross-entropy of FedCPF, which differ by a constant. All
            are divided by ln(pixels), so that a learning rate holds across resolutions, and
            averaged over the frames with gaze.
        temperature: logits are divided by it before the softmax (2 in GLC).
        sigma: standard deviation of a training label's Gaussian, in widths. Scores always compare
            with labels of 0.05, so that this choice cannot move them.
        field_of_view_deg: horizontal field of view that errors in degrees assume.
        hit_average: `clips` averages hit@0.7 inside clips first; `frames` pools a person's frames.
            Images (one frame per sample) are pooled in any case.
        score_from: the metric that is the score. On images with many fixations hit@0.7 ranks a
            good map no higher than a static one, whose peak is broad; `f1_best` tells them apart.
        personal_prior: exponent of a person's own prior, by which the network's map is multiplied:
            map * prior^a, scaled to sum 1; 0: no prior. It stays with the person. With `auto`
            (formerly `chosen`) the network trains without the prior, and a person's validation data
            choose one of `EXPONENTS` for each model that predicts for the person. None: a run takes
            `auto` if its methods and protections allow a prior, else 0.
        prior_in: `training`: the loss sees the product; `prediction`: only predictions do.
        look_ahead: number of following frames of the sample whose gaze is mixed into the label of a
            frame: half of the label is from the frame's own gaze, half is the mean over the
            following frames. Only losses look ahead, in validation too; predictions and scores do
            not.

    Source: Lai et al. 2022 (GLC); FedCPF, section 4.
    Differs: frames without gaze are left out of the loss, where GLC gives them a uniform label.
    """

    criterion: Literal["kl_reverse", "kl", "ce"] = "kl"
    temperature: Annotated[float, Gt(0)] = 1.0
    sigma: Annotated[float, Interval(gt=0, le=0.5)] = 0.05
    field_of_view_deg: Annotated[float, Interval(gt=0, lt=180)] = 60.0
    hit_average: Literal["clips", "frames"] = "clips"
    score_from: Literal["f1_hit", "f1_glc", "f1_best"] = "f1_hit"
    personal_prior: Annotated[float, Interval(ge=0, le=4)] | Literal["auto", "chosen"] | None = None
    prior_in: Literal["training", "prediction"] = "training"
    look_ahead: Annotated[int, Ge(0)] = 0

    classes: ClassVar[int] = 16
    input_columns: ClassVar[tuple[str, ...]] = ("frames",)
    scored_columns: ClassVar[tuple[str, ...]] = ("points",)
    headline: ClassVar[str] = "nss"
    lower_is_better: ClassVar[frozenset[str]] = frozenset(
        {"kld", "angle_error_deg", "angle_error_peak_deg"}
    )
    bounds: ClassVar[Mapping[str, Bounds]] = {"cc": CORRELATION, **dict.fromkeys(SHARES, SHARE)}

    def forward(self, module: nn.Module, batch: Batch) -> Logits:
        """Return logits of every frame's map: the network's, plus the prior's if the task uses it.

        Raises:
            ConfigError: as in `likelihood`; or samples without a prior.
        """
        output = self.likelihood(module, batch)
        return self.with_prior(output, batch)

    def with_prior(self, output: Logits, batch: Batch) -> Logits:
        """Return logits of the network's maps times the prior, if the task uses one.

        Raises:
            ConfigError: samples without a prior.
        """
        if not self.personal_prior:
            return output
        exponent = self.personal_prior
        # With `auto` the prior itself has the exponent that validation data chose. The softmax
        # divides by the temperature, which must not weaken the prior.
        weight = self.temperature * (1.0 if isinstance(exponent, str) else exponent)
        return output + weight * prior_of(batch, "gaze_map")[:, None].to(output.dtype)

    def likelihood(self, module: nn.Module, batch: Batch) -> Logits:
        """Return the network's own logits of every frame's map.

        `batch["frames"]` is uint8 [B, T, H, W, 3], scaled here to [B, T, 3, H, W], or features
        [B, T, C, h, w] of a floating type, which go to the network as they are, with the channels
        of `batch["motion"]` behind them where there are some.

        Raises:
            ConfigError: frames of another type or shape, or a network that returns other frames.
        """
        frames = batch["frames"]
        if frames.dtype == torch.uint8 and frames.ndim == 5 and frames.shape[-1] == 3:
            pixels = frames.permute(0, 1, 4, 2, 3).float()
            frames = (pixels - 255 * MEAN) / (255 * DEVIATION)
        elif not frames.is_floating_point():
            raise ConfigError(
                f"gaze_map: frames are {frames.dtype} {list(frames.shape)}; give uint8 "
                "[B, T, H, W, 3] pictures or floating-point features"
            )
        if motion.BANK in batch:
            frames = torch.cat([frames.float(), batch[motion.BANK].float()], 2)
        output = module(frames)
        expected = tuple(batch.get("points", frames).shape[:2])
        if output.ndim != 4 or tuple(output.shape[:2]) != expected:
            raise ConfigError(
                f"gaze_map: {type(module).__name__} returned {list(output.shape)} for samples x "
                f"frames {list(expected)}; one map per labelled frame is needed, so match the "
                "window of the data to the network"
            )
        return output

    def loss(self, output: Logits, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean over all frames of the batch that have gaze; 0 if none has."""
        points = batch["points"].to(output.dtype)
        label = label_maps(points, *output.shape[-2:], sigma=self.sigma).flatten(-2)
        if self.look_ahead:
            label = with_next(label, self.look_ahead)
        log_map = (output / self.temperature).flatten(-2).log_softmax(-1)
        if self.criterion == "kl_reverse":
            heat = log_map.exp()
            frame = (heat * ((heat + EPS).log() - (label + EPS).log())).sum(-1)
        else:
            frame = -(label * log_map).sum(-1)
            # `xlogy` is 0 where the label is 0, and not NaN.
            if self.criterion == "kl":
                frame = frame + torch.xlogy(label, label).sum(-1)
        weight = (label.sum(-1) > 0).to(output.dtype)
        # In units of a uniform map's entropy, so that a learning rate holds across resolutions.
        return (frame * weight).sum() / weight.sum().clamp(min=1) / math.log(label.shape[-1])

    def class_of(self, batch: Batch) -> Tensor:
        """Return the cell of a 4 x 4 grid that holds a sample's mean gaze; 0 where it has none."""
        centre = batch["points"].float().flatten(1, 2).nanmean(1).nan_to_num(0.0)
        cell = (centre * 4).long().clamp(0, 3)
        return 4 * cell[:, 1] + cell[:, 0]

    def imitation(self, output: Logits, teacher: Logits, temperature: float = 1.0) -> Tensor:
        """Return KL(teacher's map || map), in nats, a mean over frames."""
        target, log_map = ((x / temperature).flatten(-2).log_softmax(-1) for x in (teacher, output))
        return (target.exp() * (target - log_map)).sum(-1).mean()

    def metrics(
        self, outputs: Logits, samples: Samples, threshold: float | None = None
    ) -> dict[str, float]:
        """Return the metrics of one person's maps: a mean over the frames that count.

        Frames with gaze count; where samples may have several fixations (images), frames with two
        or more. `f1_glc` takes the best threshold of GLC's grid 0..0.02; `f1_best` is the F1
        at `threshold` or, without one, at the best of the grid 0..1 on these very samples.
        `angle_error_deg` is that of the map's centre of mass, `angle_error_peak_deg` of its
        maximum.

        Raises:
            DataError: no frame counts.
        """
        scored = self._scored(outputs, samples)
        maps, points = scored.maps, scored.points
        # Of the default width, whatever the loss takes: no choice of training may move scores.
        labels = label_maps(points, *maps.shape[-2:])
        glc = pixel_f1(maps, labels)
        best = pixel_f1(maps, labels, FULL_GRID if threshold is None else (threshold,))
        view = (self.field_of_view_deg, maps.shape[-2] / maps.shape[-1])
        judd, shuffled = saliency.aucs(maps, points)
        per_frame = {
            "nss": saliency.nss(maps, points),
            "auc_judd": judd,
            "auc_shuffled": shuffled,
            "cc": saliency.cc(maps, labels),
            "sim": saliency.sim(maps, labels),
            "kld": saliency.kld(maps, labels),
            "angle_error_deg": saliency.angle_error_deg(
                saliency.centre_of_mass(maps), points, *view
            ),
            "angle_error_peak_deg": saliency.angle_error_deg(saliency.peak(maps), points, *view),
        }
        hit = self._hit_scores(hits(maps, labels, points), scored, outputs.shape[1])
        metrics = {
            **{name: float(values.mean()) for name, values in per_frame.items()},
            "f1_glc": glc.f1,
            "recall_glc": glc.recall,
            "precision_glc": glc.precision,
            "f1_best": best.f1,
            "threshold_best": best.threshold,
            **hit,
        }
        return {**metrics, "score": metrics[self.score_from]}

    def evaluate(
        self,
        outputs: Logits,
        samples: Samples,
        val_outputs: Logits | None = None,
        val_samples: Samples | None = None,
    ) -> dict[str, float]:
        """Return `metrics`, with the threshold of `f1_best` chosen on validation data if given."""
        if val_outputs is None or val_samples is None:
            return self.metrics(outputs, samples)
        maps, points, _ = self._scored(val_outputs, val_samples)
        labels = label_maps(points, *maps.shape[-2:])
        return self.metrics(outputs, samples, pixel_f1(maps, labels, FULL_GRID).threshold)

    def per_sample(self, outputs: Logits, samples: Samples) -> Tensor:
        """Return each sample's sum of NSS over its frames that count, and their number.

        The shape is `[samples, 2]`.
        """
        maps, points, sample = self._scored(outputs, samples)
        nss = saliency.nss(maps, points)
        rows = torch.stack([nss, torch.ones_like(nss)], 1)
        return rows.new_zeros(len(samples), 2).index_add(0, sample, rows)

    def score(self, outputs: Logits, samples: Samples) -> float:
        """Return `metrics()["score"]` and compute nothing else."""
        # Methods ask in every round, and all metrics take several times as long.
        scored = self._scored(outputs, samples)
        labels = label_maps(scored.points, *scored.maps.shape[-2:])
        # Two of the three need no search for connected parts, which takes longest.
        if self.score_from == "f1_glc":
            return pixel_f1(scored.maps, labels).f1
        if self.score_from == "f1_best":
            return pixel_f1(scored.maps, labels, FULL_GRID).f1
        hit = hits(scored.maps, labels, scored.points, components=False)
        return self._hit_scores(hit, scored, outputs.shape[1])["f1_hit"]

    def check(self, federation: Federation) -> None:
        """Refuse a person whose validation or test part has no frame to score.

        Raises:
            DataError: there is such a part; the message names it and the person.
        """
        for person, splits in federation.people.items():
            for part in ("val", "test"):
                points = getattr(splits, part).columns["points"]
                if not _counted(points).any():
                    raise DataError(
                        f"{federation.name}: {person} has no frame with gaze to score among "
                        f"{len(points)} {part} samples; leave {person} out or choose another split"
                    )

    def prepare(self, federation: Federation) -> Federation:
        """Add the logarithm of each person's prior to their samples, if the task uses priors.

        A run calls this once before training.
        """
        if not self.personal_prior:
            return federation
        grid = self.grid(next(iter(federation.people.values())).train)

        def made(splits: Splits) -> Tensor:
            # As logarithms: a product of maps is a sum of logits, and a power a factor.
            prior = cross_fitted(splits.train.columns["points"], grid).log()
            return torch.cat([a * prior for a in EXPONENTS]) if self.tunes_prior else prior

        through = self.prior_in == "training"
        return attach_priors(federation, made, self._common(grid), through)

    def _common(self, grid: tuple[int, int]) -> Tensor:
        common = common_map(*grid).log()
        # Nothing is known by which to choose: the lowest exponent, 0, multiplies by 1.
        return torch.zeros_like(common) if self.tunes_prior else common

    def prepare_for(self, samples: Samples, owner: Splits | None) -> Samples:
        """Return new samples with their owner's prior; without `owner`, with the common prior.

        Predictions by the models of a finished run call this.
        """
        if not self.personal_prior:
            return samples
        if owner is not None:
            return with_one_prior(samples, whole_prior(owner.test))
        return with_one_prior(samples, self._common(self.grid(samples)))

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics, by map and person, of maps without learning on all test samples.

        The maps are `uniform`, `centre`, `global prior` (everybody's training gaze), `personal
        prior` (a person's own), `nearest picture` (the person's gaze at their most alike training
        sample), `motion` (weighted towards the middle, if the network takes motion) and, for
        samples that others saw too, `other people`: the others' gaze on that frame.
        The federation must be as `network.prepare` returned it.
        """
        height, width = self.grid(next(iter(federation.people.values())).train)
        table: dict[str, dict[str, dict[str, float]]] = {}
        for name, chosen in static_priors(federation, height, width).items():
            table[name] = {
                person: self.evaluate(
                    self._everywhere(chosen(person), splits.test),
                    splits.test,
                    self._everywhere(chosen(person), splits.val),
                    splits.val,
                )
                for person, splits in federation.scored_people.items()
            }
        if nearest := dict(self._nearest(federation.scored_people, height, width)):
            table["nearest picture"] = nearest
        moving = {p: s for p, s in federation.scored_people.items() if motion.BANK in s.test.banks}
        if moving:
            table["motion"] = {
                person: self.evaluate(
                    self._moving(splits.test), splits.test, self._moving(splits.val), splits.val
                )
                for person, splits in moving.items()
            }
        seen, seen_val = (
            dict(seen_by_others(part, height, width))
            for part in (
                {p: s.test for p, s in federation.scored_people.items()},
                {p: s.val for p, s in federation.scored_people.items()},
            )
        )
        rows = {}
        for person, (samples, maps) in seen.items():
            val = seen_val.get(person)
            rows[person] = self.evaluate(
                self._logits(maps),
                samples,
                None if val is None else self._logits(val.maps),
                None if val is None else val.samples,
            )
        return {**table, "other people": rows} if rows else table

    def _nearest(
        self, people: Mapping[str, Splits], height: int, width: int
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the metrics of people's gaze at their most alike training sample."""
        looks: dict[int, Tensor] = {}
        for person, splits in people.items():
            if "frames" not in splits.train.banks:
                continue
            # People mostly share one bank, whose frames are looked at once.
            rows = splits.train.banks["frames"].rows
            looks[id(rows)] = looks_of(rows) if id(rows) not in looks else looks[id(rows)]
            val, test = (
                self._logits(part).expand(-1, splits.test.columns["points"].shape[1], -1, -1)
                for part in nearest_maps(splits, looks[id(rows)], height, width)
            )
            yield person, self.evaluate(test, splits.test, val, splits.val)

    def personal_baseline(self, federation: Federation) -> tuple[str, Mapping[str, Tensor]]:
        """Return the name `personal prior` and, by person, prior as outputs per test sample."""
        grid = self.grid(next(iter(federation.people.values())).train)
        return "personal prior", {
            person: self._everywhere(own_map(splits.train, *grid), splits.test)
            for person, splits in federation.scored_people.items()
        }

    def grid(self, samples: Samples) -> tuple[int, int]:
        """Return rows and columns of the network's maps, by running it on the first sample."""
        # Every network has its own resolution, and need not state it.
        with torch.no_grad():
            output = self.likelihood(self.module().eval(), samples.take(torch.tensor([0])))
        return output.shape[-2], output.shape[-1]

    def _scored(self, outputs: Logits, samples: Samples) -> Scored:
        points = samples.columns["points"]
        counted = _counted(points)
        if not counted.any():
            raise DataError(
                f"gaze_map: none of {len(samples)} samples has a frame to score (with gaze, or "
                "with two fixations where several are possible); leave this person or split out"
            )
        heat = (outputs[counted].double() / self.temperature).flatten(1).softmax(1)
        maps = heat.unflatten(1, tuple(outputs.shape[-2:]))
        return Scored(maps, points[counted].double(), counted.nonzero()[:, 0])

    def _hit_scores(self, hit: Hits, scored: Scored, frames: int) -> dict[str, float]:
        pooled = self.hit_average == "frames" or frames == 1
        clip = torch.zeros_like(scored.sample) if pooled else scored.sample
        recall, area = over_clips(hit.share, hit.area, clip)
        scores = {"f1_hit": harmonic(recall, area), "recall_hit": recall, "precision_hit": area}
        if hit.component is not None:
            _, component = over_clips(hit.share, hit.component, clip)
            scores["f1_hit_component"] = harmonic(recall, component)
            scores["precision_hit_component"] = component
        return scores

    def _everywhere(self, heat: Float[Tensor, "height width"], samples: Samples) -> Logits:
        frames = samples.columns["points"].shape[1]
        return self._logits(heat).expand(len(samples), frames, *heat.shape)

    def _moving(self, samples: Samples) -> Logits:
        bank = samples.banks[motion.BANK]
        return self._logits(motion_maps(bank.rows[samples.columns[bank.by]]))

    def _logits(self, heat: Float[Tensor, "*batch height width"]) -> Tensor:
        return self.temperature * heat.log()


def with_next(
    labels: Float[Tensor, "samples frames pixels"], frames: int
) -> Float[Tensor, "samples frames pixels"]:
    """Return label maps mixed half and half with the mean of the next few frames' maps.

    Frames without gaze (maps of 0) stay so and do not count in means; a map without a following one
    stays as it is.
    """
    later = torch.zeros_like(labels)
    for step in range(1, min(frames, labels.shape[1] - 1) + 1):
        later[:, :-step] += labels[:, step:]
    number = later.sum(-1, keepdim=True)
    mixed = torch.where(number > 0, (labels + later / number.clamp(min=1)) / 2, labels)
    return mixed * (labels.sum(-1, keepdim=True) > 0)


def _counted(points: Tensor) -> Tensor:
    """Return which frames, `[samples, frames]`, have enough gaze to be scored."""
    # Where samples may have several fixations, a single one says too little about a map.
    return (~points.isnan().any(-1)).sum(-1) >= min(2, points.shape[2])
