"""Zero-shot classification of features, with seen and with unseen classes.

Used by `tasks.gaze_zones`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from vergence.core.classification import ClassificationTask, Scores
from vergence.core.data import Batch, Samples
from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.data.synthetic import zsl_synthetic
from vergence.data.zero_shot.semantics import names_of
from vergence.errors import ConfigError, DataError, nearest
from vergence.metrics.intervals import SHARE, Bounds
from vergence.metrics.zero_shot import class_accuracy, zero_shot_scores


@dataclass(frozen=True)
class ZeroShot(ClassificationTask):
    """Predict `y` int64 `[n]` from `x` float32 `[n, d]`, by cross-entropy over all classes.

    Every class counts once, however many samples it has. `u` and `s` are the mean accuracies of
    unseen and of seen classes, `H` their harmonic mean, `T1` that of unseen classes where only
    those may be answered. A network that does not know a class gives it minus infinity.

    Attributes:
        names: names of the classes, in the order of `y`; or a file with them, an .npz with `names`
            or an att_splits.mat. None: those of `zsl_synthetic`.
        unseen: names or numbers of the classes that count as unseen; none: those of
            `zsl_synthetic`, if `names` is empty too.

    Source: Xian, Lampert, Schiele, Akata, "Zero-shot learning: a comprehensive evaluation of the
    good, the bad and the ugly", TPAMI 2019, section 4.
    """

    names: tuple[str, ...] | str = ()
    unseen: tuple[str | int, ...] = ()

    input_columns: ClassVar[tuple[str, ...]] = ("x",)
    labels: ClassVar[tuple[str, ...]] = ("y",)
    headline: ClassVar[str] = "H"
    bounds: ClassVar[Mapping[str, Bounds]] = dict.fromkeys(("T1", "u", "s", "H"), SHARE)

    def __post_init__(self) -> None:
        # A frozen record can only set its fields this way.
        if not self.names and not self.unseen:
            object.__setattr__(self, "unseen", zsl_synthetic.UNSEEN)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of all classes.

        Raises:
            DataError: the file with the names is missing, or of another kind.
        """
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if not self.names:
            return zsl_synthetic.NAMES
        return names_of(self.names) if isinstance(self.names, str) else self.names

    @cached_property
    def unseen_classes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The numbers of the unseen classes, in order.

        Raises:
            ConfigError: a name or number is no class or comes twice, or none or all are unseen.
        """
        names = self.class_names()
        known = {**{name: i for i, name in enumerate(names)}, **{i: i for i in range(len(names))}}
        for label in self.unseen:
            if label not in known:
                close = nearest(label, names) if isinstance(label, str) else ""
                raise ConfigError(
                    f"{registry_name(self)}: unseen has '{label}', which is no class{close}; give "
                    f"names, or numbers from 0 to {len(names) - 1}"
                )
        numbers = tuple(sorted({known[label] for label in self.unseen}))
        if len(numbers) != len(self.unseen) or len(numbers) in (0, len(names)):
            raise ConfigError(
                f"{registry_name(self)}: unseen must name some of the {len(names)} classes but not "
                f"all, each once; got {list(self.unseen)}"
            )
        return numbers

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Number of classes, seen and unseen."""
        return len(self.class_names())

    def forward(self, module: nn.Module, batch: Batch) -> Scores:
        """Return unnormalised log-probabilities of all classes.

        Raises:
            ConfigError: the network has other classes.
        """
        output = module(batch["x"])
        if output.shape != (len(batch["x"]), self.classes):
            raise ConfigError(
                f"{registry_name(self)}: {type(module).__name__} returned {list(output.shape)} for "
                f"{len(batch['x'])} samples; a score per sample and class is needed, the unseen "
                f"ones too: [{len(batch['x'])}, {self.classes}]"
            )
        return output

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[()]]:
        """Return the features; there are no side inputs."""
        return batch["x"], ()

    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the number of features, which are in [0, 1]."""
        return (getattr(self.network, "inputs", 0),), 0.0, 1.0

    def metrics(self, outputs: Scores, samples: Samples) -> dict[str, float]:
        """Return `T1`, `u`, `s` and `H`, as far as the samples determine them; the score is H.

        Samples of seen classes alone (a teacher's validation data, say) determine only `s`, which
        is then the score.
        """
        scores = zero_shot_scores(outputs, samples.columns["y"], self.unseen_classes)
        return {**scores, "score": scores.get("H", scores.get("s", scores.get("T1", 0.0)))}

    def per_class(self, outputs: Scores, samples: Samples) -> dict[str, float]:
        """Return the accuracy of every class that has samples; every class may be predicted."""
        accuracies = class_accuracy(outputs, samples.columns["y"]).tolist()
        # Only NaN, of a class without samples, differs from itself.
        return {
            name: value
            for name, value in zip(self.class_names(), accuracies, strict=True)
            if value == value
        }

    def check(self, federation: Federation) -> None:
        """Refuse data of other classes, and test samples that do not determine both `u` and `s`.

        Raises:
            DataError: the data are refused; the message names the person and what is wrong.
        """
        names, unseen = self.class_names(), set(self.unseen_classes)
        expected = {"classes": names, "unseen": tuple(names[i] for i in sorted(unseen))}
        for what, own in expected.items():
            theirs = federation.about.get(what)
            if theirs is not None and theirs != ", ".join(own):
                raise DataError(
                    f"{registry_name(self)}: {what} of '{federation.name}' are {theirs}, those of "
                    f"the task {', '.join(own)}; set task.names and task.unseen to those of the "
                    "data"
                )
        for person, splits in federation.scored_people.items():
            tested = set(splits.test.columns["y"].unique().tolist())
            if not tested <= set(range(len(names))) or not tested & unseen or tested <= unseen:
                raise DataError(
                    f"{registry_name(self)}: test samples of {person} are of classes "
                    f"{sorted(tested)}; H needs some of the unseen ones, {sorted(unseen)}, and "
                    f"some of the others, below {len(names)}"
                )

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of two predictions without features, by baseline and person.

        `most frequent class` is that of everybody's training samples; `chance` predicts classes at
        random, in the mean over draws.
        """
        train = torch.cat([s.train.columns["y"] for s in federation.people.values()])
        counts = train.bincount(minlength=self.classes).float()
        hidden = len(self.unseen_classes)
        # T1 chooses among the unseen classes alone.
        guess = 1 / self.classes
        chance = {"T1": 1 / hidden, "u": guess, "s": guess, "H": guess, "score": guess}
        frequent = {
            person: self.metrics(counts.expand(len(s.test), -1), s.test)
            for person, s in federation.scored_people.items()
        }
        return {"most frequent class": frequent, "chance": dict.fromkeys(frequent, chance)}
