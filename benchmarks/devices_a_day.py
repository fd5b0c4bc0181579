"""How many devices one server hears a day: rules for slow and lost ones, on a virtual clock.

python -m benchmarks.devices_a_day [--people 10000] [--rounds 40]: FedAvg over devices of which a
third are idle at a time (a made-up day) and whose turns, training and transfers together, take a
minute at the median speed, with a log-normal spread; a share of replies never comes. Prints a CSV:
virtual seconds and replies of a round, turns whose reply was lost or too late, replies a day, and
the share of replies from the slower half of the devices (50 % would be fair).
"""

import csv
import sys

import torch

from benchmarks.common.options import options
from benchmarks.common.runs import run_folder
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.crowd import Crowd
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.methods.fedavg import FedAvg
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

DAY = 86_400.0
TURN = 60.0
"""Virtual seconds of a turn at the median speed."""
SAMPLES = 12
"""Training samples of a device, which it passes once in a turn."""
RULES = {
    "100 asked, all waited for": (100, Delivery(clock=True)),
    "130 asked, 100 waited for": (130, Delivery("quorum", replies=100)),
    "200 asked, 100 waited for": (200, Delivery("quorum", replies=100)),
    "2,600 asked, 2,000 waited for": (2600, Delivery("quorum", replies=2000)),
    "130 asked, 3 minutes": (130, Delivery("deadline", seconds=180.0)),
    "100 at work, FedBuff of 10": (100, Delivery("fedbuff", replies=10)),
    "1,000 at work, FedBuff of 100": (1000, Delivery("fedbuff", replies=100)),
}
"""Devices asked in a round (or at work at a time), and the rule of the round's end."""


def main() -> None:
    """Simulate and print."""
    given = options(__doc__, people=10_000, rounds=40, lost=0.1, sigma=1.0)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    heads = ["rule", "s a round", "replies a round", "turns that do not count", "replies a day"]
    rows.writerow([*heads, "from the slower half"])
    torch.set_num_threads(1)
    federation = Crowd(people=given.people).load()
    method = FedAvg(local=LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.01))
    for rule, (asked, delivery) in RULES.items():
        delivery = Delivery(**{**vars(delivery), "pace": SAMPLES / TURN, "sigma": given.sigma})
        plan = Plan(
            rounds=given.rounds,
            evaluate_every=0,
            evaluate_people=10,
            workers=1,
            checkpoint_every=0,
            delivery=delivery,
            presence=Participation(cohort=asked, lost=given.lost, rhythm=True),
        )
        with run_folder() as folder:
            task = ToyTask(Linear(inputs=4))
            run_rounds(method, task, federation=federation, plan=plan, folder=folder)
            with (folder.path / "events.csv").open(newline="") as file:
                events = list(csv.DictReader(file))
            with (folder.path / "rounds.csv").open(newline="") as file:
                clock = [float(r["value"]) for r in csv.DictReader(file) if r["metric"] == "clock"]
        seconds = {
            (e["client"], e["turn"]): float(e["took"]) for e in events if e["event"] == "sent"
        }
        used = [seconds[e["client"], e["turn"]] for e in events if e["event"] == "arrived"]
        ended = len(used) + sum(event["event"] in ("late", "lost") for event in events)
        rows.writerow(
            [
                rule,
                f"{clock[-1] / len(clock):.0f}",
                f"{len(used) / len(clock):.0f}",
                f"{100 * (1 - len(used) / ended):.0f} %",
                f"{len(used) / clock[-1] * DAY:,.0f}",
                f"{100 * sum(took > TURN for took in used) / len(used):.0f} %",
            ]
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
