"""The PE-ZSL chapter: printed accuracies in percent, and the claims.

Source: the Durham thesis, chapter 5, Tables 5.2 and 5.3, Figure 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from vergence.app.papers.base import Claim, PaperTable, Table, alike, better
from vergence.app.papers.grounds import COSTS, Ground
from vergence.app.papers.outcome import PRIOR
from vergence.app.papers.pezsl import (
    ATTRIBUTES,
    BERT,
    OM,
    QUASI,
    RANDOM,
    TEACHER,
    asked,
    described,
    every_way,
    taught,
)

COLUMNS = ("main", "T1", "u", "s")
COSTED = (*COLUMNS, *COSTS)
AWA1, AWA2, APY = "AWA1", "AWA2", "aPY"
Row = tuple[float, float, float, float]
TABLE52: Mapping[str, Mapping[str, Row]] = {
    AWA1: {
        TEACHER + QUASI: (0.0, 0.0, 0.0, 92.9), TEACHER + OM: (92.3, 92.1, 92.1, 92.5),
        "black_box" + QUASI: (3.9, 14.1, 4.1, 3.7), "white_box" + QUASI: (27.8, 34.5, 23.4, 34.3),
        "black_box" + OM: (30.9, 33.5, 33.5, 28.6), "white_box" + OM: (79.8, 77.9, 77.9, 81.8),
    },
    AWA2: {
        TEACHER + QUASI: (0.0, 0.0, 0.0, 93.1), TEACHER + OM: (91.9, 91.7, 91.7, 92.2),
        "black_box" + QUASI: (3.6, 19.9, 3.5, 3.7), "white_box" + QUASI: (33.7, 36.5, 27.3, 44.3),
        "black_box" + OM: (27.0, 29.0, 29.0, 25.3), "white_box" + OM: (82.7, 79.0, 79.0, 86.7),
    },
    APY: {
        TEACHER + QUASI: (0.0, 0.0, 0.0, 91.6), TEACHER + OM: (91.1, 90.8, 90.8, 91.4),
        "black_box" + QUASI: (5.1, 12.3, 6.8, 4.0), "white_box" + QUASI: (26.7, 18.7, 17.9, 52.5),
        "black_box" + OM: (35.2, 30.2, 30.2, 42.2), "white_box" + OM: (84.8, 83.9, 83.9, 85.7),
    },
}  # fmt: skip
"""Data set -> row -> H, T1, u, s; of omniscient teachers the thesis's T1 is u. 6.2 is the same."""
FULL, LABELS, PLAIN, FREE = "black_box", "label_conditioned", "no_verification", "no_regulariser"
TABLE53: Mapping[str, Mapping[str, Row]] = {
    AWA1: {LABELS + OM: (18.9, 15.5, 15.5, 24.3), ATTRIBUTES + OM: (10.7, 10.1, 10.1, 11.3),
           PLAIN + OM: (19.4, 25.6, 25.6, 15.6), FREE + OM: (26.8, 26.8, 26.8, 26.7),
           FULL + OM: (30.9, 33.5, 33.5, 28.6)},
    AWA2: {LABELS + OM: (12.8, 10.0, 10.0, 17.8), ATTRIBUTES + OM: (20.0, 23.0, 23.0, 17.6),
           PLAIN + OM: (20.9, 24.7, 24.7, 18.1), FREE + OM: (23.4, 23.7, 23.7, 23.2),
           FULL + OM: (27.0, 29.0, 29.0, 25.3)},
    APY: {LABELS + OM: (4.9, 7.0, 7.0, 3.8), ATTRIBUTES + OM: (6.3, 8.2, 8.2, 5.0),
          PLAIN + OM: (15.0, 11.8, 11.8, 20.9), FREE + OM: (24.3, 23.2, 23.2, 25.6),
          FULL + OM: (35.2, 30.2, 30.2, 42.2)},
}  # fmt: skip
CLOSE = 0.10
"""Accuracy within which a student is "close to" its teacher, fixed before any run."""
CHANCE = f"chance{PRIOR}"
SEEDS = "seeds: there is one owner"
NOTE = (
    "every row says which classes the teacher saw; unseen means unseen by the student. T1 is over "
    "unseen classes alone; the thesis's T1 of an omniscient teacher is its u. The teacher is the "
    "one that answered, as the owner kept it"
)
SPENT = (
    "Seconds of wall time and megabytes are of a whole training, the teacher's or the student's; "
    "kept is the state that owner or provider goes on with"
)
ALONE = ("federation", "people", "split", "data")


def _ablated(ground: Ground, guide: str, end: str = "") -> list[Table]:
    """Return a black box, and the same without one part of it at a time."""
    sources = described(ground)
    changes = {FULL: {}, LABELS: {"semantics": sources[RANDOM]}, PLAIN: {"verify": False},
               FREE: {"regulariser": "none"}}  # fmt: skip
    if BERT in sources:  # else attributes are what the full method has
        changes |= {FULL: {"semantics": sources[BERT]}, ATTRIBUTES: {}}
    return [asked(ground, label + end, guide=guide, **more) for label, more in changes.items()]


PRINTED_WAY = taught("ablated", lambda ground: _ablated(ground, "scores"))
OUR_WAY = taught("ablated_estimates", lambda ground: _ablated(ground, "estimates", "_estimates"))
EPOCHS = taught(
    "epochs",
    lambda ground: [
        asked(ground, f"{box}{end}", guide=guide, **more)
        for box, guide in (("white_box", "gradients"), ("black_box", "scores"))
        for end, more in (("", {}), ("_no_ver", {"verify": False}),
                          ("_no_R", {"regulariser": "none"}))
    ],
)  # fmt: skip


def _parts_matter(end: str, way: str) -> list[tuple[str, str, str, str]]:
    full = FULL + end + OM
    return [
        (f"descriptions are better than random vectors, {way}", "5.4.1", full, LABELS + end + OM),
        (f"label verification helps, {way}", "5.4.1", full, PLAIN + end + OM),
        (f"the regulariser helps, {way}", "5.4.1", full, FREE + end + OM),
    ]


def two_boxes(where: str) -> tuple[Claim, ...]:
    """Return what is said of both boxes and both teachers."""
    return (
        better("the white box is better than the black box, teacher of all classes", where,
               "white_box" + OM, "black_box" + OM),
        better("the same, teacher of seen classes", where, "white_box" + QUASI,
               "black_box" + QUASI),
        better("a student knows more than its teacher of seen classes", where,
               "white_box" + QUASI, TEACHER + QUASI),
        better("the black box outperforms random guessing, teacher of seen classes", where,
               "black_box" + QUASI, CHANCE, quantity="T1"),
        better("the same, teacher of all classes", where, "black_box" + OM, CHANCE,
               quantity="T1"),
        alike("the white box's student is close to its teacher (within 10 points)", "5.4.2",
              CLOSE, "white_box" + OM, TEACHER + OM),
        better("a black box learns from estimates what it does not as printed, all classes",
               "not in the thesis", "by_estimates" + OM, "black_box" + OM),
        better("the same, seen classes, T1", "not in the thesis", "by_estimates" + QUASI,
               "black_box" + QUASI, quantity="T1"),
        better("a black box learns through its student, all classes", "not in the thesis",
               "by_its_student" + OM, "black_box" + OM),
    )  # fmt: skip


TABLES = (
    PaperTable(
        "pezsl/table5.2", "both teachers, white box and black boxes", COSTED, TABLE52, "zero_shot",
        (every_way("omniscient"), every_way("quasi")), two_boxes("Table 5.2"),
        note=f"{NOTE}. {SPENT}.", apart=ALONE, spread=("T1",), over=SEEDS,
    ),
    PaperTable(
        "pezsl/table5.3", "black boxes without one part each", COLUMNS, TABLE53, "zero_shot",
        (PRINTED_WAY, OUR_WAY),
        tuple(better(*claim) for end, way in (("", "as printed"), ("_estimates", "by estimates"))
              for claim in _parts_matter(end, way)),
        note=f"{NOTE}. Label-conditioned is with random vectors. The full method has attributes, "
        "or BERT's vectors where there are some, and attributes then have a row of their own.",
        spread=("T1",), over=SEEDS,
    ),
    PaperTable(
        "pezsl/fig5.3", "students over rounds, without verification or regulariser", COLUMNS, {},
        "zero_shot", (EPOCHS,),
        tuple(better(f"{what}, {box.replace('_', ' ')}", "5.4.2", box + OM, box + end + OM)
              for box in ("white_box", "black_box")
              for end, what in (("_no_ver", "label verification helps"),
                                ("_no_R", "the regulariser helps"))),
        figure="convergence", spread=("u",), over=SEEDS,
        note=f"{NOTE}. H is drawn, where the thesis has u.",
    ),
)  # fmt: skip
