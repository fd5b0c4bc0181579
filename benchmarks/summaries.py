"""Judge summaries of SumMe and TVSum: random, human, best possible, and published outputs.

Run `python -m benchmarks.summaries --root DIR` with the folder that holds the h5 files of both sets
(docs/results/summaries.md); seconds. With published outputs (reference_runs.h5) every summary is
made again from its scores and compared frame for frame; with key frames, features alone are judged.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from vergence.data.video_summaries.h5_files import Summarised, file_of, read_videos
from vergence.data.video_summaries.shots import coverage
from vergence.metrics.summaries import (
    Agreement,
    agreement,
    f_score,
    human_agreement,
    human_f,
    random_f,
    rest_agreement,
    spread,
    summary,
)

DRAWS = 20
SHOT_S = 2.0
"""Raters of TVSum saw shots of two seconds."""
Videos = dict[str, Summarised]


def ranked(video: Summarised, scores: Any) -> Agreement:
    """Per rater of TVSum; SumMe's binary summaries as their mean."""
    people = video.users[:, video.picks] if video.rated else video.mean_score[None]
    return agreement(scores, people)


def shots_of(video: Summarised) -> Any:
    assert video.shots is not None, f"{video.name} has no shots"
    return video.shots


def made(video: Summarised, scores: Any) -> Any:
    return summary(spread(scores, video.picks, video.frames), shots_of(video))


def on_shots(name: str, videos: Videos, over: Literal["max", "mean"]) -> None:
    """F of random scores, people and gtscore on the data set's own shots."""
    rng = np.random.default_rng(0)
    whole = [(v, shots_of(v), v.users > 0) for v in videos.values()]
    draws = [np.mean([random_f(s, u, over, rng) for _, s, u in whole]) for _ in range(DRAWS)]
    most, mean = (np.mean([human_f(u, o) for _, _, u in whole]) for o in ("max", "mean"))
    best = [f_score(made(v, v.mean_score), u, over) for v, _, u in whole]
    chosen = [(v.users[:, v.picks] > 0).astype(float) for v in videos.values()]
    pairs, rest = (np.mean([f(c) for c in chosen], 0) for f in (human_agreement, rest_agreement))
    print(f"{name}, {len(videos)} videos, their own shots, F in %, {over} over people")
    mean_f, spread_f = 100 * np.mean(draws), 100 * np.std(draws)
    print(f"  random                     {mean_f:.1f} ({DRAWS} draws, SD {spread_f:.1f})")
    print(f"  people, leave one out      {100 * most:.1f} by max, {100 * mean:.1f} by mean")
    print(f"  best possible from gtscore {100 * np.mean(best):.1f}")
    print("  people, tau / rho, in pairs {:.3f} / {:.3f}".format(*pairs))
    print("  people, tau / rho, against the mean of the others {:.3f} / {:.3f}".format(*rest))


def on_ratings(videos: Videos) -> None:
    people = [human_agreement(v.users[:, v.picks]) for v in videos.values()]
    best = [ranked(v, v.mean_score) for v in videos.values()]
    print(f"TVSum, {len(videos)} videos, tau / rho against each rater")
    print("  people, leave one out      {:.3f} / {:.3f}".format(*np.mean(people, 0)))
    print("  best possible from gtscore {:.3f} / {:.3f}".format(*np.mean(best, 0)))


def on_equal_shots(videos: Videos, lengths_s: dict[str, float]) -> None:
    rng, rows = np.random.default_rng(0), []
    for key, v in videos.items():
        starts = np.arange(0, lengths_s[key], SHOT_S) * v.frames / lengths_s[key]
        starts = starts.round().astype(int)
        starts = starts[starts < v.frames]
        shots = np.stack([starts, np.append(starts[1:], v.frames) - 1], 1)
        users = np.stack([summary(row.astype(float), shots) for row in v.users])
        draws = [random_f(shots, users, "mean", rng) for _ in range(5)]
        oracle = f_score(summary(v.users.mean(0), shots), users, "mean")
        rows.append((np.mean(draws), human_f(users, "mean"), oracle))
    told = "  random {:.1f}, people {:.1f}, best possible {:.1f}"
    print(f"TVSum, shots of {SHOT_S:.0f} s, F in %, mean over raters")
    print(told.format(*(100 * np.mean(rows, 0))))


def published(path: Path, name: str, videos: Videos) -> None:
    """Rank the scores of published runs; where there are shots, make their summaries again."""
    with h5py.File(path, "r") as file:
        for kind, splits in file[name].items():
            runs = [(videos[key], run) for split in splits.values() for key, run in split.items()]
            stored = [float(run.attrs["f_measure"]) for _, run in runs]
            ranks = np.mean([ranked(v, run["score"][()]) for v, run in runs], 0)
            told = "F {:.1f}, tau {:.3f}, rho {:.3f}".format(100 * np.mean(stored), *ranks)
            print(f"{name}, published outputs, {kind}: {told}")
            if name == "SumMe":
                ours = [made(v, run["score"][()]) for v, run in runs]
                pairs = list(zip(ours, runs, strict=True))
                same = sum(
                    np.array_equal(m, run["machine_summary"][()] > 0) for m, (_, run) in pairs
                )
                f = [f_score(m, v.users > 0, "max") for m, (v, _) in pairs]
                off = np.abs(np.subtract(f, stored)).max()
                print(f"  made again: {same} of {len(runs)} frame for frame, F within {off:.0e}")


def keyframes(path: Path) -> None:
    """Rank TVSum's published key frames by features alone, each a shot of its own."""
    with np.load(path) as kept:
        features, names, people = kept["features"].astype(float), kept["video"], kept["user_anno"]
    found: dict[str, list[Agreement]] = {"coverage": [], "likeness": [], "mean rating": []}
    for name in np.unique(names):
        x, users = features[names == name], people[names == name].T
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        found["coverage"].append(agreement(coverage(x, np.arange(len(x))), users))
        found["likeness"].append(agreement((unit @ unit.T).mean(1), users))
        found["mean rating"].append(agreement(users.mean(0), users))
    print(f"TVSum, {len(names)} key frames of {len(found['likeness'])} videos, against each rater")
    for what, rows in found.items():
        error = np.std([row.tau for row in rows], ddof=1) / len(rows) ** 0.5
        tau, rho = np.mean(rows, 0)
        print(f"  {what:12} tau {tau:.3f} (standard error {error:.3f}), rho {rho:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("VERGENCE_DATA", ".")) / "video_summarisation"
    parser.add_argument("--root", type=Path, default=default)
    root = parser.parse_args().root
    files = {name: file_of(root, name.lower()) for name in ("SumMe", "TVSum")}
    sets = {name: read_videos(path) for name, path in files.items()}
    if all(video.shots is not None for video in sets["SumMe"].values()):
        on_shots("SumMe", sets["SumMe"], "max")
    if all(video.rated for video in sets["TVSum"].values()):
        on_ratings(sets["TVSum"])
        if files["TVSum"].suffix == ".h5":
            with h5py.File(files["TVSum"], "r") as file:
                lengths_s = {k: float(file[k].attrs["length_s"]) for k in sets["TVSum"]}
            on_equal_shots(sets["TVSum"], lengths_s)
    else:
        on_shots("TVSum", sets["TVSum"], "mean")
    if (root / "reference_runs.h5").is_file():
        for name, videos in sets.items():
            published(root / "reference_runs.h5", name, videos)
    if (root / "tvsum_keyframes_effnetlite0.npz").is_file():
        keyframes(root / "tvsum_keyframes_effnetlite0.npz")


if __name__ == "__main__":
    main()
