"""The commands that measure: the engine, private inference, and what DP-SGD spends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from vergence.console import out

app = App(
    name="python -m benchmarks.bench",
    help="Measure the engine; `mpc` measures private inference, `canary` what DP-SGD spends.",
    version_flags=[],
)


@app.default
def engine(
    *workloads: str,
    json: Path | None = None,
    rounds: int | None = None,
    peer_python: list[str] = [],  # noqa: B006
    precision: list[str] = [],  # noqa: B006
) -> None:
    """Measure the engine against plain gradient steps and, where installed, other simulators.

    Args:
        workloads: gaze15, gaze15s, xdev, xdevmlp, logistic, cifar10, fedcpf, glc_tiny64,
            glc_cpu64, glc_features; none named: all.
        json: write every number there.
        rounds: timed rounds per workload, instead of its own number.
        peer_python: `NAME=PATH`, the Python that has a peer (flower, pfl, pfllib) installed; may
            be given several times. PFLlib's source is named by the variable PFLLIB.
        precision: a `run.precision` to measure beside fp32, in the same turns, without peers;
            may be given several times.
    """
    from benchmarks.bench.report import run as measure

    measure(workloads, out, json, rounds, peer_python, precision)


@app.command
def mpc(
    *cases: str,
    python: Path = Path(".venv-spu/bin/python"),
    mp_spdz: Path | None = None,
    run: Path | None = None,
    batches: int | None = None,
    out_: Annotated[Path, Parameter(name="--out")] = Path("mpc.csv"),
) -> None:
    """Predict gaze from images that nobody sees: time, bytes, rounds and error of each protocol.

    Args:
        cases: such as aby3, cheetah, semi2k_5, aby3_64, aby3_public, cheetah_pruned, aby3_tail,
            aby3_products, or of protocols that notice lies malicious_sy, malicious_rep, mascot;
            none named: all of SPU's.
        python: of an environment with SPU; without one, the command says how to make it.
        mp_spdz: a directory with MP-SPDZ, built; malicious protocols run there.
        run: a finished run of task gaze_angle, whose model predicts from its images (tests
            first); by default the thesis's Model 2, not trained, and synthetic ones.
        batches: how often each case is computed, on other images.
        out_: the rows (.csv); all that was measured goes beside it, as .json.
    """
    from benchmarks.bench.mpc import Installed
    from benchmarks.bench.mpc_report import run as measure
    from benchmarks.bench.trained_network import finished

    installed = Installed(python, mp_spdz)
    measure(cases, out, installed, out_, batches, None if run is None else finished(run))


@app.command
def canary(*, runs: int = 1000) -> None:
    """Train with and without one sample, by DP-SGD: the epsilon that proves beside that claimed.

    Args:
        runs: trainings of either kind; n of them prove log(n / 8) or so at most.
    """
    from benchmarks.bench.canary import run as measure

    measure(out, runs)
