"""A server that hijacks a client's layers: what it sees, and when SplitGuard says so.

python -m benchmarks.hijacking --data crops --json hijacking.json: one client trains with a server
that never looks at its labels, draws the client's layers to features of its own choice and decodes
them (FSHA); beside it the mean image, the same decoder where the client was trained honestly, and
the inverse network that knows the honest client's layers. The client lies about labels now and then
(SplitGuard). Data: `crops` are MPIIGaze 9x15 (victim p00, shadow people p05 to p10), `real` is
MPIIGaze p00 at 36x60 with the generator's people for shadows, `synthetic` the generator's 9x15.
Without the files the generator stands in, and says so.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.eyes import eye_source, spread
from benchmarks.common.options import options
from benchmarks.common.report import report
from vergence.attacks import score
from vergence.attacks.hijacking import Hijacker, HijackSettings
from vergence.attacks.inverse_network import InverseNetworkAttack
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.params import Params
from vergence.core.requests import Forward, Step
from vergence.core.stages import PULL, SMASHED, Piece, pieces
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.experiment.run import progress_bar
from vergence.models.lenet import LeNet
from vergence.models.small_eye import SmallEye
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.split_guard import SplitGuard, SplitGuardTest, Verdict
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainer

LOCAL = LocalTraining(optimizer="adamw", lr=2e-3)
CUTS = {"real": ("pool1", "pool2", "fc1"), "crops": ("conv1", "conv3", "fc1")}


@dataclass(frozen=True)
class Scene:
    """Whose eyes, what network, and where it is cut."""

    data: str
    victim: Samples
    others: list[Samples]
    task: GazeAngle
    cuts: tuple[str, ...]

    @cached_property
    def shadow(self) -> Samples:
        return joined([spread(samples, 1000 // len(self.others)) for samples in self.others])


def scene(data: str) -> Scene:
    """Load victim and shadow people, or the generator's where there are no files."""
    data, root = eye_source(data)
    small = GazeAngle(SmallEye(pose=False))
    if data == "crops":
        people = MpiigazeCrops().load(root).people.values()
        victim, *others = [spread(splits.train, 400) for splits in people]
        return Scene(data, victim, others[4:], small, CUTS["crops"])
    size = "36x60" if data == "real" else "9x15"
    made = EyeSynthetic(people=21, samples=150, size=size).load().people.values()
    victim, *others = [splits.train for splits in made]
    if data == "real":
        loaded = Mpiigaze(people=("p00",)).load(root)
        victim = spread(loaded.people["p00"].train, 400)
        return Scene(data, victim, others, GazeAngle(LeNet(pose=False)), CUTS["real"])
    return Scene(data, victim, others, small, CUTS["crops"])


def joined(parts: list[Samples]) -> Samples:
    names = set.intersection(*(set(part.columns) for part in parts))
    return Samples.concatenate([Samples({n: p.columns[n] for n in names}) for p in parts])


def pixels(samples: Samples) -> Tensor:
    return samples.columns["image"].float() / 255


@dataclass
class Half:
    """One side's layers, in training as the methods train them."""

    piece: Piece
    params: Params = field(init=False)
    optimiser: OptimizerState = field(default_factory=lambda: OptimizerState({}, 0))

    def __post_init__(self) -> None:
        self.params, self.trainer = self.piece.init().copy(), Trainer(self.piece)

    def gives(self, batch: dict[str, Tensor]) -> Tensor:
        return self.trainer.forward(Forward(self.params, batch, lambda _: self.piece)).clone()

    def steps(self, batch: dict[str, Tensor], wrt: str | None = None) -> Tensor | None:
        asked = Step(self.params, self.optimiser, batch, LOCAL, lambda _: self.piece, wrt)
        done = self.trainer.step(asked)
        self.params, self.optimiser = done.params, done.optimiser
        return done.gradient


Server = Callable[[Tensor, Tensor], Tensor]
"""From smashed data and labels to the gradient that comes back."""


def honest(tail: Half) -> Server:
    def answer(smashed: Tensor, gaze: Tensor) -> Tensor:
        gradient = tail.steps({SMASHED: smashed, "gaze": gaze}, SMASHED)
        assert gradient is not None
        return gradient

    return answer


def mixed(tail: Half, hijacker: Hijacker, share: float) -> Server:
    """A hijacker that hides: its own gradient as long as the honest one, `share` of that added."""
    true = honest(tail)

    def answer(smashed: Tensor, gaze: Tensor) -> Tensor:
        good, own = true(smashed, gaze), hijacker.answer(smashed)
        return own * (good.norm() / own.norm().clamp(min=1e-12)) + share * good

    return answer


def trained(
    front: Half, server: Server, data: Samples, batches: int, guard: SplitGuardTest, seed: int
) -> Iterator[None]:
    """Let a client train with a server, batch by batch; it takes no step with answers to lies."""
    order = torch.Generator().manual_seed(seed)
    lies = NoiseKey(bytes(32)).child("lies", seed).draws()
    for _ in range(batches):
        rows = torch.randint(len(data), (LOCAL.batch,), generator=order)
        batch, false = data.take(rows), guard.lies
        gaze = guard.plan.falsified(batch["gaze"], lies) if false else batch["gaze"]
        pull = server(front.gives(batch), gaze)
        guard.observe(pull)
        if not false:
            front.steps({**batch, PULL: pull})
        yield


def guard_of(seed: int) -> SplitGuardTest:
    return SplitGuardTest(SplitGuard(), NoiseKey(bytes(32)).child("guard", seed).draws())


def attacked(
    stage: Scene, cut: str, batches: int, seed: int, share: float | None = None
) -> dict[str, Any]:
    """Hijack a client; return what is seen when it is first accused, and at the end."""
    ahead, behind = pieces(stage.task, cut)
    front, shadow = Half(ahead), pixels(stage.shadow)
    torch.manual_seed(1000 + seed)
    inputs = stage.task.inputs(stage.shadow.take(slice(None)))[0]
    hijacker = Hijacker(shadow, inputs, ahead.network.build(), HijackSettings(seed=seed))
    server: Server = lambda smashed, _: hijacker.answer(smashed)  # noqa: E731
    if share is not None:
        server = mixed(Half(behind), hijacker, share)
    watch, accused, early = guard_of(seed), None, None
    for at, _ in enumerate(trained(front, server, stage.victim, batches, watch, seed), 1):
        if watch.verdict == "accused" and accused is None:
            accused, early = at, seen(stage, hijacker, front)
    return {"accused": accused, "then": early, "end": seen(stage, hijacker, front)}


def seen(stage: Scene, hijacker: Hijacker, front: Half) -> list[float]:
    """Return MSE and SSIM of what the decoder makes of the client's images."""
    return told(stage, hijacker.reconstruct(front.gives(stage.victim.take(slice(None)))))


def told(stage: Scene, found: Tensor) -> list[float]:
    eyes = pixels(stage.victim)
    return [float(score.mse(eyes, found).mean()), float(score.ssim(eyes, found).mean())]


def beside(stage: Scene, cut: str, batches: int, seed: int) -> dict[str, list[float]]:
    """Return what the inverse network, and FSHA's decoder, find behind honestly trained layers."""
    ahead, behind = pieces(stage.task, cut)
    front, shadow = Half(ahead), pixels(stage.shadow)
    torch.manual_seed(1000 + seed)
    inputs = stage.task.inputs(stage.shadow.take(slice(None)))[0]
    hijacker = Hijacker(shadow, inputs, ahead.network.build(), HijackSettings(seed=seed))
    server = honest(Half(behind))
    for _ in trained(front, server, stage.victim, batches, guard_of(seed), seed):
        pass
    network = InverseNetworkAttack(10).train(front.gives(stage.shadow.take(slice(None))), shadow)
    smashed = front.gives(stage.victim.take(slice(None)))
    return {
        "inverse network": told(stage, network.reconstruct(smashed)),
        "decoder, honest server": told(stage, hijacker.reconstruct(smashed)),
    }


def watched(
    stage: Scene, cut: str, batches: int, trials: int, tick: Callable[[], None]
) -> list[Verdict]:
    """Return SplitGuard's first verdicts on honest servers, each with another client and start."""
    verdicts: list[Verdict] = []
    everybody = [stage.victim, *stage.others]
    for seed in range(trials):
        ahead, behind = pieces(replace(stage.task, seed=seed), cut)
        client, watch = everybody[seed % len(everybody)], guard_of(seed)
        server, first = honest(Half(behind)), "open"
        for _ in trained(Half(ahead), server, client, batches, watch, seed):
            first = watch.verdict if first == "open" or watch.verdict == "accused" else first
        verdicts.append(first)
        tick()
    return verdicts


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line per cut."""
    stage, lines = scene(given.data), []
    cuts = given.cuts or stage.cuts
    with progress_bar() as bar:
        line = bar.add_task(
            "hijacking", total=len(cuts) * (2 + given.seeds + given.trials), score=""
        )

        def tick() -> None:
            bar.update(line, advance=1)

        for cut in cuts:
            bar.update(line, score=cut)
            runs = []
            for seed in range(given.seeds):
                runs.append(attacked(stage, cut, given.batches, seed))
                tick()
            hidden = attacked(stage, cut, given.batches, 0, share=1.0)
            tick()
            other = beside(stage, cut, given.batches, 0)
            tick()
            alarms = watched(stage, cut, given.watch, given.trials, tick)
            lines.append(
                {
                    "data": stage.data,
                    "cut": cut,
                    "hijacked": runs,
                    "hiding": hidden,
                    **other,
                    "mean image": told(
                        stage, score.mean_image(pixels(stage.shadow), len(stage.victim))
                    ),
                    "honest accused": alarms.count("accused"),
                    "honest": len(alarms),
                    "honest trusted": alarms.count("trusted"),
                }
            )
    return lines


def markdown(lines: list[dict[str, Any]], batches: int) -> str:
    """Return the tables: what is seen, and what SplitGuard says."""
    names = ("mean image", "decoder, honest server", "inverse network")
    heads = ["cut", *names, "FSHA, when accused", f"FSHA, after {batches}", "FSHA that hides"]
    table = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    for line in lines:
        then = [run["then"] for run in line["hijacked"] if run["then"]]
        cells = [line[name] for name in names]
        cells += [mean(then), mean([run["end"] for run in line["hijacked"]]), line["hiding"]["end"]]
        shown = [f"{c[0]:.4f} ({c[1]:.2f})" if c else "not accused" for c in cells]
        table.append(f"| {line['cut']} | {' | '.join(shown)} |")
    heads = [
        "cut",
        "FSHA accused after batches",
        "FSHA that hides",
        "honest, accused",
        "honest, trusted",
    ]
    table += ["", f"| {' | '.join(heads)} |", "|---|--:|--:|--:|--:|"]
    for line in lines:
        when = [str(run["accused"] or "never") for run in line["hijacked"]]
        hides = line["hiding"]["accused"]
        table.append(
            f"| {line['cut']} | {', '.join(when)} | {hides or 'never'} | "
            f"{line['honest accused']} of {line['honest']} | {line['honest trusted']} of "
            f"{line['honest']} |"
        )
    return "\n".join(table)


def mean(pairs: list[list[float]]) -> list[float] | None:
    return [statistics.mean(values) for values in zip(*pairs, strict=True)] if pairs else None


def main() -> None:
    """Measure, print the tables, write the numbers."""
    given = options(
        __doc__.splitlines()[0],
        data={"choices": ["real", "crops", "synthetic"], "default": "synthetic"},
        cuts={"nargs": "+", "help": "stages; default: three of the network"},
        batches={"type": int, "default": 1000, "help": "that a hijacked client sends"},
        seeds={"type": int, "default": 2, "help": "hijacked clients per cut"},
        trials={"type": int, "default": 10, "help": "honest servers per cut"},
        watch={"type": int, "default": 200, "help": "batches with an honest server"},
        json=Path("hijacking.json"),
    )
    torch.set_num_threads(1)
    began, cpu = time.perf_counter(), time.process_time()
    lines = measured(given)
    closing = (
        f"MSE (SSIM); {lines[0]['data']} eyes; {time.perf_counter() - began:.0f} s, "
        f"{time.process_time() - cpu:.0f} s of CPU"
    )
    report(given.json, lines, markdown(lines, given.batches), closing)


if __name__ == "__main__":
    main()
