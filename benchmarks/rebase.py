"""What `vergence adapt --rebase` does for eleven people over three versions of a common model.

    python -m benchmarks.rebase

Needs eyes/mpiigaze_9x15 below VERGENCE_DATA. The people of the MPIIGaze crops are divided in two
halves. Each half trains three versions of a common model: FedAvg after 3 and after 8 rounds, and
`fedridge`. Everybody of the other half is adapted to the first version from `--samples` samples,
and rebased to the second and the third. Errors are degrees on the person's test part, which takes
no part in the choice, before and after each step. Without `--all`, `adapt` chooses among the ways
in closed form: fine-tuning takes long, and is hardly ever chosen for these eyes.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import vergence
from benchmarks.common.options import options
from vergence.adaptation import adapted_run
from vergence.adaptation.adapted_run import adapt
from vergence.adaptation.choice import candidates
from vergence.adaptation.fine_tuning import ADAPTED, LAST, WHOLE, Adapter
from vergence.adaptation.rebase import rebase
from vergence.core.data import Samples
from vergence.data.eye_images.mpiigaze_crops import FILE
from vergence.data.own_samples import pack_samples
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.metrics.angles import angular_error_deg

VERSIONS = (
    ('method={name="fedavg"}', "run.rounds=3"),
    ('method={name="fedavg"}', "run.rounds=8"),
    ('method={name="fedridge"}', "run.rounds=1", 'model={name="kernel_eye",own_centres=0}'),
)
SAME = ("run.seeds=[0]", "run.evaluate_every=0")
COLUMNS = ("person", "version", "taken", "way", "before", "after", "change")


def versions(root: Path, out: Path, people: int) -> list[Path]:
    """Train the versions on the first people of the crops in a folder; return the run folders."""
    out.mkdir(parents=True, exist_ok=True)
    text = Path("experiments/mpiigaze_crops.toml").read_text(encoding="utf-8")
    (out / "crops.toml").write_text(
        text[: text.index("methods ")] + text[text.index("local ") :], "utf-8"
    )
    folders = []
    for number, settings in enumerate(VERSIONS, 1):
        folder = out / f"v{number}"
        if not (folder / "results.json").is_file():
            data = f'federation={{name="mpiigaze_crops",people={people},root="{root.resolve()}"}}'
            sets = [*settings, *SAME, data]
            start(load(out / "crops.toml", sets), folder)
        folders.append(folder)
    return folders


def closed_form(adapter: Adapter) -> list[str]:
    """Return the ways that need no gradient step."""
    trained = (ADAPTED, LAST, WHOLE)
    ways = candidates(adapter)
    return [way for way in ways if way not in trained and not way.startswith("pull")]


def error(folder: Path, person: str, test: Samples) -> float:
    """Return the mean error in degrees of an adapted model on test samples."""
    predicted = vergence.open_run(folder).predict(person, test)
    return float(angular_error_deg(predicted.double(), test.columns["gaze"].double()).mean())


def steps(person: str, folders: list[Path], root: Path, out: Path, count: int) -> list[list[str]]:
    """Adapt to the first version and rebase to the others; return a row for each rebase."""
    parts = vergence.data.MpiigazeCrops().load(str(root)).people[person]
    train, test = (
        Samples({n: part.columns[n] for n in ("image", "pose", "gaze", "side")})
        for part in (parts.train, parts.test)
    )
    some = torch.linspace(0, len(train) - 1, count).long()
    file, me, rows = out / f"{person}.npz", out / person, []
    file.write_bytes(pack_samples(train.subset(some)))
    adapt(folders[0], file, me, person)
    degrees = error(me, person, test)
    for number, folder in enumerate(folders[1:], 2):
        made = rebase(me, folder, out / f"{person}-{number}")
        before, way = degrees, "-"
        if made.adapted is not None:
            me, way = made.adapted.folder, made.adapted.choice.way
            degrees = error(me, person, test)
        taken = "yes" if made.adapted is not None else "no"
        change = f"{100 * (degrees / before - 1) + 0.0:+.1f} %"
        rows.append([person, str(number), taken, way, f"{before:.2f}", f"{degrees:.2f}", change])
        print(",".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Train both halves, rebase everybody, and write the table."""
    asked = options(__doc__, samples=27, out="runs/rebase", all={"action": "store_true"})
    torch.set_num_threads(1)
    root, out = Path(os.environ["VERGENCE_DATA"]) / "eyes" / "mpiigaze_9x15", Path(asked.out)
    other = out / "reversed"
    other.mkdir(parents=True, exist_ok=True)
    with np.load(root / FILE) as file:
        np.savez(other / FILE, **{name: file[name][::-1] for name in file.files})
    people = vergence.data.MpiigazeCrops().load(str(root)).clients
    half = len(people) // 2
    rows = []
    for crops, unseen in ((root, people[half:]), (other, people[:half])):
        place = out / ("first" if crops == root else "second")
        folders = versions(crops, place, len(people) - len(unseen))
        ways = candidates if asked.all else closed_form
        with mock.patch.object(adapted_run, "candidates", ways):
            for person in unseen:
                rows += steps(person, folders, root, place, asked.samples)
    with (out / "rebase.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
