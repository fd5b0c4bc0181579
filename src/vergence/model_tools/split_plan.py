"""`vergence model split-plan`: cost of every cut of a network, before training.

Used by `cli.model`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from rich.console import Console

from vergence.core.files import write_text
from vergence.core.stages import PartialModel, pieces
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import validate
from vergence.model_tools.split_cost import (
    BOTTLENECK,
    CUT,
    NUMBERS,
    SHRINK,
    U_SHAPE,
    WORD,
    CutChoice,
    Load,
    choices,
    load_of,
)
from vergence.model_tools.split_pace import AHEAD, Speeds, hops, seconds
from vergence.results.figure_style import (
    MARKERS,
    MUTED,
    PAPER,
    SPARE,
    canvas,
    figure_format,
    save,
    styled,
)
from vergence.results.layout import TIMES
from vergence.results.text_tables import Record, TextTable


@dataclass(frozen=True)
class SplitPlan:
    """All ways to cut one network on one federation.

    Attributes:
        model, data: names of both.
        load: training data of a person in a round.
        own: the stage after which the network is cut by default.
        choices: FedAvg first, then every cut.
        speeds: of devices, server and network.
    """

    model: str
    data: str
    load: Load
    own: str
    choices: tuple[CutChoice, ...]
    speeds: Speeds = Speeds()

    @property
    def fedavg(self) -> CutChoice:
        """The whole network on the client, averaged by FedAvg."""
        return self.choices[0]

    def times(self, choice: CutChoice, number: str = "float32") -> float:
        """Return the bytes of a choice over those of FedAvg."""
        return choice.both(number, self.load) / self.fedavg.both("float32", self.load)

    def even(self, choice: CutChoice) -> float:
        """Return the number of samples a round below which a cut sends less than FedAvg."""
        # FedAvg sends its parameters, a cut something for every sample: few samples favour the cut.
        saved = 2 * WORD * (self.fedavg.client.parameters - choice.client.parameters)
        each = 2 * choice.sample("float32") + choice.label_bytes
        return max(0.0, saved / each) if each else math.nan

    def seconds(self, choice: CutChoice, ahead: int = 0, number: str = "float32") -> float:
        """Return the seconds of a person's round."""
        return seconds(choice, self.load, self.speeds, ahead, number)

    def blocks(self) -> list[TextTable]:
        """Return the tables: what travels, what is computed, and how long a round takes."""
        return [traffic(self), compute(self), pace(self)]

    def records(self) -> list[Record]:
        """Return a line per choice with everything at full precision."""
        return [record(self, choice) for choice in self.choices]


def split_plan(experiment: Experiment, speeds: Speeds = Speeds()) -> SplitPlan:  # noqa: B008
    """Compute the costs of every cut of an experiment's network, for its data and local training.

    Raises:
        ConfigError: the network is not a row of stages, or does not fit the data.
        DataError: a data file is unusable.
    """
    task = experiment.task(experiment.plan.seeds[0])
    # Refuses a network that cannot be cut, before any data are read.
    pieces(task)
    federation = validate(experiment).ready
    load = load_of(federation, next(iter(experiment.methods.values())).local)
    first = next(iter(federation.people.values())).train.take(slice(0, 1))
    found = choices(task, first, load.size)
    own = pieces(task, "")[0].network
    assert isinstance(own, PartialModel)
    name = experiment.table["model"]["name"]
    return SplitPlan(name, federation.name, load, own.of[-1], tuple(found), speeds)


def traffic(plan: SplitPlan) -> TextTable:
    """Return the table of bytes."""
    heads = [
        "cut after",
        "",
        "values",
        *(f"{n} B" for n in NUMBERS),
        "labels B",
        "up MB",
        "down MB",
        *(f"{n} MB" for n in NUMBERS),
        f"{TIMES} FedAvg",
        "equal at",
    ]
    lines = []
    for c in plan.choices:
        each = [f"{c.sample(n):,}" for n in NUMBERS]
        ways = [short(way("float32", plan.load) / 1e6) for way in (c.up, c.down)]
        sums = [short(c.both(n, plan.load) / 1e6) for n in NUMBERS]
        even = f"{plan.even(c):,.0f}" if c.values else ""
        lines.append(
            [
                *_name(c),
                f"{sum(c.values):,}",
                *each,
                f"{c.label_bytes:,}",
                *ways,
                *sums,
                short(plan.times(c)),
                even,
            ]
        )
    load = plan.load
    notes = (
        "values and B: numbers and bytes per sample, each way: smashed data and their gradients. "
        "labels: what goes up with them. MB: per person and round, the client's parameters "
        f"(float32, both ways) included, of {load.samples:,.0f} samples in {load.batches:,.0f} "
        "batches; up and down in float32, then their sum in each format.",
        "equal at: with fewer samples per person and round the cut sends less than FedAvg.",
        own_cut_sentence(plan),
    )
    return TextTable(f"{plan.model} on {plan.data}: what travels", heads, lines, 2, notes=notes)


def own_cut_sentence(plan: SplitPlan) -> str:
    """Return a sentence that compares the network's own cut with FedAvg."""
    own = next((c for c in plan.choices if c.kind == CUT and c.after == (plan.own,)), None)
    if own is None:
        return (
            "With one cut the server needs what the loss reads, which here is the pictures "
            "themselves: only a U-shape keeps them on the client (splitfed_u)."
        )
    sent, whole = (c.both("float32", plan.load) / 1e6 for c in (own, plan.fedavg))
    ratio = sent / whole
    more = f"{ratio:.1f} times" if ratio >= 1 else f"{100 * ratio:.1f} % of"
    return (
        f"The network's own cut, after {plan.own}, sends {more} what FedAvg sends: "
        f"{sent:,.1f} MB against {whole:,.1f} MB a round and person."
    )


def compute(plan: SplitPlan) -> TextTable:
    """Return the table of parameters, FLOPs and memory."""
    heads = [
        "cut after",
        "",
        "client parameters",
        "server parameters",
        "client MFLOPs",
        "of it again",
        "client MB",
        "server MFLOPs",
    ]
    lines = [
        [
            *_name(c),
            f"{c.client.parameters:,}",
            f"{c.server.parameters:,}",
            short(c.flops / 1e6),
            short(c.again / 1e6),
            short(c.client.memory / 1e6),
            short((c.server.forward + c.server.backward) / 1e6),
        ]
        for c in plan.choices
    ]
    notes = (
        "MFLOPs: millions per sample, forward and backward, of convolutions and matrix products; "
        "again: the forward pass that the client repeats when the gradient arrives. MB: what a "
        f"batch of {plan.load.size} keeps for the backward pass, parameters aside.",
        f"bottleneck: a 1 x 1 convolution to channels / {SHRINK} at the client and one back at the "
        "server. It is another network, which must be trained and judged anew.",
        "U-shape: the client keeps the last stage too, so labels and head pose stay with it; the "
        "server repeats its forward pass.",
    )
    return TextTable(f"{plan.model} on {plan.data}: what is computed", heads, lines, 2, notes=notes)


def pace(plan: SplitPlan) -> TextTable:
    """Return the table of seconds."""
    speeds = plan.speeds
    heads = ["cut after", "", *(f"{k} ahead" if k else "in turn" for k in AHEAD), "busiest"]
    lines = []
    for c in plan.choices:
        took = [plan.seconds(c, k) for k in AHEAD if c.values or not k]
        busiest = hops(c, plan.load, speeds).busiest if c.values else "device"
        lines.append([*_name(c), *map(short, took), *[""] * (len(AHEAD) - len(took)), busiest])
    notes = (
        f"Seconds per round of a device of {speeds.device:g} GFLOP/s with {speeds.up:g} Mbit/s up, "
        f"{speeds.down:g} down and {speeds.delay:g} ms each way, and a server that gives it "
        f"{speeds.server:g} GFLOP/s (--device, --up, --down, --delay, --server); float32. "
        "in turn: device, network and server wait for each other; k ahead: so many batches are "
        "sent before the first gradient comes (`ahead`). busiest: what a long pipeline waits for, "
        "in a U the server's own waiting included.",
        best(plan),
    )
    return TextTable(
        f"{plan.model} on {plan.data}: how long a round takes", heads, lines, 2, notes=notes
    )


def best(plan: SplitPlan) -> str:
    """Return a text on the best cut by each measure, next to FedAvg."""
    real = [c for c in plan.choices if c.kind in (CUT, U_SHAPE) and c.server.parameters]
    if not real:
        return "The network has one stage: there is nothing to choose."
    least = min(real, key=lambda c: c.both("float32", plan.load))
    light = min(real, key=lambda c: (c.flops, c.both("float32", plan.load)))
    fast, whole = (min(real, key=lambda c: plan.seconds(c, 1, n)) for n in ("float32", "int8"))
    return (
        f"Least traffic: after {_at(least)}. Least work for the client: after {_at(light)}. "
        f"Fastest here with one ahead: after {_at(fast)}, {short(plan.seconds(fast, 1))} s, as "
        f"int8 after {_at(whole)}, {short(plan.seconds(whole, 1, 'int8'))} s; FedAvg "
        f"{short(plan.seconds(plan.fedavg))} s. Of cuts that leave the server something, "
        "bottlenecks aside."
    )


def _at(choice: CutChoice) -> str:
    return " and ".join(choice.after) + (" (U)" if choice.kind == U_SHAPE else "")


def record(plan: SplitPlan, choice: CutChoice) -> Record:
    """Return the line of a CSV."""
    out: dict[str, Any] = {
        "kind": choice.kind,
        "after": " ".join(choice.after),
        "values": sum(choice.values),
        "label_bytes": choice.label_bytes,
    }
    for number in NUMBERS:
        out[f"sample_bytes_{number}"] = choice.sample(number)
        out[f"round_bytes_up_{number}"] = choice.up(number, plan.load)
        out[f"round_bytes_down_{number}"] = choice.down(number, plan.load)
        out[f"times_fedavg_{number}"] = plan.times(choice, number)
    return {
        **out,
        "equal_at_samples": plan.even(choice),
        "client_parameters": choice.client.parameters,
        "server_parameters": choice.server.parameters,
        "client_flops": choice.flops,
        "client_flops_again": choice.again,
        "client_batch_bytes": choice.client.memory,
        "server_flops": choice.server.forward + choice.server.backward,
        "samples": plan.load.samples,
        "batch": plan.load.size,
        **{f"seconds_ahead_{k}": plan.seconds(choice, k) for k in AHEAD},
    }


def _name(choice: CutChoice) -> list[str]:
    return [", ".join(choice.after), choice.kind]


def short(value: float) -> str:
    """Return a number with about three figures."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}" if value >= 1 or not value else f"{value:.3g}"


@styled
def picture(plan: SplitPlan) -> Figure:
    """Draw a row per cut: bytes of a round (float32 down to int8), client FLOPs, memory, time."""
    cut = CUT if any(c.kind == CUT for c in plan.choices) else U_SHAPE
    rows = [c for c in plan.choices if c.kind == cut]
    figure = canvas(9.6, 1.5 + 0.32 * len(rows))
    wire, flops, memory, time = figure.subplots(1, 4, sharey=True, width_ratios=(2, 1, 1, 1.2))
    names = [c.after[0] for c in rows]
    for kind, colour, marker in ((cut, SPARE[0], MARKERS[0]), (BOTTLENECK, SPARE[1], MARKERS[1])):
        drawn = [c for c in plan.choices if c.kind == kind]
        at = [names.index(c.after[0]) + (0.2 if kind == BOTTLENECK else -0.1) for c in drawn]
        full, small = ([c.both(n, plan.load) / 1e6 for c in drawn] for n in ("float32", "int8"))
        look: dict[str, Any] = {"color": colour, "markersize": 5.5, "linestyle": "none"}
        turns, fast = ([plan.seconds(c, k) for c in drawn] for k in (0, AHEAD[-1]))
        for axes, short_, long_ in ((wire, small, full), (time, fast, turns)):
            axes.hlines(at, short_, long_, color=colour, linewidth=1.4, alpha=0.6)
            axes.plot(short_, at, "|", **look)
        for axes, values in (
            (wire, full),
            (time, turns),
            (flops, [c.flops / 1e6 for c in drawn]),
            (memory, [c.client.memory / 1e6 for c in drawn]),
        ):
            axes.plot(values, at, marker, label=kind, markeredgecolor=PAPER, **look)
    whole = plan.fedavg
    sums = (
        whole.both("float32", plan.load) / 1e6,
        whole.flops / 1e6,
        whole.client.memory / 1e6,
        plan.seconds(whole),
    )
    for axes, value in zip((wire, flops, memory, time), sums, strict=True):
        axes.axvline(value, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="FedAvg")
    for axes in (wire, flops, time):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    wire.set(
        yticks=range(len(rows)),
        yticklabels=names,
        ylim=(len(rows) - 0.4, -0.6),
        ylabel="cut after",
        xlabel="MB per person and round, float32 down to int8 (|)",
        title=f"{plan.model} on {plan.data}, {plan.load.samples:,.0f} samples a round",
    )
    flops.set_xlabel("client MFLOPs per sample")
    memory.set(xlim=(0, None), xlabel=f"client memory, MB, batch of {plan.load.size}")
    time.set_xlabel(f"s per round, in turn to {AHEAD[-1]} ahead (|)")
    figure.legend(*wire.get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)
    return figure


def show(
    experiment: Experiment,
    console: Console,
    out: Path | None = None,
    markdown: bool = False,
    speeds: Speeds = Speeds(),  # noqa: B008
) -> None:
    """Print the tables; write the picture to `out`, and the numbers next to it as .csv.

    Raises:
        ConfigError: the network cannot be cut, or `out` is no picture's name.
        PartialRun: a file cannot be written.
    """
    # A wrong suffix is refused before the data are read.
    if out is not None:
        figure_format(out)
    plan = split_plan(experiment, speeds)
    for block in plan.blocks():
        if markdown:
            console.print(block.markdown(), soft_wrap=True, highlight=False, markup=False)
        else:
            block.show(console)
    if out is not None:
        save(picture(plan), out)
        numbers = out.with_suffix(".csv")
        write_text(numbers, TextTable("", (), (), records=plan.records()).csv())
        console.print(f"picture: {out}\nnumbers: {numbers}", soft_wrap=True)
