"""Arithmetic of the FedCPF paper's tables and tests."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
from scipy.stats import ttest_ind_from_stats

from vergence.metrics.zero_shot import harmonic
from vergence_papers.finding import Finding
from vergence_papers.printed import numbers, paper

TABLES = [paper("fedcpf").tables[f"fedcpf/table{number}"] for number in (1, 2, 3)]
TABLE1, TABLE2, TABLE3 = (table.printed for table in TABLES)
COLUMNS = TABLES[0].columns
EGO4D = "Ego4D"
HALF = 0.005
"""Half of the last printed digit of a percentage."""
MOST_RUNS = 200


def findings() -> list[Finding]:
    """Return the findings about the tables and tests of the FedCPF paper."""
    return [
        *_f1(),
        *_twins(),
        *_tests(),
        *_text(),
    ]


def _cells() -> Iterator[tuple[str, str, str, tuple[float, ...]]]:
    tables = (("Table 1", TABLE1), ("Table 2", TABLE2), ("Table 3", TABLE3))
    for name, table in tables:
        for data, rows in table.items():
            for label, row in rows.items():
                yield name, data, label, row


def _f1() -> Iterator[Finding]:
    off = []
    count = 0
    for name, data, label, (recall, precision, printed) in _cells():
        count += 1
        computed = harmonic(precision, recall)
        if abs(printed - round(computed, 2)) > 0.01 + 1e-9:
            low = harmonic(precision - HALF, recall - HALF) - HALF
            high = harmonic(precision + HALF, recall + HALF) + HALF
            why = "rounding explains it" if low <= printed <= high else "beyond rounding"
            off.append(f"{name} {data} {label}: {printed:.2f}, computed {computed:.2f} ({why})")
    told = f"{count - len(off)} of {count} rows" + "".join(f"; {line}" for line in off)
    yield Finding("every F1 is 2PR / (P + R) of its row, within 0.01", told, not off)


SAME_SETTING = {
    ("fedcpf", "rho_50"),
    ("acc_05", "rho_50"),
    ("fedcpf", "acc_05"),
    ("fedcpf", "rho_40"),
}
"""Rows that are the same run and should be equal: rho 0.5 (Ego4D, Table 1: 0.4), acc 0.05."""


def _twins() -> Iterator[Finding]:
    seen: dict[tuple[str, tuple[float, ...]], tuple[str, str]] = {}
    twins = []
    for name, data, label, row in _cells():
        first = seen.setdefault((data, row), (name, label))
        same = {(first[1], label), (label, first[1])} & SAME_SETTING
        if first != (name, label) and not same:
            twins.append(f"{data}: {first[0]} {first[1]} = {name} {label}, {row}")
    told = "; ".join(twins) or "none"
    yield Finding("different settings have different results", f"equal rows: {told}", not twins)
    best = max(TABLE2[EGO4D].items(), key=lambda item: item[1][2])[0]
    used = next(k for k, row in TABLE2[EGO4D].items() if row == TABLE1[EGO4D]["fedcpf"])
    yield Finding(
        "rho of Table 1 was not chosen on the results it reports",
        f"on Ego4D Table 1 shows {used}, the best F1 of Table 2 is {best}; no validation set is "
        "mentioned, and random freezing is run at rho 0.5 only",
        used != best,
    )


def half_unit(printed: str) -> float:
    """Return half of the last digit of a printed number.

    >>> half_unit("0.05")
    0.005
    """
    return 0.5 * 10.0 ** int(Decimal(printed).as_tuple().exponent)


def _p(one: tuple[float, float], other: tuple[float, float], runs: int) -> float:
    return float(ttest_ind_from_stats(*one, runs, *other, runs).pvalue)


def runs_fitting(one: tuple[str, str], other: tuple[str, str], p: str) -> list[int]:
    """Return the runs per method for which an unpaired t-test gives the printed p, 2 to 200.

    Means, standard deviations and p may be anything that is printed so.
    """
    (m1, s1), (m2, s2) = ((float(m), float(s)) for m, s in (one, other))
    mean = half_unit(one[0]) + half_unit(other[0])
    d1, d2 = half_unit(one[1]), half_unit(other[1])
    top, bottom = float(p) + half_unit(p), float(p) - half_unit(p)
    return [
        n
        for n in range(2, MOST_RUNS + 1)
        if _p((m1 + mean, s1 - d1), (m2, s2 - d2), n) <= top
        and _p((m1 - mean, s1 + d1), (m2, s2 + d2), n) >= bottom
    ]


def printed_tests() -> list[tuple[str, str, tuple[str, str], tuple[str, str], str]]:
    """Data set, quantity, FedCPF and FedSelect (mean, SD) and p of each t-test, as printed."""
    return [
        (one["data"], one["quantity"], tuple(one["fedcpf"]), tuple(one["fedselect"]), one["p"])
        for one in numbers("fedcpf")["t_tests"]
    ]


def _tests() -> Iterator[Finding]:
    fits = []
    for data, quantity, one, other, p in printed_tests():
        fit = runs_fitting(one, other, p)
        fits.append(set(fit))
        exact = [
            _p((float(one[0]), float(one[1])), (float(other[0]), float(other[1])), n)
            for n in range(2, MOST_RUNS + 1)
        ]
        nearest = 2 + int(np.argmin(np.abs(np.array(exact) - float(p))))
        span = f"{min(fit)} to {max(fit)}" if fit else "none"
        yield Finding(
            f"{data} {quantity}: {one[0]} (SD {one[1]}) against {other[0]} (SD {other[1]}), "
            f"p = {p}",
            f"an unpaired two-sided t-test needs about {nearest} runs per method ({span} with all "
            "roundings)",
            bool(fit),
        )
    common = sorted(set.intersection(*fits))
    yield Finding(
        "the four t-tests are of one experiment, with one number of runs",
        f"numbers of unpaired runs that fit all four: {common or 'none'} (paired runs would be "
        "fewer, but no correlation is printed)",
        bool(common),
    )
    ps = sorted(float(p) for *_, p in printed_tests())
    held = np.maximum.accumulate([min(1.0, p * (len(ps) - i)) for i, p in enumerate(ps)])
    yield Finding(
        "FedCPF is significantly better than FedSelect",
        "after Holm's correction the four p-values are "
        + ", ".join(f"{p:.3f}" for p in held)
        + f"; below 0.05: {int((held < 0.05).sum())} of {len(ps)}",
        bool((held < 0.05).all()),
    )


def _text() -> Iterator[Finding]:
    for data, quantity, (mean, _), _, _ in printed_tests():
        row = TABLE1[data]["fedcpf"]
        tabled = row[COLUMNS.index(quantity)]
        yield Finding(
            f"{data}: the text's {quantity} of FedCPF, {mean}, is that of Table 1",
            f"Table 1 prints {tabled:.2f}",
            abs(float(mean) - tabled) < HALF,
        )
    for table, label, wanted in (
        (TABLE2, "rho", {"rho_40", "rho_50"}),
        (TABLE3, "acc", {"acc_05"}),
    ):
        best = {
            data: max(rows, key=lambda key, rows=rows: rows[key][2]) for data, rows in table.items()
        }
        told = ", ".join(f"{data} {where}" for data, where in best.items())
        yield Finding(
            f"F1 is best at {label} " + " or ".join(sorted(w[4:] for w in wanted)) + " (percent)",
            f"highest printed F1: {told}",
            set(best.values()) <= wanted,
        )
    for part, (egtea, ego4d, both) in numbers("fedcpf")["clips"].items():
        yield Finding(
            f"{both} {part} clips", f"{egtea} + {ego4d} = {egtea + ego4d}", egtea + ego4d == both
        )
    gaps = {
        d: central - TABLE1[d]["fedcpf"][2]
        for d, central in numbers("fedcpf")["central_f1"].items()
    }
    told = ", ".join(f"{d}: {gap:.1f} points above" for d, gap in gaps.items())
    printed = any("centralised" in rows for rows in TABLE1.values())
    yield Finding(
        "FedCPF is comparable to centralised models",
        f"Table 1 {'has' if printed else 'has no'} centralised row; published centralised GLC is, "
        f"on {told} FedCPF in F1 (official splits, another metric)",
        printed,
    )
