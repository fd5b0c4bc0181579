"""Predictions of a finished run on test samples, as data frames; confusion matrix and classes.

Used by `api.finished_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vergence.core.naming import registry_name
from vergence.errors import ConfigError
from vergence.experiment.trained_run import TrainedRun

if TYPE_CHECKING:
    from pandas import DataFrame

TARGET, PREDICTED = "target", "predicted"
"""Columns of class numbers, which only classifiers have."""


def predictions(trained: TrainedRun) -> DataFrame:
    """Return what every person's model predicts for the person's test samples.

    Returns:
        A row per sample with the person, the sample's number among the person's test samples, the
        labels, and the outputs: `output` or `output_0`, `output_1`, ... For a classifier also
        `target` and `predicted`, the numbers of classes.

    Raises:
        ConfigError: outputs are maps or sequences, which are no columns of a table.
    """
    import pandas as pd

    frames = []
    for person, splits in trained.ready.scored_people.items():
        samples = trained.with_personal_prior(splits.test, person)
        outputs = trained.outputs(trained.model(person), samples)
        if not isinstance(outputs, Tensor) or outputs.dim() > 2:
            raise ConfigError(
                f"predictions: outputs of task {registry_name(trained.task)} are no columns of a "
                "table; use run.predict(person, samples) for the tensor"
            )
        columns: dict[str, object] = {"person": person, "sample": range(len(samples))}
        labels = {name: samples.columns[name] for name in trained.task.labels}
        for name, values in {**labels, "output": outputs}.items():
            columns |= _columns(name, values)
        classes = next((c for c in labels.values() if _are_classes(c)), None)
        if outputs.dim() == 2 and outputs.shape[1] > 1 and classes is not None:
            columns |= {TARGET: classes.numpy(), PREDICTED: outputs.argmax(1).numpy()}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _columns(name: str, values: Tensor) -> dict[str, object]:
    rows = values.reshape(len(values), -1).numpy()
    if rows.shape[1] == 1:
        return {name: rows[:, 0]}
    return {f"{name}_{place}": rows[:, place] for place in range(rows.shape[1])}


def _are_classes(column: Tensor) -> bool:
    return column.dim() == 1 and not column.dtype.is_floating_point and column.dtype != torch.bool


def confusion(frame: DataFrame) -> DataFrame:
    """Return the numbers of samples by true class (rows) and predicted class (columns).

    Raises:
        ConfigError: the predictions are not those of a classifier.
    """
    import pandas as pd

    if PREDICTED not in frame:
        raise ConfigError(
            "classes, F1 and the confusion matrix need class numbers as targets, and one output "
            "for each class, which this run does not have; run.predictions() has its targets and "
            "outputs"
        )
    classes = np.union1d(frame[TARGET], frame[PREDICTED])
    return pd.crosstab(frame[TARGET], frame[PREDICTED]).reindex(
        index=classes, columns=classes, fill_value=0
    )


def classes(frame: DataFrame) -> DataFrame:
    """Return per class the number of samples, precision, recall and F1; NaN where undefined.

    Raises:
        ConfigError: the predictions are not those of a classifier.
    """
    import pandas as pd

    counts = confusion(frame)
    right, true, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        table = {
            "samples": true,
            "precision": right / said,
            "recall": right / true,
            "f1": 2 * right / (true + said),
        }
    return pd.DataFrame(table).rename_axis("class")
