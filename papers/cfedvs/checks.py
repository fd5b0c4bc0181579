"""Arithmetic of chapter 4's printed tables, beside scores that need no learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vergence.data.video_summaries.h5_files import Summarised, file_of, read_videos
from vergence.errors import ConfigError, DataError
from vergence.experiment.schema import data_root
from vergence.metrics.summaries import human_f, random_f
from vergence_papers.finding import Finding
from vergence_papers.printed import numbers, paper

DRAWS = 5
SUMMARIES = "video_summarisation"
"""Folder of SumMe and TVSum below VERGENCE_DATA."""
TV, SUM = "TVSum", "SumMe"
CLASSES = ("1 class", "2 classes", "4 classes")
TABLES = paper("cfedvs").tables
PRINTED = {id_.partition("/")[2]: table.printed for id_, table in TABLES.items()}


def _f(method: str) -> list[float]:
    """F of Table 4.2: on TVSum by 1, 2, 4 classes per client, on SumMe by 1, 2."""
    rows = PRINTED["table4.2"]
    return [
        *(rows[TV][f"{method} with {classes}"][0] for classes in CLASSES),
        *(rows[SUM][f"{method} with {classes}"][0] for classes in CLASSES[:2]),
    ]


def findings() -> list[Finding]:
    """Return the findings about the chapter's tables, with the annotations in their usual place."""
    return check_cfedvs(data_root(SUMMARIES))


def check_cfedvs(root: str | None) -> list[Finding]:
    """Return the findings about the chapter's tables.

    `root` is the folder with the annotations of SumMe and TVSum; None, or a folder without them:
    what is measured on them is left out.
    """
    return [*_leads(), *_text(), *_chance(), *_on_annotations(root)]


def _leads() -> list[Finding]:
    ours, next_best = (np.array(_f(name)) for name in ("cfedvs", "fedgroup"))
    spreads = [numbers("cfedvs")["deviations"][name] for name in ("cfedvs", "fedgroup")]
    leads = ours - next_best
    limits = np.max([np.concatenate([np.array(row) for row in rows]) for rows in spreads], 0)
    told = ", ".join(f"{lead:.2f} (+-{limit})" for lead, limit in zip(leads, limits, strict=True))
    return [
        Finding(
            "Table 4.2: CFed-VS leads FedGroup by more than what follows +-",
            f"{(leads > limits).sum()} of {len(leads)} columns: {told}",
            bool((leads > limits).all()),
        )
    ]


def _text() -> list[Finding]:
    rows = PRINTED["table4.4"][TV]
    quoted = TABLES["cfedvs/table4.4"].quoted
    tau, rho = rows["mixture"]
    above = {
        name: told
        for name, told in numbers("cfedvs")["published_before"].items()
        if told[0] > tau and told[1] > rho
    }
    return [
        Finding(
            "4.4.2: Table 4.4 shows DMAsum's coefficients",
            f"it has {', '.join(quoted)} and the Mixture Transformer",
            "DMAsum" in rows,
        ),
        Finding(
            f"Table 4.4: the Mixture Transformer's {tau} / {rho} on TVSum are best",
            "published before: " + ", ".join(f"{k} {t} / {r}" for k, (t, r) in above.items()),
            not above,
        ),
    ]


def _chance() -> list[Finding]:
    low, high = numbers("cfedvs")["random_tvsum"]
    first, second = PRINTED["table4.1"][TV], PRINTED["table4.2"][TV]
    rows = {
        **{
            f"Table 4.1, vsLSTM{label.removeprefix('fedavg')}": told[0]
            for label, told in first.items()
            if label != "vslstm"
        },
        "Table 4.1, the data centre": first["vslstm"][0],
        "Table 4.2, FedAvg with 1 class": second["fedavg with 1 class"][0],
        "Table 4.2, CFed-VS with 4 classes": second["cfedvs with 4 classes"][0],
    }
    beyond = [name for name, f in rows.items() if f > high]
    return [
        Finding(
            "TVSum: what is learned is above random scores on the usual shots",
            f"those are published with {low:g} to {high:g}; above: {', '.join(beyond) or 'none'}; "
            f"not: {', '.join(f'{name} ({f})' for name, f in rows.items() if f <= high)}",
            len(beyond) == len(rows),
        )
    ]


def _on_annotations(root: str | None) -> list[Finding]:
    """Findings on the annotations at hand, where they are."""
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
    rows = {f"{f}": f for f, *_ in PRINTED["table4.1"][SUM].values()}
    return Finding(
        f"Table 4.1, SumMe: vsLSTM's {', '.join(rows)} are above random scores on the same shots",
        f"random {floor:.1f} ({DRAWS} draws), people {people:.1f}, on the {len(whole)} videos",
        bool(min(rows.values()) > floor),
    )


def _counted(*sets: dict[str, Summarised]) -> Finding:
    counts = [sorted({len(v.users) for v in videos.values()}) for videos in sets]
    told = " and ".join(f"{c[0]} to {c[-1]}" if len(c) > 1 else f"{c[0]}" for c in counts)
    return Finding(
        "4.4.1: 25 people annotated the videos of either set",
        f"{told} a video, of SumMe and of TVSum",
        counts == [[25], [25]],
    )
