"""Image classification: which of several classes a picture shows.

Used by `model_tools.onnx_export`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.classification import ClassificationTask, Scores
from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.metrics.intervals import SHARE, Bounds

WHITE = 255


@dataclass(frozen=True)
class Images(ClassificationTask):
    """Predict `label` int64 `[n]` from `image` uint8 `[n, channels, H, W]`, by cross-entropy.

    A model is scored on a person's own test images, and on everybody's together (`pooled_`): a
    client with few classes tells them apart easily, and may know no others.

    Attributes:
        names: names of the classes, for methods that use them; none: "class 0" and so on, as many
            as the network has.

    Source: the classification workloads of McMahan et al., "Communication-efficient learning of
    deep networks from decentralized data", AISTATS 2017, section 3.
    """

    names: tuple[str, ...] = ()

    input_columns: ClassVar[tuple[str, ...]] = ("image",)
    labels: ClassVar[tuple[str, ...]] = ("label",)
    headline: ClassVar[str] = "accuracy"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"log_loss", "pooled_log_loss"})
    bounds: ClassVar[Mapping[str, Bounds]] = {"accuracy": SHARE}
    pools: ClassVar[bool] = True

    def forward(self, module: nn.Module, batch: Batch) -> Scores:
        """Return unnormalised log-probabilities; the network gets pixels in [0, 1].

        Raises:
            ConfigError: images of another type, or a network that returns another shape.
        """
        image, _ = self.inputs(batch)
        output = module(image)
        if output.ndim != 2 or len(output) != len(image):
            raise ConfigError(
                f"images: {type(module).__name__} returned {list(output.shape)} for {len(image)} "
                f"images; a score per image and class, [{len(image)}, classes], is needed"
            )
        return output

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[()]]:
        """Return the images with pixels in [0, 1]; there are no side inputs."""
        image = batch["image"]
        # Other types are not scaled: pixels from 0 to 255 would pass for pixels in [0, 1].
        if image.dtype != torch.uint8:
            raise ConfigError(f"images: images are {image.dtype}; give uint8, 0 to {WHITE}")
        # In place on the copy that `float` makes of bytes.
        return image.float().div_(WHITE), ()

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, by default "class 0" and so on.

        Raises:
            ConfigError: there are more or fewer names than the network has classes.
        """
        classes = int(getattr(self.network, "classes", len(self.names)))
        if self.names and len(self.names) != classes:
            raise ConfigError(
                f"images: names must name the network's {classes} classes, got {len(self.names)}"
            )
        return self.names or tuple(f"class {i}" for i in range(classes))

    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the size of the network's images; pixels are in [0, 1]."""
        image = getattr(self.network, "image", None)
        return super().input_range() if image is None else (tuple(image), 0.0, 1.0)

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Number of classes that the network tells apart."""
        return getattr(self.network, "classes", 0)

    def metrics(self, outputs: Scores, samples: Samples) -> dict[str, float]:
        """Return the share of images whose own class scores highest, and the mean cross-entropy.

        Of equal scores the lowest class wins. The accuracy is the score.
        """
        label = samples.columns["label"]
        accuracy = int((outputs.argmax(1) == label).sum()) / len(label)
        log_loss = float(functional.cross_entropy(outputs, label))
        return {"accuracy": accuracy, "log_loss": log_loss, "score": accuracy}

    def per_sample(self, outputs: Scores, samples: Samples) -> Tensor:
        """Return for every image whether its class scores highest, and a 1: `[samples, 2]`."""
        right = (outputs.argmax(1) == samples.columns["label"]).double()
        return torch.stack([right, torch.ones_like(right)], 1)

    def personal_baseline(self, federation: Federation) -> tuple[str, Mapping[str, Tensor]]:
        """Return the name `own most frequent` and, for each test image, scores of the classes.

        The highest score is that of the owner's most frequent class in training.
        """
        width = max(len(s.train.columns["label"].bincount()) for s in federation.people.values())
        return "own most frequent", {
            p: s.train.columns["label"]
            .bincount(minlength=width)
            .double()
            .expand(len(s.test), width)
            for p, s in federation.scored_people.items()
        }

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of two constants on each person's test images and on all together.

        `most frequent class` is that of everybody's training images, `own most frequent` that of
        a person's own. Their log loss is that of predicting the classes' shares.
        """
        people = federation.people
        own_counts = {p: s.train.columns["label"].bincount() for p, s in people.items()}
        labels = [part.columns["label"] for s in people.values() for part in (s.train, s.test)]
        classes = 1 + max(int(column.max()) for column in labels if len(column))
        counts = {p: functional.pad(c, (0, classes - len(c))) for p, c in own_counts.items()}
        everybody = torch.stack(list(counts.values())).sum(0)
        constants = {
            "most frequent class": dict.fromkeys(people, everybody),
            "own most frequent": counts,
        }
        pool = Samples.concatenate([s.test for s in people.values()])
        # By identity: the constant of everybody is one object, and is scored on the pool once.
        scored: dict[int, Mapping[str, float]] = {}

        def score(shares: Tensor, own: Samples) -> dict[str, float]:
            # Laplace's rule of succession: no class that training lacks has probability 0.
            scores = shares.add(1).log()
            if id(shares) not in scored:
                scored[id(shares)] = self.pooled(scores.expand(len(pool), classes), pool)
            return {**self.metrics(scores.expand(len(own), classes), own), **scored[id(shares)]}

        return {
            name: {p: score(constant[p], s.test) for p, s in federation.scored_people.items()}
            for name, constant in constants.items()
        }
