"""Figure of learning without labels: eyes reconstructed with codes of other eyes.

Used by `cli.study`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vergence.errors import ConfigError
from vergence.experiment.newcomers import find_held_out
from vergence.results.figure_style import MUTED, bare, canvas, figure_format, save, styled
from vergence.results.read import read
from vergence.studies.few_shot import FewShotOptions as Evaluation
from vergence.studies.few_shot import FewShotScene
from vergence.tasks.cross_encoder import pixels

GIVEN, OTHER, TWIN = "input", "another glance", "other eye"
DRAWN, EYE, GAZE, TWIN_GAZE = (
    "drawn again",
    "eye code of\nanother glance",
    "gaze code of\nanother glance",
    "gaze code of\nother eye",
)


def swaps(folder: Path, out: Path, columns: int = 6, person: str | None = None) -> Mapping:
    """Draw the eyes of an unseen client with swapped codes, as Fig. 2.2 of the thesis.

    Args:
        folder: a run directory of task `cross_encoder` with people it never saw.
        out: the figure (.png, .svg, .pdf).
        columns: number of glances of this person, from the leftmost look to the rightmost.
        person: one of these people; default the first.

    Returns:
        images `[columns, H, W]` by name of the row.

    Raises:
        ConfigError: another task, an unknown person, or rows of single eyes.
    """
    figure_format(out)
    task = read(folder).runs[0].results["task"]
    if task != "cross_encoder":
        raise ConfigError(
            f"{folder} is of task '{task}'; only a cross_encoder has codes to swap "
            "(docs/how-to/unlabelled.md)"
        )
    left_out = find_held_out(folder, person or "all")
    who = next(iter(left_out.folders))
    trained = left_out.run(who)
    network = FewShotScene(trained, (who,), Evaluation()).network(trained.newcomer(who))
    samples = trained.ready.people[who].test
    eyes = pixels(dict(samples.columns))
    if eyes.shape[1] == 1:
        raise ConfigError(f"{folder}: rows of single eyes have no other eye of the same glance")
    # By the yaw of the left eye.
    order = samples.columns["gaze"][:, 0, 1].argsort()
    chosen = order[torch.linspace(0, len(order) - 1, columns).round().long()]
    with torch.no_grad():
        rows = swapped_images(network, eyes[chosen], trained.task.network.gaze)  # type: ignore[attr-defined]
    save(figure(rows, who), out)
    return rows


def swapped_images(network: torch.nn.Module, eyes: Tensor, gaze: int) -> dict[str, np.ndarray]:
    """Return left eyes, and the decoder's images of their codes after each swap.

    `eyes` is `[columns, 2, 1, H, W]`.
    """
    # The other glance is that of the opposite column: of a look to the left one to the right.
    codes = network.encode(eyes)  # type: ignore[operator]
    eye, look = codes[..., :-gaze], codes[..., -gaze:]

    def show(eye_: Tensor, look_: Tensor) -> np.ndarray:
        image = network.decode(torch.cat([eye_, look_], 2))  # type: ignore[operator]
        return image[:, 0, 0].clamp(0, 1).numpy()

    return {
        GIVEN: eyes[:, 0, 0].numpy(),
        DRAWN: show(eye, look),
        OTHER: eyes.flip(0)[:, 0, 0].numpy(),
        EYE: show(eye.flip(0), look),
        GAZE: show(eye, look.flip(0)),
        TWIN: eyes[:, 1, 0].numpy(),
        TWIN_GAZE: show(eye, look.flip(1)),
    }


@styled
def figure(rows: Mapping[str, np.ndarray], who: str) -> Figure:
    """Draw the rows, one column per glance, with their names on the left."""
    count, tall, wide = next(iter(rows.values())).shape
    tile = 7.0 / count
    drawing = canvas(7.0 + 1.4, (tile * tall / wide + 0.06) * len(rows) + 0.3)
    grid = drawing.subplots(len(rows), count, squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(image, cmap="gray", vmin=0, vmax=1)
            bare(axes)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    drawing.suptitle(f"left eye of {who}, who took no part", fontsize=8, color=MUTED)
    return drawing
