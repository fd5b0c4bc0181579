"""Chapter 4 of the Durham thesis: the printed numbers and the claims.

Source: the Durham thesis, Tables 4.1 to 4.4, Figures 4.2 and 4.5 to 4.7.
"""

from __future__ import annotations

import math

from vergence.app.papers.base import Claim, PaperTable, alike, better, order, peak
from vergence.app.papers.cfedvs import (
    PRIOR,
    among,
    centre,
    compared,
    crowd,
    frame_weighted,
    groups,
    in_groups,
    weighed,
    with_,
)

TV, SUM = "TVSum", "SumMe"
NAN = math.nan
PARITY = 0.10
"""Share of the data centre's F by which FedAvg may be worse, fixed before any run."""
WITHIN = 0.02
"""F within which "no effect" asks two rows to be: half of what CFed-VS gains on FedAvg in print."""

TABLE41 = {
    TV: {1: (49.29, 10.98, 75.0), 4: (52.08, 5.21, 46.0), None: (53.14, 2.23, 17.0)},
    SUM: {1: (33.62, 12.19, 64.0), None: (36.48, 4.87, 18.0)},
}
"""Classes per client (None: all) -> mean F, max - min over clients, rounds to 48 and 30 %."""
CENTRAL = {TV: 54.27, SUM: 37.72}
TABLE42 = {
    "fedavg": ((54.23, 54.38, 56.08), (43.78, 49.59)),
    "fedprox": ((55.65, 54.63, 57.42), (43.62, 50.77)),
    "ifca": ((57.29, 57.94, 58.51), (47.23, 51.41)),
    "fedgroup": ((57.41, 58.39, 58.74), (47.72, 51.59)),
    "cfedvs": ((57.91, 58.86, 59.98), (48.20, 52.13)),
}
"""Method -> F on TVSum by 1, 2, 4 classes per client, on SumMe by 1, 2."""
DEVIATIONS = {
    "fedgroup": ((1.7, 0.4, 1.9), (1.7, 2.1)),
    "cfedvs": ((1.4, 0.4, 2.7), (0.8, 0.5)),
}
"""What Table 4.2 prints after +-, of its two best rows."""
TABLE43 = {"DPP-LSTM": (38.6, 54.7), "SUM-GAN": (41.7, 54.3), "Cycle-SUM": (41.9, 57.6),
           "DMAsum": (54.3, 61.4), "SumGraph": (51.4, 63.9), "RSGN": (45.0, 61.0)}  # fmt: skip
"""F on SumMe and on TVSum, quoted by the thesis from other papers."""
TABLE44 = {
    "DPP-LSTM": ((NAN, NAN), (0.042, 0.055)), "SUM-GAN": ((0.049, 0.066), (0.024, 0.031)),
    "SumGraph": ((NAN, NAN), (0.094, 0.138)), "RSGN": ((0.083, 0.085), (0.083, 0.090)),
}  # fmt: skip
"""Kendall's tau and Spearman's rho on SumMe, on TVSum, quoted too."""
OWN43, OWN44 = (55.1, 63.8), ((0.102, 0.107), (0.098, 0.149))
"""Of the Mixture Transformer."""

MIXTURE, PLAIN, VSLSTM, RANDOM = "mixture", "plain_attention", "vslstm", f"random{PRIOR}"
NAMES = {
    VSLSTM: "vsLSTM, data centre", MIXTURE: "Mixture Transformer, data centre",
    PLAIN: "the same with plain attention",
}  # fmt: skip
SEEDS = "spread and rounds to the level are judged over seeds, all else over people"
DEALS = "clients with other classes have other clips: between them people are paired by name alone"
LEVEL = (
    "the level is 48 % on TVSum and 30 % on SumMe, elsewhere half way between random importance "
    "and people on the same shots; a run that never reaches it counts as its last round and one"
)
MODEL = "Mixture Transformer; m groups, 3, on SumMe 2; 80 % of the people train in a round"
DATA = ("federation", "data", "split", "people")


def fedavg(classes: int | None) -> str:
    """Return the label of a row of Table 4.1."""
    return f"fedavg{with_(classes)}"


def row(method: str, classes: int) -> str:
    """Return the label of a row of Table 4.2."""
    return f"{method}{with_(classes)}"


def _best(classes: int) -> Claim:
    return better(f"CFed-VS is best{with_(classes)} per client", "Table 4.2",
                  row("cfedvs", classes),
                  *(row(m, classes) for m in TABLE42 if m != "cfedvs"))  # fmt: skip


def _clustered(classes: int) -> Claim:
    where = f"groups beat one model{with_(classes)}: IFCA, FedGroup, CFed-VS; FedAvg, FedProx"
    pairs = tuple(pair for method in ("ifca", "fedgroup", "cfedvs")
                  for pair in better("", "", row(method, classes), row("fedavg", classes),
                                     row("fedprox", classes)).pairs)  # fmt: skip
    return Claim(where, "4.4.2", pairs)


def _sooner(classes: int, data: str) -> Claim:
    return better(f"CFed-VS converges faster than IFCA and FedGroup{with_(classes)} ({data})",
                  "4.4.2, Fig. 4.5", row("cfedvs", classes), row("ifca", classes),
                  row("fedgroup", classes), quantity="rounds")  # fmt: skip


ONE, FOUR, ALL = map(fedavg, (1, 4, None))
CENTRE_ONE = f"{VSLSTM}{with_(1)}"
CENTRES = (centre(VSLSTM, "vslstm"), centre(MIXTURE, "mixture_transformer"),
           centre(PLAIN, "mixture_transformer", mixture="none"))  # fmt: skip
FEDERATED = (
    PaperTable(
        "cfedvs/table4.1", "vsLSTM by frame-weighted FedAvg, by classes per client",
        ("main", "spread", "rounds"),
        {data: {**{fedavg(classes): told for classes, told in rows.items()},
                VSLSTM: (CENTRAL[data], NAN, NAN)} for data, rows in TABLE41.items()},
        "summary",
        (*(frame_weighted(classes) for classes in (1, 2, 4, None)), CENTRES[0],
         centre(VSLSTM, "vslstm", 1)),
        (
            better("fewer classes per client, lower F (1 against all)", "4.3.2", ALL, ONE),
            order("also in between: 1, 4, all", "Table 4.1", ONE, FOUR, ALL),
            better("max - min over clients grows with fewer classes", "4.3.2", ALL, ONE,
                   quantity="spread"),
            better("fewer classes need more rounds to the level", "4.3.2", ALL, ONE,
                   quantity="rounds"),
            better("FedAvg is little below the data centre with all classes (10 % at most)",
                   "4.3.2", ALL, VSLSTM, margin=PARITY),
            better("also with 1 class", "Table 4.1", ONE, CENTRE_ONE, margin=PARITY),
        ),
        rows=NAMES | {CENTRE_ONE: f"vsLSTM, data centre{with_(1)}"},
        note=f"{SEEDS}; {DEALS}; {LEVEL}.", apart=DATA, less=("spread", "rounds"),
    ),
    PaperTable(
        "cfedvs/table4.2", "FedAvg, FedProx, IFCA, FedGroup and CFed-VS by classes per client",
        ("main", "spread", "rounds"),
        {data: {row(method, classes): (told[at][i], NAN, NAN)
                for method, told in TABLE42.items()
                for i, classes in enumerate((1, 2, 4)[: len(told[at])])}
         for at, data in enumerate((TV, SUM))},
        "summary", tuple(part for classes in (1, 2, 4) for part in compared(classes)),
        (*map(_best, (1, 2, 4)), *map(_clustered, (1, 2, 4))),
        rows={row("cfedvs_shared", classes): f"CFed-VS, body shared,{with_(classes)}"
              for classes in (1, 2, 4)},
        note=f"{MODEL}; the shared body is the thesis's implementation (4.4.1), the other row its "
        f"Algorithm 1; the second column of SumMe has lost its head, by the text it is 2; {DEALS}.",
        apart=DATA, less=("spread", "rounds"),
    ),
)  # fmt: skip

QUOTED = (
    "the other methods of this table are quoted from their papers, which split the videos in "
    "another way, and are not built here"
)
CENTRAL_TABLES = (
    PaperTable(
        "cfedvs/table4.3", "the Mixture Transformer in a data centre: F", ("main",),
        {data: {**{name: (told[at],) for name, told in TABLE43.items()}, MIXTURE: (OWN43[at],),
                VSLSTM: (CENTRAL[data],)} for at, data in enumerate((SUM, TV))},
        "summary", CENTRES,
        (
            better("the Mixture Transformer beats vsLSTM (of Table 4.1)", "Tables 4.1, 4.3",
                   MIXTURE, VSLSTM),
            better("mixture attention itself improves generalisation (against plain attention)",
                   "4.4.2", MIXTURE, PLAIN),
            Claim("it is best on SumMe, competitive on TVSum", "Table 4.3", untestable=QUOTED),
        ),
        rows=NAMES, apart=("model", "local"), quoted=tuple(TABLE43),
        note="everybody's clips pooled, the test clips are people's own; random and people are "
        "judged on the same shots: of the usual shots of the whole sets random scores get 40 on "
        "SumMe and 54 to 57 on TVSum.",
    ),
    PaperTable(
        "cfedvs/table4.4", "the same: Kendall's tau and Spearman's rho", ("tau", "rho"),
        {data: {RANDOM: (0.0, 0.0), **{name: told[at] for name, told in TABLE44.items()},
                MIXTURE: OWN44[at]} for at, data in enumerate((SUM, TV))},
        "summary", CENTRES,
        tuple(
            better(f"the Mixture Transformer ranks frames better than {what}, by {quantity}", where,
                   MIXTURE, rival, quantity=quantity)
            for what, where, rival in (("at random", "Table 4.4", RANDOM),
                                       ("vsLSTM", "Table 4.4 (DPP-LSTM)", VSLSTM),
                                       ("plain attention", "4.4.2", PLAIN))
            for quantity in ("tau", "rho")
        ),
        rows=NAMES, apart=("model", "local"), quoted=tuple(TABLE44),
        note="the text has DMAsum's coefficients in this table, which shows none of DMAsum; "
        "people, each against the others, reach 0.177 / 0.204 on the whole of TVSum.",
    ),
)  # fmt: skip

FRAMES, SAMPLES = "fedavg_frames", "fedavg_clips"
PACE = ("main", "spread", "rounds")
M_GROUPS = row("cfedvs", 1)
FIGURES = (
    PaperTable(
        "cfedvs/fig4.2", "frames or clips as weights of FedAvg, over rounds", PACE, {}, "summary",
        (weighed("frames"), weighed("clips")),
        (
            better("frames as weights are better (by 1.2 points)", "4.3.1", FRAMES, SAMPLES),
            better("frames reach the level sooner", "4.3.1", FRAMES, SAMPLES, quantity="rounds"),
        ),
        figure="convergence", rows={FRAMES: "FedAvg by frames", SAMPLES: "FedAvg by clips"},
        note=f"vsLSTM; generated people have clips of other lengths and are otherwise alike; "
        f"{SEEDS}; {LEVEL}.",
        apart=("task",), less=("spread", "rounds"),
    ),
    PaperTable(
        "cfedvs/fig4.5", "IFCA, FedGroup and CFed-VS over rounds", PACE, {}, "summary",
        tuple(part for classes in (1, 2) for part in compared(classes)[:2]),
        (_sooner(1, SUM), _sooner(2, TV)),
        figure="convergence",
        note=f"{MODEL}; FedGroup's first groups have trained 50 steps; {SEEDS}; {LEVEL}.",
        apart=DATA, less=("spread", "rounds"),
    ),
    PaperTable(
        "cfedvs/fig4.6", "CFed-VS by the number of groups", ("main", "spread", "silhouette"), {},
        "summary", (groups(-1), compared(1)[0], groups(1)),
        (peak("m groups are best, of 2 to 4 (SumMe: of 1 to 3)", "4.4.3", (M_GROUPS,),
              tuple(f"cfedvs{in_groups(offset)}" for offset in (-1, 1))),),
        figure="settings",
        rows={f"cfedvs{in_groups(-1)}": "m - 1 groups", M_GROUPS: "m groups",
              f"cfedvs{in_groups(1)}": "m + 1 groups"},
        note=f"{MODEL}; one class per client; the silhouette is that of the numbers people tell, "
        "which the thesis does not look at.",
        less=("spread",),
    ),
    PaperTable(
        "cfedvs/fig4.7", "CFed-VS by the number of clients", ("main", "spread"), {}, "summary",
        (compared(1)[0], *map(crowd, (15, 20, 30))),
        (
            alike("the number of clients makes no difference (within 2 points of F)", "4.4.3",
                  WITHIN, M_GROUPS, *(f"cfedvs{among(people)}" for people in (15, 20, 30))),
            Claim("max - min over clients varies little", "4.4.3", untestable="the figure prints "
                  "no number, and how little is not said"),
        ),
        figure="settings",
        rows={M_GROUPS: "10 people"} | {f"cfedvs{among(n)}": f"{n} people" for n in (15, 20, 30)},
        note=f"{MODEL}; one class per client; compared are the people of both; generated people "
        "have the same clips however many there are.",
        apart=DATA, less=("spread",),
    ),
)  # fmt: skip

TABLES = (*FEDERATED, *CENTRAL_TABLES, *FIGURES)
