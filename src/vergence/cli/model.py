"""`vergence model`: pruning, costs of every cut of a network, and personal masks by layer.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from vergence.cli.app import Flag, OutFile, OutFolder
from vergence.console import out
from vergence.experiment.trust import ask_for_trust

model = App(name="model", help="Smaller networks, where to cut one, which layers became personal.")


@model.command
@ask_for_trust
def prune(
    folder: Path,
    *,
    out_: OutFolder,
    person: str = "all",
    amounts: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (
        0.9,
        0.95,
        0.99,
        0.999,
    ),
    tune: int = 0,
    cut: str | None = None,
    rounds: int = 200,
) -> None:
    """Prune a run's models: error, zeros, size and time per amount; a table, a picture, the models.

    Args:
        folder: run directory of one method, or of leave-one-out.
        out_: a directory for prune.csv, prune.md, prune.png and the pruned models.
        person: one person, or all.
        amounts: shares of the linear layers' weights that are set to zero.
        tune: number of training batches after pruning.
        cut: a stage of the network; zeros and sizes are then given for the client's and the
            server's layers separately.
        rounds: timed repetitions.
    """
    from vergence.model_tools.pruning_study import PruningOptions
    from vergence.model_tools.pruning_study import prune as measure

    measure(folder, out_, out, PruningOptions(person, amounts, tune, cut, rounds))


@model.command(name="split-plan")
@ask_for_trust
def split_plan(
    config: Path,
    *,
    out_: OutFile | None = None,
    markdown: Flag = False,
    device: float = 2.0,
    server: float = 200.0,
    up: float = 10.0,
    down: float = 50.0,
    delay: float = 20.0,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Estimate what each cut of a network costs, without training: bytes, FLOPs, memory, time.

    Args:
        config: an experiment (TOML).
        out_: a picture (.png, .svg, .pdf); the numbers go beside it, as .csv.
        markdown: print the tables in Markdown.
        device: speed of a client's device in training, in GFLOP/s.
        server: speed of the server for one client, in GFLOP/s.
        up: bandwidth from the device, in Mbit/s.
        down: bandwidth to the device, in Mbit/s.
        delay: latency of a message in one direction, in ms.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.experiment.schema import load
    from vergence.model_tools.split_pace import Speeds
    from vergence.model_tools.split_plan import show

    show(load(config, set_), out, out_, markdown, Speeds(device, server, up, down, delay))


@model.command
def masks(folder: Path) -> None:
    """Print which layers became personal, and how far people and seeds agree, next to chance.

    Args:
        folder: what `vergence run --out` wrote, or a run directory below.
    """
    from vergence.studies.mask_anatomy import print_anatomy

    print_anatomy(folder, out)
