"""Arithmetic of chapter 4's printed tables, beside scores that need no learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vergence.app.papers import cfedvs_tables as printed
from vergence.app.papers.checks import Finding
from vergence.data.summarised import Summarised, file_of, read_videos
from vergence.errors import ConfigError, DataError
from vergence.metrics.summaries import human_f, random_f

DRAWS = 5
RANDOM_TVSUM = (54.0, 57.0)
"""F of random scores on TVSum's usual shots, by Otani et al., CVPR 2019, and later papers."""
OWN_PAPERS = {"VASNet": (0.160, 0.170), "DMASum": (0.203, 0.267), "PGL-SUM": (0.157, 0.206)}
"""Tau and rho on TVSum of methods published before the thesis, by their authors."""


def check_cfedvs(root: str | None) -> list[Finding]:
    """Return the findings about the chapter's tables.

    `root` is the folder with the annotations of SumMe and TVSum; None, or a folder without them:
    what is measured on them is left out.
    """
    return [*_leads(), *_text(), *_chance(), *_on_annotations(root)]


def _leads() -> list[Finding]:
    ours, next_best = (printed.TABLE42[name] for name in ("cfedvs", "fedgroup"))
    spreads = [printed.DEVIATIONS[name] for name in ("cfedvs", "fedgroup")]
    columns = [np.concatenate([np.array(row) for row in rows]) for rows in (ours, next_best)]
    leads = columns[0] - columns[1]
    limits = np.max([np.concatenate([np.array(row) for row in rows]) for rows in spreads], 0)
    told = ", ".join(f"{lead:.2f} (+-{limit})" for lead, limit in zip(leads, limits, strict=True))
    return [Finding("Table 4.2: CFed-VS leads FedGroup by more than what follows +-",
                    f"{(leads > limits).sum()} of {len(leads)} columns: {told}",
                    bool((leads > limits).all()))]  # fmt: skip


def _text() -> list[Finding]:
    tau, rho = printed.OWN44[1]
    above = {name: told for name, told in OWN_PAPERS.items() if told[0] > tau and told[1] > rho}
    return [
        Finding("4.4.2: Table 4.4 shows DMAsum's coefficients",
                f"it has {', '.join(printed.TABLE44)} and the Mixture Transformer",
                "DMAsum" in printed.TABLE44),
        Finding(f"Table 4.4: the Mixture Transformer's {tau} / {rho} on TVSum are best",
                "published before: " + ", ".join(f"{k} {t} / {r}" for k, (t, r) in above.items()),
                not above),
    ]  # fmt: skip


def _chance() -> list[Finding]:
    low, high = RANDOM_TVSUM
    rows = {
        f"Table 4.1, vsLSTM{printed.with_(classes)}": f
        for classes, (f, *_) in printed.TABLE41[printed.TV].items()
    }
    rows |= {"Table 4.1, the data centre": printed.CENTRAL[printed.TV],
             "Table 4.2, FedAvg with 1 class": printed.TABLE42["fedavg"][0][0],
             "Table 4.2, CFed-VS with 4 classes": printed.TABLE42["cfedvs"][0][2]}  # fmt: skip
    beyond = [name for name, f in rows.items() if f > high]
    return [Finding(
        "TVSum: what is learned is above random scores on the usual shots",
        f"those are published with {low:g} to {high:g}; above: {', '.join(beyond) or 'none'}; "
        f"not: {', '.join(f'{name} ({f})' for name, f in rows.items() if f <= high)}",
        len(beyond) == len(rows),
    )]  # fmt: skip


def _on_annotations(root: str | None) -> list[Finding]:
    """Return what the annotations at hand say, where they are."""
    if root is None:
        return []
    try:
        summe, tvsum = (read_videos(file_of(Path(root), name)) for name in ("summe", "tvsum"))
    except (DataError, ConfigError):
        return []
    shots = all(video.shots is not None for video in summe.values())
    return [*([_random(summe)] if shots else []), _counted(summe, tvsum)]


def _random(videos: dict[str, Summarised]) -> Finding:
    rng = np.random.default_rng(0)
    whole = [(v.shots, v.users > 0) for v in videos.values() if v.shots is not None]
    floor = 100 * np.mean([random_f(*one, "max", rng) for _ in range(DRAWS) for one in whole])
    people = 100 * np.mean([human_f(users, "max") for _, users in whole])
    rows = {f"{f}": f for f in (*(told[0] for told in printed.TABLE41[printed.SUM].values()),
                                printed.CENTRAL[printed.SUM])}  # fmt: skip
    return Finding(
        f"Table 4.1, SumMe: vsLSTM's {', '.join(rows)} are above random scores on the same shots",
        f"random {floor:.1f} ({DRAWS} draws), people {people:.1f}, on the {len(whole)} videos",
        bool(min(rows.values()) > floor),
    )


def _counted(*sets: dict[str, Summarised]) -> Finding:
    counts = [sorted({len(v.users) for v in videos.values()}) for videos in sets]
    told = " and ".join(f"{c[0]} to {c[-1]}" if len(c) > 1 else f"{c[0]}" for c in counts)
    return Finding("4.4.1: 25 people annotated the videos of either set",
                   f"{told} a video, of SumMe and of TVSum", counts == [[25], [25]])  # fmt: skip
