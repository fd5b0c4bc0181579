"""Early stopping: a run ends when a validation metric no longer improves.

Used in `api`, `deployment`, `engine` and `experiment`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError

VALIDATION = "V0"
"""The evaluation point at which early stopping looks: clients' models on validation samples."""


@dataclass(frozen=True)
class EarlyStopping(NamedOptions):
    """Rule by which a run ends before its planned number of rounds.

    At every evaluation of the run (`run.evaluate_every`) each client's model is also scored on the
    client's validation samples. The run ends when the mean over people has not improved for
    `patience` evaluations in a row, or after its planned number of rounds. It then goes back to the
    models of the best evaluation, before the method's `finish`. A run for which nobody chose a
    number of rounds has this rule with a patience of 8.

    Attributes:
        patience: number of evaluations in a row without improvement after which the run ends. With
            0 it never ends early.
        metric: name of the metric, which is measured on validation samples, never on test samples;
            "": the task's headline metric.
        min_gain: a value is an improvement if it is better than the best value so far by more than
            this number, in units of the metric. It decides when a run ends, not which evaluation is
            the best one.
        restore_best: whether the models of the best evaluation stay, by any gain, and of equal ones
            the first. With false, and where no value is finite, the models of the last round stay.

    Source: Goodfellow, Bengio, Courville, "Deep Learning", 2016, algorithm 7.1.
    """

    patience: Annotated[int, Ge(0)] = 0
    metric: str = ""
    min_gain: Annotated[float, Ge(0)] = 0.0
    restore_best: bool = True

    @property
    def restores(self) -> bool:
        """Whether a run ends with the models of its best evaluation."""
        return self.patience > 0 and self.restore_best

    def best(self, values: Sequence[float], lower_is_better: bool) -> int | None:
        """Return the place of the best of the metric's values; None: no value is finite."""
        sign = -1 if lower_is_better else 1
        places = [at for at, value in enumerate(values) if math.isfinite(value)]
        return max(places, key=lambda at: sign * values[at], default=None)

    def ends(self, values: Sequence[float], lower_is_better: bool) -> bool:
        """Return whether a run ends after these values of the metric, oldest first.

        NaN never counts as an improvement.
        """
        if not self.patience:
            return False
        best, since = float("-inf"), 0
        for value in values:
            signed = -value if lower_is_better else value
            since += 1
            if math.isfinite(value) and signed > best + self.min_gain:
                best, since = signed, 0
        return since >= self.patience

    def watched(self, headline: str, metrics: Collection[str]) -> str:
        """Return the name of the metric that is watched.

        Args:
            headline: the task's headline metric.
            metrics: names of the metrics that were measured.

        Raises:
            ConfigError: the metric to watch is not among `metrics`.
        """
        name = self.metric or headline
        if name not in metrics:
            raise ConfigError(
                f"early_stopping: metric = {name!r} is not measured on validation samples, and "
                "test samples never end a run; choose one of what is measured there: "
                f"{', '.join(sorted(metrics))}"
            )
        return name
