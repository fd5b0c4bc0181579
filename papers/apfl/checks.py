"""Arithmetic of the AP-FL chapter's printed tables: what they say against what follows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vergence_papers.finding import Finding
from vergence_papers.printed import numbers, paper

PRINTED = {table.id.partition("/")[2]: table.printed for table in paper("apfl").tables.values()}
CIFAR10, FASHION = "CIFAR10", "Fashion-MNIST"
ALPHAS, MISSING = (0.01, 0.05, 0.1), ("10 %", "20 %")
"""Of the Dirichlet distribution of Table 3.2; classes of Table 3.3 that nobody else has."""
ROWS = ("local_only", "fedavg", "fedprox", "scaffold", "fedgen", "feddf", "ap_fl")
SOURCES = {"glove": "W2V", "bert": "BERT", "clip": "CLIP"}
"""Of Table 3.4, whose word2vec is GloVe here."""
DRAWS = 10_000
"""Of a person's class shares, for the mean of the largest."""
TWO_OF_TEN = 20.0
"""Most that somebody who knows two of ten classes can have of all classes' images, in percent."""


def findings() -> list[Finding]:
    """Return the findings about the chapter's tables."""
    return [*_tests(), *_best(), *_absent(), *_meaning()]


def largest_share(alpha: float, classes: int = 10) -> float:
    """Return the mean share in percent of a person's most frequent class, by drawing."""
    draw = np.random.default_rng(0)
    return 100 * float(draw.dirichlet(np.full(classes, alpha), DRAWS).max(1).mean())


def compared() -> Iterator[tuple[int, str, float | None, list[float]]]:
    """People, data set, alpha (None: not printed) and accuracies of `ROWS` of Table 3.2."""
    ten = {
        data: {**rows, **PRINTED["table3.2-middle"][data]}
        for data, rows in PRINTED["table3.2"].items()
    }
    for people, table in ((5, PRINTED["table3.2-five"]), (10, ten)):
        for data, rows in table.items():
            for alpha in ALPHAS if rows else ():
                yield (
                    people,
                    data,
                    alpha,
                    [rows[f"{row} ({people} people, alpha {alpha:g})"][0] for row in ROWS],
                )
        yield people, FASHION, None, numbers("apfl")["fashion_mnist"][str(people)]


def _tests() -> Iterator[Finding]:
    for people, data, alpha, row in compared():
        if (people, data) != (10, CIFAR10) or alpha is None:
            continue
        constant = largest_share(alpha)
        yield Finding(
            f"Table 3.2, ten people, alpha {alpha:g}: tests share the person's classes (3.4.1), "
            f"and local training has {row[0]:.2f} %",
            f"always naming one's most frequent class has {constant:.0f} % of such a test",
            row[0] >= constant,
        )


def _best() -> Iterator[Finding]:
    lost, count = [], 0
    for people, data, alpha, row in compared():
        count += 1
        if row[-1] < max(row):
            where = "" if alpha is None else f", alpha {alpha:g}"
            best = ROWS[row.index(max(row))]
            lost.append(
                f"{data}, {people} people{where}: {best} {max(row):.2f}, AP-FL {row[-1]:.2f}"
            )
    told = f"{count - len(lost)} of {count} rows" + "".join(f"; {line}" for line in lost)
    yield Finding("Table 3.2: AP-FL surpasses most methods", told, len(lost) < count / 2)


def _absent() -> Iterator[Finding]:
    table = {
        (data, missing): [
            rows[f"{row} ({missing} missing)"][0] for row in ("local_only", "fedavg_ft", "ap_fl")
        ]
        for data, rows in PRINTED["table3.3"].items()
        for missing in MISSING
    }
    for data in (CIFAR10, FASHION):
        printed = table[data, "20 %"]
        yield Finding(
            f"Table 3.3, {data}, 20 %: who was away has two classes, and local training "
            f"{printed[0]:.2f} %",
            f"of all classes' tests two of ten are {TWO_OF_TEN:.0f} % at most; of their own, "
            "naming one of the two has 50 %",
            printed[0] <= TWO_OF_TEN or printed[0] >= 50,
        )
    behind = [
        f"{data} {missing}: {row[2]:.2f} against {row[1]:.2f}"
        for (data, missing), row in table.items()
        if row[2] < row[1]
    ]
    yield Finding(
        "Table 3.3: AP-FL outperforms fine-tuning in most cases",
        f"behind: {'; '.join(behind)}",
        len(behind) < 4,
    )


def _meaning() -> Iterator[Finding]:
    table = {
        data: {name: rows[f"ap_fl_{source}"] for source, name in SOURCES.items()}
        for data, rows in PRINTED["table3.4"].items()
    }
    won = [
        f"{data} {name}: {best} {max(values.values()):.2f}, CLIP {values['CLIP']:.2f}"
        for data, rows in table.items()
        for at_, name in enumerate(("A_n", "A_d"))
        if (values := {label: row[at_] for label, row in rows.items()})
        and (best := max(values, key=lambda label: values[label])) != "CLIP"
    ]
    yield Finding("Table 3.4: CLIP is best", f"not: {'; '.join(won) or 'none'}", not won)
    spans = {
        data: max(row[0] for row in rows.values()) - min(row[0] for row in rows.values())
        for data, rows in table.items()
    }
    told = ", ".join(f"{data} {span:.2f}" for data, span in spans.items())
    yield Finding(
        "Table 3.4: all semantics are comparable, within 10 points (A_n)",
        f"best less worst: {told}",
        max(spans.values()) <= 10,
    )
