"""FedAvg by frames against FedAvg by clips, on clips of unequal length, paired over seeds.

python -m benchmarks.frame_weights: ten made-up people, whose clips have about 60, 120 or 240
frames. They find the same important (`alike`), or people with clips of another length another thing
(`apart`). With --root, key frames of TVSum dealt to four people, 11 to 28 frames a clip. A seed
draws data, first weights and batches; both runs of a pair share them. Printed are tau and F, means
over people's own tests, the mean difference with its 95 % interval (Student's t, over seeds), and
what random importance gets.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.clip_synthetic import ClipSynthetic
from vergence.data.video_summaries.tvsum import TVSum
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.metrics.intervals import interval
from vergence.models.vslstm import VsLSTM
from vergence.tasks.summary import SummaryTask
from vergence.training.sequential import Solver

LOCAL = LocalTraining(epochs=2, batch=4, optimizer="adam", lr=0.01)
MEASURES = ("tau", "f")


def measured(people: Federation, task: SummaryTask, rounds: int) -> list[float]:
    """Return tau and F of the model after the last round, means over people."""
    with run_folder() as folder:
        plan = Plan(rounds=rounds, evaluate_every=0, checkpoint_every=0, workers=1)
        model = run_rounds(
            FedAvg(local=LOCAL), task, federation=people, plan=plan, folder=folder
        ).server.model
    solver = Solver(task)
    tests = [s.test for s in people.people.values()]
    return mean([task.metrics(solver.outputs(model, test), test) for test in tests])


def mean(rows: Iterable[Mapping[str, float]]) -> list[float]:
    """Return tau and F, means over people."""
    return np.mean([[row[name] for name in MEASURES] for row in rows], 0).tolist()


def compared(name: str, load: Callable[[int], Federation], network: VsLSTM, args) -> None:
    """Print a data set's row per measure."""
    rows = []
    for seed in range(args.seeds):
        people, tasks = (
            load(seed),
            [SummaryTask(network, seed, counts=c) for c in ("frames", "clips")],
        )
        chance = mean(tasks[0].priors(people)["random"].values())
        rows.append([*(measured(people, task, args.rounds) for task in tasks), chance])
    found = np.array(rows)
    for i, measure in enumerate(MEASURES):
        by_frames, by_clips, chance = found[:, :, i].T
        low, high = interval(by_frames - by_clips)
        print(
            f"{name:10} {measure:3}  frames {by_frames.mean():.3f}  clips {by_clips.mean():.3f}  "
            f"difference {(by_frames - by_clips).mean():+.4f} [{low:+.4f}, {high:+.4f}]  "
            f"random {chance.mean():.3f}"
        )


def main() -> None:
    """Print the table."""
    args = options(
        __doc__.partition("\n")[0],
        seeds=10,
        rounds=5,
        root={"help": "folder with tvsum_keyframes_effnetlite0.npz"},
    )
    for name, strength in (("alike", 0.0), ("apart", 1.0)):

        def load(seed: int, strength: float = strength) -> Federation:
            return ClipSynthetic(communities="lengths", strength=strength, seed=seed).load()

        compared(name, load, VsLSTM(4, 8), args)
    if args.root:

        def keyframes(seed: int) -> Federation:
            return TVSum(people=4, keyframes=True, split_seed=seed).load(args.root)

        compared("key frames", keyframes, VsLSTM(1280, 16), args)


if __name__ == "__main__":
    main()
