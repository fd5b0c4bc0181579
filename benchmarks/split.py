"""What cutting a network costs: CPU seconds of a round, beside FedAvg's, in the simulator.

python -m benchmarks.split [people] [images] [rounds]

Every method trains LeNet on the same made-up patches, one worker in this process; rounds of all
methods are interleaved by taking a few rounds of each in turn, and medians over rounds are given.
`again` is the time of the forward pass that clients repeat when a gradient arrives.
"""

import itertools
import statistics
import sys
import time

import torch

from benchmarks.common.runs import run_folder
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.requests import Forward
from vergence.core.stages import pieces
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainers

REPEATS = 3
LOCAL = LocalTraining(optimizer="sgd", batch=32, lr=0.01, nesterov=True)
METHODS = {
    "FedAvg": FedAvg(local=LOCAL),
    "SplitFed V1": SplitFed(local=LOCAL),
    "SplitFed V1, float16": SplitFed(local=LOCAL, number="float16"),
    "SplitFed V1, int8": SplitFed(local=LOCAL, number="int8"),
    "SplitFed V1, cut after fc1": SplitFed(local=LOCAL, cut="fc1"),
    "SplitFed V2": SplitFedV2(local=LOCAL),
    "split": SplitLearning(local=LOCAL),
    "U-shape": SplitFedU(local=LOCAL),
    "local loss": LocalLossSplit(local=LOCAL),
    "smashed average": SmashedAverage(local=LOCAL),
}


def people(count: int, images: int) -> Federation:
    """Return made-up patches, gaze and head pose."""
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Samples:
        image = torch.randint(256, (n, 1, 36, 60), generator=generator, dtype=torch.uint8)
        gaze = 0.1 * torch.randn(n, 2, generator=generator)
        return Samples({"image": image, "gaze": gaze, "pose": gaze.flip(1)})

    made = {f"p{i:02d}": Splits(part(images), part(1), part(1)) for i in range(count)}
    return Federation("made up", made)


def rounds(name: str, data: Federation, count: int) -> list[float]:
    """Return the CPU seconds of each round after the first."""
    at: list[float] = []
    with run_folder() as folder:
        plan = Plan(
            rounds=count + 1, evaluate_every=0, workers=1, solver="sequential", checkpoint_every=0
        )
        task = GazeAngle(LeNet())
        run_rounds(
            METHODS[name],
            task,
            federation=data,
            plan=plan,
            folder=folder,
            tick=lambda *_: at.append(time.process_time()),
        )
    return [b - a for a, b in itertools.pairwise(at)]


def again(data: Federation) -> float:
    """Return the CPU seconds of one pass of the clients' layers over everybody's images."""
    task = GazeAngle(LeNet())
    front = pieces(task, "")[0]
    trainers, params = Trainers(task), front.init()
    batches = [
        s.train.take(slice(i, i + 32))
        for s in data.people.values()
        for i in range(0, len(s.train), 32)
    ]
    start = time.process_time()
    for batch in batches:
        trainers.answer(Forward(params, batch, lambda _: front), 0.0)
    return time.process_time() - start


def main(count: int = 3, images: int = 320, turns: int = 2) -> None:
    torch.set_num_threads(1)
    data = people(count, images)
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    repeated = []
    for _ in range(REPEATS):
        for name in METHODS:
            found[name] += rounds(name, data, turns)
        repeated.append(again(data))
    floor = statistics.median(found["FedAvg"])
    print(
        f"{count} people, {images} images each, LeNet, batch 32; medians of "
        f"{REPEATS * turns} rounds, CPU seconds"
    )
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{name:28} {median:7.3f} s   {median / floor:5.2f} x FedAvg")
    print(
        f"{'of it, forward repeated':28} {statistics.median(repeated):7.3f} s   "
        f"{statistics.median(repeated) / floor:5.2f} x FedAvg"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
