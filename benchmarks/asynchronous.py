"""Who waits for whom: virtual time until an accuracy, and the accuracy in the end, by delivery.

python -m benchmarks.asynchronous --root DIR: twelve people with 300 pictures of Fashion-MNIST each,
class shares from Dirichlet(0.3); a turn of the median speed is one virtual second, speeds are
log-normal with sigma .5. Three of twelve are then 5, 7 and 10 times slower, replies get lost, three
others leave for good at half time. `until` is the first evaluation at or above a stated mean
accuracy over people's own tests, the end its mean over the last fifth of the time. A seed draws
data, speeds, losses and batches; all deliveries share them, so that differences from waiting for
everybody are paired over seeds (Student's t, 95 %; of times, until the first accuracy, their ratio,
by its logarithm).

--methods: those that group people, on generated clips of three communities (tau), with stragglers
and lost replies. --absent: AP-FL over FedAvg on the pictures, with the same; the first person is
away until the time is over, and what they get then is measured on their own test.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.common.eyes import spread
from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.data.images.fashion_mnist import FILES, FashionMnist
from vergence.data.synthetic.clip_synthetic import ClipSynthetic
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.round_loop import RoundSummary, run_rounds
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.clustered.fedgroup import FedGroup
from vergence.methods.clustered.ifca import IFCA
from vergence.methods.fedavg import FedAvg
from vergence.methods.generative.ap_fl import GlobalMemory, mix_models
from vergence.metrics.intervals import interval
from vergence.models.softmax import Softmax
from vergence.models.vslstm import VsLSTM
from vergence.results.figure_style import SPARE, canvas, save, styled
from vergence.results.write import write_json
from vergence.tasks.images import Images
from vergence.tasks.summary import SummaryTask
from vergence.training.sequential import Solver

PEOPLE, PICTURES = 12, 300
TURN = LocalTraining(steps=12, batch=25, optimizer="sgd", lr=0.1, momentum=0.0)
WATCHED = LocalTraining(steps=4, batch=4, optimizer="adam", lr=0.01)
DELIVERIES = {
    "all": Delivery(clock=True),
    "quorum of 8": Delivery("quorum", replies=8),
    "deadline of 2 s": Delivery("deadline", seconds=2.0),
    "FedBuff, 6": Delivery("fedbuff", replies=6),
    "FedAsync, a .6": Delivery("fedasync"),
    "FedAsync, a .1": Delivery("fedasync", a=0.1),
}
EVERY = {"fedasync": 6}
"""Rounds between evaluations, where it is not 1."""
SLOW, LEAVING = (5.0, 7.0, 10.0), 3
LOST = 0.3
FIRST, FEW = "all", ("all", "FedBuff, 6", "FedAsync, a .6")
"""What the others are compared with, and what methods are compared by."""
Curve = list[tuple[float, float, int]]
"""Virtual seconds, the headline, and rounds held."""


@dataclass(frozen=True)
class Case:
    """What is trained on what, and what happens to people."""

    method: Method
    task: Task
    people: Federation
    horizon: float
    slow: bool = False
    lost: float = 0.0
    gone: Mapping[str, int] | None = None

    def plan(self, delivery: Delivery) -> Plan:
        """Return how a run goes: a turn of the median speed is one virtual second."""
        names = self.people.clients
        late = dict(zip(names[:: len(names) // len(SLOW)], SLOW, strict=False)) if self.slow else {}
        local = self.method.local
        pace = float((local.steps or 1) * local.batch)
        return Plan(
            rounds=10_000,
            workers=1,
            solver="sequential",
            checkpoint_every=0,
            evaluate_every=EVERY.get(delivery.name, 1),
            presence=Participation(lost=self.lost, gone=self.gone or {}),
            delivery=replace(delivery, pace=pace, slow=late),
        )

    def curve(self, delivery: Delivery) -> Curve:
        """Return virtual seconds, the headline and rounds held, until the horizon."""
        found: Curve = []

        def tick(end: RoundSummary) -> None:
            clock = end.metrics.get("clock", 0.0)
            if self.task.headline in end.metrics and not end.final:
                found.append((clock, end.metrics[self.task.headline], end.round))
            if clock >= self.horizon:
                raise Enough

        with run_folder() as folder:
            try:
                run_rounds(
                    self.method,
                    self.task,
                    federation=self.people,
                    plan=self.plan(delivery),
                    folder=folder,
                    tick=tick,
                )
            except Enough:
                return found
        raise AssertionError("the horizon lies beyond 10,000 rounds")


class Enough(Exception):
    """The time is over."""


@cache
def pictures(root: str, seed: int) -> Federation:
    """Deal pictures to people, few to each."""
    whole = FashionMnist(people=PEOPLE, split="dirichlet", alpha=0.3, split_seed=seed).load(root)
    people = {
        name: replace(s, train=spread(s.train, PICTURES), test=spread(s.test, PICTURES // 2))
        for name, s in whole.people.items()
    }
    return Softmax().prepare(replace(whole, people=people))


def conditions(given: argparse.Namespace, seed: int) -> dict[str, Case]:
    """Return what happens to people, by name."""
    plain = Case(FedAvg(TURN), Images(Softmax(), seed), pictures(given.root, seed), given.horizon)
    slow = replace(plain, slow=True)
    return {
        "speeds": plain,
        "stragglers": slow,
        "30 % lost": replace(slow, lost=LOST),
        "3 leave": slow,
    }


def leaving(case: Case, curve: Curve) -> Case:
    """Return the case in which three who are not slow leave at half time."""
    half = next(done for clock, _, done in curve if clock >= case.horizon / 2)
    return replace(case, gone=dict.fromkeys(case.people.clients[1 : 1 + LEAVING], half))


def grouping(given: argparse.Namespace, seed: int) -> dict[str, Case]:
    """Return methods that group people, on clips of three communities."""
    people = ClipSynthetic(people=PEOPLE, clips=15, seed=seed).load()
    task = SummaryTask(VsLSTM(4, 8), seed)
    kinds: dict[str, Method] = {
        "FedAvg": FedAvg(WATCHED),
        "IFCA": IFCA(WATCHED),
        "FedGroup": FedGroup(WATCHED, probe=4),
        "CFed-VS": CFedVS(WATCHED),
    }
    return {
        name: Case(kind, task, people, given.horizon, slow=True, lost=LOST)
        for name, kind in kinds.items()
    }


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line per condition, delivery and seed, with its curve."""
    lines: list[dict[str, Any]] = []
    made, names = (grouping, FEW) if given.methods else (conditions, tuple(DELIVERIES))
    for seed in range(given.seeds):
        known: dict[tuple[str, str], Curve] = {}
        for name, case in made(given, seed).items():
            for delivery in names:
                how = DELIVERIES[delivery]
                stayed = known.get(("stragglers", delivery), [])
                now = leaving(case, stayed) if name == "3 leave" else case
                known[name, delivery] = now.curve(how)
                lines.append(
                    {
                        "condition": name,
                        "delivery": delivery,
                        "seed": seed,
                        "curve": known[name, delivery],
                    }
                )
                write_json(given.json, lines)
                print(f"# seed {seed} {name} {delivery}", flush=True)
    return lines


def absent(given: argparse.Namespace) -> None:
    """Print what AP-FL gives to somebody who was away, trained by each delivery for as long."""
    print("| delivery | fine-tuned | beta 0.5 | against all |\n|---|--:|--:|--:|")
    first: np.ndarray | None = None
    for delivery in FEW:
        how = DELIVERIES[delivery]
        scores = np.array([served(given, seed, how) for seed in range(given.seeds)])
        first = scores if first is None else first
        gain = ""
        if delivery != FIRST:
            apart = scores[:, 1] - first[:, 1]
            low, high = interval(apart)
            gain = f"{apart.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        mine, mixed_ = scores.mean(0)
        print(f"| {delivery} | {mine:.3f} | {mixed_:.3f} | {gain} |", flush=True)


def served(given: argparse.Namespace, seed: int, how: Delivery) -> tuple[float, float]:
    """Return the accuracy of somebody who was away, by fine-tuning and by AP-FL."""
    people = pictures(given.root, seed)
    who = people.clients[1]
    task = Images(Softmax(), seed, names=FILES.classes)
    case = Case(FedAvg(TURN), task, people, given.horizon, True, LOST, {who: 0})
    rounds = case.curve(how)[-1][2]
    method = GlobalMemory(TURN, case.method, samples=60, passes=2, tune_epochs=1)
    plan = replace(case.plan(how), rounds=rounds, evaluate_every=0)
    plan = replace(plan, presence=replace(plan.presence, back=(who,)))
    with run_folder() as folder:
        state = run_rounds(method, task, federation=people, plan=plan, folder=folder).clients[who]
    test, solver = people.people[who].test, Solver(task)
    mine, shared = (mix_models(state.mine, state.friend, share) for share in (0.0, 0.5))
    return solver.score(mine, test), solver.score(shared, test)


def reached(curve: Curve, wanted: float) -> float:
    """Return when an accuracy is first reached, infinity where it is not."""
    return next((clock for clock, value, _ in curve if value >= wanted), np.inf)


def ended(curve: Curve) -> float:
    """Return the mean accuracy over the last fifth of the time."""
    return float(np.mean([value for clock, value, _ in curve if clock >= 0.8 * curve[-1][0]]))


def table(lines: list[dict[str, Any]], wanted: list[float]) -> str:
    """Return the table in Markdown."""
    head = [
        *(f"until {value:g}, s" for value in wanted),
        "against all",
        "in the end",
        "against all",
    ]
    rows = [f"| | delivery | {' | '.join(head)} |", f"|---|---|{'--:|' * len(head)}"]
    curves: dict[tuple[str, str], list[Curve]] = {}
    for line in lines:
        curves.setdefault((line["condition"], line["delivery"]), []).append(line["curve"])
    for (name, delivery), found in curves.items():
        times = [[reached(curve, value) for curve in found] for value in wanted]
        ends = np.array([ended(curve) for curve in found])
        ratio = gain = ""
        if delivery != FIRST:
            first = curves[name, FIRST]
            ratio = quotient(times[0], [reached(curve, wanted[0]) for curve in first])
            low, high = interval(apart := ends - np.array([ended(curve) for curve in first]))
            gain = f"{apart.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        cells = [*map(middle, times), ratio, f"{ends.mean():.3f}", gain]
        rows.append(f"| {name} | {delivery} | {' | '.join(cells)} |")
    return "\n".join(rows)


def middle(times: list[float]) -> str:
    """Return the median over seeds that got there, and how many did where not all."""
    there = [time for time in times if np.isfinite(time)]
    few = f" ({len(there)} of {len(times)})" if 0 < len(there) < len(times) else ""
    return f"{np.median(there):.1f}{few}" if there else "never"


def quotient(times: list[float], first: list[float]) -> str:
    """Return by what factor times differ, paired; "" where a seed did not get there at once."""
    if not (np.isfinite(times).all() and np.isfinite(first).all() and min(*times, *first) > 0):
        return ""
    logs = np.log(times) - np.log(first)
    low, high = np.exp(interval(logs))
    return f"x {np.exp(logs.mean()):.2f} ({low:.2f} to {high:.2f})"


@styled
def figure(lines: list[dict[str, Any]], ends: float) -> Figure:
    """Draw the mean curves of each condition, with the range over seeds."""
    names = list(dict.fromkeys(line["condition"] for line in lines))
    page = canvas(6.4, 2.3 * ((len(names) + 1) // 2))
    times = np.linspace(0, ends, 150)
    for at, name in enumerate(names):
        axes = page.add_subplot((len(names) + 1) // 2, 2, at + 1)
        for delivery, colour in zip(DELIVERIES, SPARE, strict=False):
            if not any(x["delivery"] == delivery for x in lines):
                continue
            curves = [
                np.array(x["curve"])[:, :2]
                for x in lines
                if (x["condition"], x["delivery"]) == (name, delivery)
            ]
            values = np.array([np.interp(times, *curve.T) for curve in curves])
            axes.fill_between(times, values.min(0), values.max(0), color=colour, alpha=0.14, lw=0)
            axes.plot(times, values.mean(0), color=colour, lw=1.2, label=delivery)
        axes.set(title=name, xlabel="virtual seconds")
        if not at:
            axes.legend(fontsize=6)
    return page


def main() -> None:
    """Measure, print the table, draw the picture."""
    given = options(
        __doc__.partition("\n")[0],
        root={"default": "fashion_mnist", "help": "folder of Fashion-MNIST"},
        seeds=5,
        horizon={"type": float, "default": 80.0, "help": "virtual seconds"},
        wanted={"type": float, "nargs": "+", "default": [0.6, 0.7], "help": "accuracy or tau"},
        absent={"action": "store_true", "help": "AP-FL's absent person instead"},
        methods={"action": "store_true", "help": "compare methods instead"},
        json=Path("asynchronous.json"),
        out=Path("asynchronous.png"),
    )
    given.json.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if given.absent:
        absent(given)
        return
    lines = measured(given)
    print(table(lines, given.wanted))
    save(figure(lines, given.horizon), given.out)


if __name__ == "__main__":
    main()
