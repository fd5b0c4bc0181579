"""Arithmetic of the AP-FL chapter's printed tables: what they say against what follows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vergence.app.papers.apfl import ALPHAS
from vergence.app.papers.apfl_tables import (
    CIFAR10,
    FASHION,
    ROWS,
    TABLE32,
    TABLE33,
    TABLE34,
)
from vergence.app.papers.checks import Finding

DRAWS = 10_000
"""Of a person's class shares, for the mean of the largest."""
TWO_OF_TEN = 20.0
"""Most that somebody who knows two of ten classes can have of all classes' images, in percent."""


def check_apfl() -> list[Finding]:
    """Return the findings about the chapter's tables."""
    return [*_tests(), *_best(), *_absent(), *_meaning()]


def largest_share(alpha: float, classes: int = 10) -> float:
    """Return the mean share in percent of a person's most frequent class, by drawing."""
    draw = np.random.default_rng(0)
    return 100 * float(draw.dirichlet(np.full(classes, alpha), DRAWS).max(1).mean())


def _tests() -> Iterator[Finding]:
    for alpha, row in zip(ALPHAS, TABLE32[10][CIFAR10], strict=True):
        constant = largest_share(alpha)
        yield Finding(
            f"Table 3.2, ten people, alpha {alpha:g}: tests share the person's classes (3.4.1), "
            f"and local training has {row[0]:.2f} %",
            f"always naming one's most frequent class has {constant:.0f} % of such a test",
            row[0] >= constant,
        )


def _best() -> Iterator[Finding]:
    lost, count = [], 0
    for people, by_data in TABLE32.items():
        for data, settings in by_data.items():
            for number, row in enumerate(settings):
                count += 1
                if row[-1] < max(row):
                    alpha = f"alpha {ALPHAS[number]:g}"
                    best = ROWS[row.index(max(row))]
                    lost.append(f"{data}, {people} people, {alpha}: {best} {max(row):.2f}, "
                                f"AP-FL {row[-1]:.2f}")  # fmt: skip
    told = f"{count - len(lost)} of {count} rows" + "".join(f"; {line}" for line in lost)
    yield Finding("Table 3.2: AP-FL surpasses most methods", told, len(lost) < count / 2)


def _absent() -> Iterator[Finding]:
    for data in (CIFAR10, FASHION):
        printed = TABLE33[data]["20 %"]
        yield Finding(
            f"Table 3.3, {data}, 20 %: who was away has two classes, and local training "
            f"{printed[0]:.2f} %",
            f"of all classes' tests two of ten are {TWO_OF_TEN:.0f} % at most; of their own, "
            "naming one of the two has 50 %",
            printed[0] <= TWO_OF_TEN or printed[0] >= 50,
        )
    behind = [f"{data} {missing}: {row[2]:.2f} against {row[1]:.2f}"
              for data, by_missing in TABLE33.items()
              for missing, row in by_missing.items() if row[2] < row[1]]  # fmt: skip
    yield Finding("Table 3.3: AP-FL outperforms fine-tuning in most cases",
                  f"behind: {'; '.join(behind)}", len(behind) < 4)  # fmt: skip


def _meaning() -> Iterator[Finding]:
    won = [f"{data} {name}: {best} {max(values.values()):.2f}, CLIP {values['clip']:.2f}"
           for data, rows in TABLE34.items() for at, name in enumerate(("A_n", "A_d"))
           if (values := {label: row[at] for label, row in rows.items()})
           and (best := {"glove": "W2V", "bert": "BERT", "clip": "CLIP"}[
               max(values, key=lambda label: values[label])]) != "CLIP"]  # fmt: skip
    yield Finding("Table 3.4: CLIP is best", f"not: {'; '.join(won) or 'none'}", not won)
    spans = {data: max(row[0] for row in rows.values()) - min(row[0] for row in rows.values())
             for data, rows in TABLE34.items()}  # fmt: skip
    told = ", ".join(f"{data} {span:.2f}" for data, span in spans.items())
    yield Finding("Table 3.4: all semantics are comparable, within 10 points (A_n)",
                  f"best less worst: {told}", max(spans.values()) <= 10)  # fmt: skip
