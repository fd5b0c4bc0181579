"""What samples buy new people whose common model is a public network on whole eye patches.

    python -m benchmarks.adapt_public_predictions --out docs/results/adapt_public_predictions.csv

VERGENCE_DATA names the folder with `eyes/mpiigaze_9x15`, which has the predictions of two public
networks (LeNet, ResNet) for each of eleven people of MPIIGaze by a model of the others, and 9x15
crops of the images that they saw. Corrections read predictions, head pose, side and crop, as the
networks' last layers are not published. Variances are fitted to the residuals of the ten other
people alone. For every person and number of samples k, samples are drawn several times from the
person's 3,000, and errors are degrees on the others. `as adapt chooses` keeps the residual kernel
unless, on the k samples without one fold, the shared model or kernel ridge alone is two standard
errors better. Finished people are in the file, and are not measured again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.common.options import options
from vergence.adaptation.choice import AGAINST_OTHERS, FEWEST, fold_numbers, simplest_way
from vergence.adaptation.fine_tuning import KERNEL_ALONE, SHARED
from vergence.adaptation.other_people import RESIDUAL
from vergence.core.randomness import RandomStream
from vergence.metrics.angles import angular_error_deg
from vergence.metrics.calibration import orders
from vergence.models.personal_eye import person_inputs
from vergence.training.residual_kernel import (
    DEFAULT,
    KernelCorrection,
    ResidualKernel,
    evidence,
    fit_alone,
)

COUNTS = (1, 3, 9, 27, 81)
CHOSEN_ON = ("p00", "p01", "p02")
"""People on whom settings were chosen."""
MODELS = {"ResNet": "pred_resnet_preact8", "LeNet": "pred_lenet"}
CHOSEN, FIXED, LINEAR = "as adapt chooses", "fixed variances", "without the crop"
Fit = Callable[[Tensor, Tensor, Tensor], KernelCorrection | None]


@dataclass(frozen=True)
class Person:
    """Predictions and true angles `[n, 2]`, and inputs `[n, inputs]`, of one person."""

    predicted: Tensor
    true: Tensor
    inputs: Tensor

    def error(self, fit: Fit, learned: Tensor, asked: Tensor) -> np.ndarray:
        """Return the errors in degrees on the rows `asked`, learned from the rows `learned`."""
        made = fit(self.predicted[learned], self.true[learned], self.inputs[learned])
        plain = self.predicted[asked]
        angles = plain if made is None else made(plain, self.inputs[asked])
        return angular_error_deg(angles, self.true[asked]).numpy()


def people(key: str) -> dict[str, Person]:
    """Return the eleven people with the predictions of one network."""
    root = Path(os.environ.get("VERGENCE_DATA", "VERGENCE_DATA")) / "eyes" / "mpiigaze_9x15"
    data = np.load(root / "mpiigaze_9x15.npz")
    # The first half are left eyes.
    side = (torch.arange(3000) >= 1500).float()
    everybody = {}
    for at, name in enumerate(data["person"]):
        image = torch.from_numpy(data["image"][at])[:, None].float()
        inputs = person_inputs(image, torch.from_numpy(data["pose"][at]), side).double()
        predicted, gaze = (torch.from_numpy(data[k][at]).double() for k in (key, "gaze"))
        everybody[str(name)] = Person(predicted, gaze, inputs)
    return everybody


def ways(others: Mapping[str, Tensor]) -> dict[str, Fit]:
    """Return name -> fit of each way, the variances from other people's evidence."""
    fitted = ResidualKernel.of(torch.stack(list(others.values())).sum(0))
    without = fitted.variances.clone()
    without[4] = 0
    return {
        RESIDUAL: fitted.fit,
        SHARED: lambda *_: None,
        KERNEL_ALONE: fit_alone,
        FIXED: DEFAULT.fit,
        LINEAR: ResidualKernel(without).fit,
    }


def chosen(own: Person, some: Tensor, fits: Mapping[str, Fit]) -> str:
    """Return the way that `adapt` would choose among three, by the samples `some`."""
    if len(some) < FEWEST:
        return RESIDUAL
    fold, losses = torch.from_numpy(fold_numbers(len(some))), {}
    for way in (RESIDUAL, SHARED, KERNEL_ALONE):
        losses[way] = np.empty(len(some))
        for number in range(int(fold.max()) + 1):
            out = fold == number
            losses[way][out.numpy()] = own.error(fits[way], some[~out], some[out])
    return simplest_way(losses, needed=AGAINST_OTHERS)


def measure(model: str, name: str, draws: int) -> list[tuple[str, str, int, str, float]]:
    """Return rows (model, person, samples, way, degrees) of one person, means over draws."""
    everybody = people(MODELS[model])
    own = everybody[name]
    fits = ways({k: evidence(*vars(p).values()) for k, p in everybody.items() if k != name})
    order = orders(len(own.true), draws, RandomStream("adapt public predictions", name).numpy())
    rows = []
    for k in COUNTS:
        errors: dict[str, list[float]] = {}
        for each in order:
            some, other = each[:k], each[k:]
            values = {way: float(own.error(fit, some, other).mean()) for way, fit in fits.items()}
            values[CHOSEN] = values[chosen(own, some, fits)]
            for way, value in values.items():
                errors.setdefault(way, []).append(value)
        rows += [(model, name, k, way, float(np.mean(e))) for way, e in errors.items()]
    return rows


def table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return degrees by model, way and samples, of p03 to p10 and in brackets of everybody."""
    each = errors.set_index(["model", "way", "samples", "person"]).degrees.unstack("person")
    few, whole = each.drop(columns=list(CHOSEN_ON)).mean(axis=1), each.mean(axis=1)
    cells = few.map("{:.2f}".format) + " (" + whole.map("{:.2f}".format) + ")"
    shared = each.xs(SHARED, level="way")
    harmed = each.xs(CHOSEN, level="way").gt(1.01 * shared).sum(axis=1).astype(str)
    harmed = pd.concat({"harmed by that choice": harmed}, names=["way"])
    harmed = harmed.reorder_levels(["model", "way", "samples"])
    order = [SHARED, KERNEL_ALONE, FIXED, LINEAR, RESIDUAL, CHOSEN, "harmed by that choice"]
    wide = pd.concat([cells, harmed]).unstack("samples")
    return pd.DataFrame(wide).reindex(pd.MultiIndex.from_product([list(MODELS), order]))


def main() -> None:
    """Measure who is missing in the file, and print the table."""
    asked = options(__doc__, out="runs/adapt_public_predictions.csv", draws=10, table="")
    torch.set_num_threads(1)
    out = Path(asked.out)
    columns = ["model", "person", "samples", "way", "degrees"]
    done = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=columns)
    for model in MODELS:
        for name in people(MODELS[model]):
            if ((done.model == model) & (done.person == name)).any():
                continue
            made = pd.DataFrame(measure(model, name, asked.draws), columns=columns).round(4)
            made.to_csv(out, mode="a", index=False, header=not out.exists())
            print(model, name, flush=True)
    whole = table(pd.read_csv(out))
    print(whole.to_string())
    if asked.table:
        whole.index = [f"{way}, {model}" for model, way in whole.index]
        whole.to_csv(asked.table, index_label="labelled samples")


if __name__ == "__main__":
    main()
