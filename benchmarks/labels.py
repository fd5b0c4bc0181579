"""Gaze labels that a U-shape never sends, found by its server: degrees of error, beside the mean.

python -m benchmarks.labels --data crops: SplitFed in a U-shape trains as it always does; its server
reads gaze from smashed data (learned on shadow people, who tell theirs), and solves for it from the
gradients that come back at the second cut. The table has the first round and the last. Data:
MPIIGaze 9x15 crops, five clients, six shadow people, or the generator's; without the files the
generator stands in, and says so.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attacks.split_parties import heard_from, tree, watched
from benchmarks.common.eyes import eye_source, spread
from benchmarks.common.options import options
from benchmarks.common.report import report
from benchmarks.common.runs import run_folder
from vergence.attacks.label_inference import Follower, LabelInferenceAttack, Loss
from vergence.core.client import ClientContext
from vergence.core.conversation import Conversation
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.identifiers import ClientId
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply
from vergence.core.params import Params
from vergence.core.requests import Forward
from vergence.core.stages import pieces
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.engine.round_loop import Plan, run_rounds
from vergence.experiment.run import progress_bar
from vergence.methods.split.splitfed_u import EndHalf, Ends, SplitFedU
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.steps import Trainer

LOCAL = LocalTraining(optimizer="adamw", lr=2e-3)


@dataclass
class Notes:
    """What the server has at the start of a round, and the truth, which it has not."""

    at: int = -1
    ends: list[Ends] | None = None
    truth: list[tuple[int, Tensor]] | None = None
    smashed: list[Tensor] | None = None


NOTES = Notes()


@dataclass(frozen=True)
class Noted(SplitFedU):
    """The method as it is; what it does is written down beside it."""

    def round(self, s: Ends, cohort: Sequence[ClientId]) -> Conversation[Ends]:
        NOTES.at += 1
        assert NOTES.ends is not None
        NOTES.ends.append(s)
        return (yield from super().round(s, cohort))

    def on_judge(
        self, c: EndHalf, msg: Message, site: ClientContext
    ) -> Conversation[tuple[EndHalf, Reply]]:
        assert NOTES.truth is not None
        NOTES.truth.append((NOTES.at, site.train.take(c.waiting[0])["gaze"].clone()))
        return (yield from super().on_judge(c, msg, site))


def people(data: str) -> tuple[str, Federation, Samples]:
    """Return clients, and shadow people's samples."""
    data, root = eye_source(data)
    if data == "crops":
        federation = MpiigazeCrops().load(root)
    else:
        federation = EyeSynthetic(people=11, samples=300, size="9x15").load()
    shadow = [federation.people[p].train for p in federation.clients[5:]]
    names = set.intersection(*(set(part.columns) for part in shadow))
    joined = Samples.concatenate(
        [Samples({n: p.columns[n][:: max(1, len(p) // 200)] for n in names}) for p in shadow]
    )
    clients = federation.only(federation.clients[:5])
    few = {p: replace(s, train=spread(s.train, 200)) for p, s in clients.people.items()}
    return data, replace(clients, people=few), joined


def spied(criterion: Loss, federation: Federation, rounds: int) -> tuple[Any, GazeAngle, Any]:
    """Run the method under a server that looks; return its notes, the task and what was found."""
    task = GazeAngle(SmallEye(pose=False), criterion=criterion)
    method, found = Noted(local=LOCAL), []
    end = method.last_piece(task)
    for field, value in zip(fields(NOTES), (-1, [], [], []), strict=True):
        setattr(NOTES, field.name, value)

    def follow(*_: object) -> Any:
        assert NOTES.ends is not None
        follower = Follower(end, NOTES.ends[-1].end, LOCAL, criterion)

        def see(asked: Any, answer: Any) -> Any:
            for _, message, sealed in heard_from(asked, answer):
                if message is not None and message.verb == "judge":
                    t, pull = tree(message, "t"), tree(sealed, "pull")
                    assert t is not None
                    assert pull is not None
                    found.append(follower.labels(t, pull, sealed.metrics["loss"]))
            return answer

        return see

    with run_folder() as folder:
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1, solver="sequential")
        run_rounds(watched(method, follow), task, federation=federation, plan=plan, folder=folder)
    return NOTES, task, found


def read(task: GazeAngle, front: Params, federation: Federation, shadow: Samples) -> float:
    """Return the mean error, in degrees, of gaze read from what layers make of clients' images."""
    piece = pieces(task, "", "fc1")[0]
    trainer = Trainer(piece)

    def smashed(samples: Samples) -> Tensor:
        batch = samples.take(slice(None))
        return trainer.forward(Forward(front, batch, lambda _: piece)).clone()

    network = LabelInferenceAttack().train(smashed(shadow), shadow.columns["gaze"])
    errors = []
    with torch.no_grad():
        for splits in federation.people.values():
            guess = network(smashed(splits.train))
            errors.append(angular_error_deg(guess, splits.train.columns["gaze"]))
    return float(torch.cat(errors).mean())


def measured(given: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Return the data's name and a line per attack."""
    data, federation, shadow = people(given.data)
    everybody = mean_direction(shadow.columns["gaze"])
    truth = torch.cat([s.train.columns["gaze"] for s in federation.people.values()])
    mean = float(angular_error_deg(everybody.expand(len(truth), 2), truth).mean())
    lines: list[dict[str, Any]] = [
        {"attack": "none: the mean gaze of others", "loss": "", "first": mean, "last": mean}
    ]
    with progress_bar() as bar:
        line = bar.add_task("labels", total=2, score="")
        for criterion in ("l1", "mse"):
            notes, task, found = spied(criterion, federation, given.rounds)
            errors = [
                (at, angular_error_deg(guess, gaze))
                for guess, (at, gaze) in zip(found, notes.truth, strict=True)
            ]
            ends = {"first": 0, "last": given.rounds - 1}
            lines.append(
                {
                    "attack": "read from smashed data",
                    "loss": criterion,
                    **{
                        name: read(task, notes.ends[at].front, federation, shadow)
                        for name, at in ends.items()
                    },
                }
            )
            lines.append(
                {
                    "attack": "solved from gradients",
                    "loss": criterion,
                    **{
                        name: float(torch.cat([e for round_, e in errors if round_ == at]).mean())
                        for name, at in ends.items()
                    },
                }
            )
            bar.update(line, advance=1)
    return data, lines


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table."""
    rows = [f"| {x['attack']} | {x['loss']} | {x['first']:.2f} | {x['last']:.2f} |" for x in lines]
    return "\n".join(["| attack | loss | first round | last round |", "|---|---|--:|--:|", *rows])


def main() -> None:
    """Measure, print the table, write the numbers."""
    given = options(
        __doc__.splitlines()[0],
        data={"choices": ["crops", "synthetic"], "default": "synthetic"},
        rounds=5,
        json=Path("labels.json"),
    )
    torch.set_num_threads(1)
    began = time.perf_counter()
    data, lines = measured(given)
    closing = f"degrees; {data} eyes; {time.perf_counter() - began:.0f} s"
    report(given.json, lines, markdown(lines), closing)


if __name__ == "__main__":
    main()
