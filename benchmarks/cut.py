"""Error of a split network against what stands at its cut, and what an attacker gets back.

    python -m benchmarks.cut [ROW ...]

`experiments/split_u_bottleneck.toml` (U-shape, ten of the generator's people) with another defence
in every row, one seed, one process; then `vergence privacy audit --quick` on the first person.
Pixel noise stands behind the first convolution, all others behind the third.
One Markdown line per row.
"""

import argparse
import io
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from vergence.audit.run import audit
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.results.read import read

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "split_u_bottleneck.toml"
SHALLOW = ["method.cut=conv1"]


def bottleneck(epsilon: float, frozen: bool) -> list[str]:
    kept = f"clip = 0.85, epsilon = {epsilon}, frozen = {str(frozen).lower()}"
    return [f'privacy.cut={{ name = "bottleneck", {kept} }}']


ROWS = {
    "none": ["privacy={}"],
    **{f"frozen-{e:g}": bottleneck(e, True) for e in (8, 100, 1000)},
    **{f"trained-{e:g}": bottleneck(e, False) for e in (8, 100, 1000)},
    **{f"nopeek-{w:g}": [f'privacy.cut={{ name = "nopeek", weight = {w} }}'] for w in (0.1, 1.0)},
    "none-conv1": ["privacy={}", *SHALLOW],
    **{
        f"pixel-{level:g}": [f'privacy.cut={{ name = "pixel_dp", level = {level} }}', *SHALLOW]
        for level in (0.05, 0.2, 1.0)
    },
}


def measure(name: str) -> str:
    """Return the row of a run: error, epsilon, and of the last line of its audit MSE and SSIM."""
    with tempfile.TemporaryDirectory() as folder:
        start(load(EXPERIMENT, [*ROWS[name], "run.workers=1"]), Path(folder) / "run")
        run = read(Path(folder) / "run").runs[0]
        spent, error = run.results.get("privacy", {}), run.estimates["angle_error_deg"].mean
        found = audit(Path(folder) / "run", Console(file=io.StringIO()), quick=True)
    assert found.pictures is not None
    lines = found.pictures.records
    told = ((kind, spent[kind]["epsilon"]) for kind in ("picture", "pixel") if kind in spent)
    epsilon = next((f"{value:.3g} per {kind}" for kind, value in told), "")
    seen = [line for line in lines if "in the run" in str(line["what the server has"])][-1]
    mean = lines[0]
    return (
        f"| {name} | {epsilon} | {error:.2f} | {seen['seen']} | {seen['mse']:.4f} | "
        f"{mean['mse']:.4f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    torch.set_num_threads(1)
    for name in parser.parse_args().rows or ROWS:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
