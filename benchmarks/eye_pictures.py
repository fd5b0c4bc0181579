"""Two pictures of eyes: gaze as arrows (SplitFed Figure 2.1), noise on what crosses a cut (3.2).

    python -m benchmarks.eye_pictures runs/eyes --arrows arrows.png --noise noise.png

Arrows: the first test eyes of each person, with the true direction and the one that the person's
model predicts. Noise: what the first convolution makes of one eye, under the Laplace noise of
PixelDP at each level, and the same map again: noise is new every time. The convolution has operator
norm 1 first, as PixelDP asks. Pictures of real eyes show people: keep them to yourself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from vergence.attacks.defended_clients import PixelNoise
from vergence.core.params import Params
from vergence.core.stages import Staged
from vergence.errors import ConfigError
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.privacy.keyed_noise import NoiseKey
from vergence.results.figure_style import save
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import bind_parameters

LEVELS = (0.0, 0.2, 0.5, 1.0, 2.0)
ARROW = 0.9
"""Of a picture's height, for a gaze at 90 degrees from straight ahead."""
TRUE, PREDICTED = "#ffffff", "#ff7f0e"


def offsets(gaze: Tensor, height: int) -> Tensor:
    """Arrows `[n, 2]` in pixels, right and down, of (pitch, yaw) in radians.

    A person who looks up and to the own left looks up and to the picture's right: the direction
    (-cos p sin y, -sin p, -cos p cos y) in the camera's frame, without its depth.
    """
    pitch, yaw = gaze.unbind(1)
    return ARROW * height * torch.stack([-pitch.cos() * yaw.sin(), -pitch.sin()], 1)


def network_of(run: TrainedRun, person: str) -> nn.Module:
    """The network that a person predicts with."""
    return bind_parameters(run.task.module(), run.model(person)).eval()


def arrows(run: TrainedRun, each: int = 4, most: int = 6) -> Figure:
    """Draw people's eyes with true and predicted gaze."""
    people = run.loaded.raw.clients[:most]
    figure = Figure(figsize=(1.7 * each, 1.15 * len(people)))
    axes = figure.subplots(len(people), each, squeeze=False)
    for person, row in zip(people, axes, strict=True):
        batch = run.loaded.ready.people[person].test.take(slice(0, each))
        with torch.no_grad():
            found = run.task.forward(network_of(run, person), batch)
        height, width = batch["image"].shape[-2:]
        for i, cell in enumerate(row):
            cell.imshow(batch["image"][i, 0], cmap="gray", vmin=0, vmax=255)
            for gaze, colour in ((batch["gaze"], TRUE), (found, PREDICTED)):
                right, down = offsets(gaze.float(), height)[i].tolist()
                cell.annotate(
                    "",
                    (width / 2 + right, height / 2 + down),
                    (width / 2, height / 2),
                    arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8},
                    annotation_clip=False,
                )
            cell.axis("off")
        row[0].set_title(person, loc="left", fontsize=8)
    figure.suptitle("white: true gaze; orange: predicted", fontsize=9)
    return figure


def noise(run: TrainedRun, channels: int = 4) -> Figure:
    """Draw one eye's first features under noise of every level, twice.

    Raises:
        ConfigError: a network whose first stage is no convolution.
    """
    person = run.loaded.raw.clients[0]
    network = network_of(run, person)
    first = next(iter(network.stages)) if isinstance(network, Staged) else ""
    if not isinstance(network, Staged) or not isinstance(network.get_submodule(first), nn.Conv2d):
        raise ConfigError(f"{run.folder}: the picture of noise needs a network of stages, as lenet")
    image = run.loaded.raw.people[person].test.take(slice(0, 1))["image"]
    pixels = image.float() / 255
    figure = Figure(figsize=(1.5 * (channels + 2), 1.15 * len(LEVELS)))
    axes = figure.subplots(len(LEVELS), channels + 2, squeeze=False)
    for level, row in zip(LEVELS, axes, strict=True):
        defence = PixelNoise(level)
        defence.constrain(network, *image.shape[-2:])
        with torch.no_grad():
            clean = network.stage(first, pixels)
        sent = [clean] * 2
        if level:
            layers, secret = Params.of(network), NoiseKey(bytes(32))
            sent = [defence.released(clean, pixels, turn, layers, secret) for turn in (1, 2)]
        shown = [image[0, 0], *sent[0][0, :channels], sent[1][0, 0]]
        reach = float(clean[0, :channels].abs().max())
        for i, (cell, values) in enumerate(zip(row, shown, strict=True)):
            low, high = (0, 255) if i == 0 else (-reach, reach)
            cell.imshow(values, cmap="gray", vmin=low, vmax=high)
            cell.axis("off")
        row[0].set_title(f"l = {level:g}", loc="left", fontsize=8)
    axes[0][1].set_title("what is sent: first maps", loc="left", fontsize=8)
    axes[0][-1].set_title("first map, again", loc="left", fontsize=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.eye_pictures")
    parser.add_argument("run", type=Path, help="a finished run of task gaze_angle")
    parser.add_argument("--arrows", type=Path)
    parser.add_argument("--noise", type=Path)
    chosen = parser.parse_args(arguments)
    run = read_run(chosen.run)
    if not isinstance(run.task, GazeAngle):
        raise ConfigError(f"{chosen.run} is of another task; eyes with gaze are of gaze_angle")
    for path, draw in ((chosen.arrows, arrows), (chosen.noise, noise)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            print(save(draw(run), path))


if __name__ == "__main__":
    main()
