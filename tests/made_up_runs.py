"""A made-up OUT directory with known numbers, written by hand, no engine involved."""

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

METHODS = ("local_only", "fedavg", "fedcpf")
BASE = {"local_only": 2.0, "fedavg": 2.2, "fedcpf": 2.5, "fedselect": 2.4, "fedprox": 2.25}
GAIN = (0.3, 0.0, -0.1, 0.2)
NAMES = ("embed.weight", "embed.bias", "block.0.qkv.weight", "block.0.mlp.weight", "head.weight")
SHAPES = ((16, 3, 3, 3), (16,), (48, 16), (32, 16), (1, 16))
N = sum(int(np.prod(s)) for s in SHAPES)


def value(method, person, seed):
    """Return the NSS of the fake: base + 0.1 person + gain (FedCPF only) -/+ 0.02 by seed."""
    gain = GAIN[person % 4] if method == "fedcpf" else 0.0
    return BASE[method] + 0.1 * person + gain + (0.02 if seed else -0.02)


def _csv(path, head, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])


def write_run(folder, method, people=4, seeds=(0, 1), rounds=6, label=None):
    folder.mkdir(parents=True)
    names = [f"p{i + 1}" for i in range(people)]
    by_person = np.array([np.mean([value(method, p, s) for s in seeds]) for p in range(people)])
    half = 3.182446305284263 * by_person.std(ddof=1) / 2 if people == 4 else 0.1
    mean = float(by_person.mean())
    estimate = {"mean": mean, "std": float(by_person.std(ddof=1)), "worst": float(by_person.min())}
    up = {"local_only": 0, "fedcpf": 5400}.get(method, 10_000)
    results = {
        "method": method,
        "label": label or method,
        "task": "gaze_map",
        "federation": "osie",
        "seeds": list(seeds),
        "headline": "nss",
        "lower_is_better": ["kld"],
        "people": names,
        "metrics": {
            "kld": {"mean": 1.25, "std": 0.1, "worst": 1.5, "ci95": [1.1, 1.4]},
            "nss": {**estimate, "ci95": [mean - half, mean + half]},
        },
        "bytes": {"up": up, "down": 0 if method == "local_only" else 10_000},
        "seconds": 12.0,
        "peak_mb": 300.0,
        "harmed_vs_local": 0.25 if method == "fedcpf" else None,
        "fingerprint": {str(s): hashlib.sha256(f"{method}{s}".encode()).hexdigest() for s in seeds},
        "personal_fraction": 0.5 if method == "fedcpf" else 0.0,
        "rounds": rounds,
    }
    (folder / "results.json").write_text(json.dumps(results))
    rows = [
        (s, names[p], "P0", m, value(method, p, s) if m == "nss" else 1.25)
        for s in seeds
        for p in range(people)
        for m in ("nss", "kld")
    ]
    _csv(folder / "people.csv", "seed,person,evaluation,metric,value", rows)
    _write_rounds(folder, method, mean, names, seeds, rounds, up)
    if method in {"fedcpf", "fedselect"}:
        _write_masks(folder, names, seeds, method)
    _write_maps(folder, method)
    (folder / "config.toml").write_text(f'method = {{ name = "{method}" }}\n')
    provenance = {
        "code": {"version": "0.1.0", "commit": "abc1234"},
        "data": {"name": "osie", "licence": "MIT", "citation": "Xu et al. 2014", "sha256": "00ff"},
        "environment": {"python": "3.11.9", "torch": "2.13.0"},
        "command": "vergence run experiments/osie.toml --out OUT",
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))


def _write_rounds(folder, method, mean, names, seeds, rounds, up):
    head = "seed,round,evaluation,metric,value,bytes_up,bytes_down,seconds,personal_fraction"
    grown = [min(0.5, 0.1 * r) if method in {"fedcpf", "fedselect"} else "" for r in range(rounds)]
    rows = [
        (s, r, "P0", "nss", mean - 1.2 * 0.25**r + 0.05 * s, up, 10_000, 2.0, grown[r])
        for s in seeds
        for r in range(rounds)
    ]
    _csv(folder / "rounds.csv", head, rows)
    head = "seed,round,client,verb,tree,bytes_up,bytes_down,examples,weight,steps"
    head += ",personal_fraction,status"
    turns = []
    for s in seeds:
        for r in range(rounds):
            for name in names:
                share = grown[r] if method in {"fedcpf", "fedselect"} else ""
                status = "lost" if (s, r, name) == (1, 2, "p2") else "ok"
                turns.append((s, r, name, "train", "model", up, 10_000, 80, 80, 5, share, status))
    _csv(folder / "turns.csv", head, turns)


def _write_masks(folder, names, seeds, method):
    """Half of all entries are personal: the first quarter for everyone, another one each."""
    tensors = {}
    for s in seeds:
        for i, name in enumerate(names):
            mask = np.zeros(N, dtype=bool)
            mask[: N // 4] = True
            rng = np.random.default_rng([s, i, len(method)])
            mask[N // 4 + rng.choice(N - N // 4, N // 4, replace=False)] = True
            tensors[f"{s}/{name}"] = np.packbits(mask)
    about = {"n": str(N), "names": json.dumps(NAMES), "shapes": json.dumps(SHAPES)}
    save_file(tensors, folder / "masks.safetensors", metadata=about)


def _write_maps(folder, method):
    rng = np.random.default_rng(7)
    yy, xx = np.mgrid[:24, :32] / np.array([24, 32]).reshape(2, 1, 1)
    spread = {"local_only": 0.25, "fedavg": 0.18}.get(method, 0.12)
    points = rng.uniform(0.2, 0.8, (3, 5, 2)).astype(np.float32)
    points[:, 4] = np.nan
    frames = np.stack([np.kron(rng.integers(60, 200, (6, 8, 3)), np.ones((20, 20, 1)))] * 3)

    def heat(sigma):
        maps = [
            sum(np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 2 / sigma**2) for x, y in p[:4])
            for p in points
        ]
        return np.stack([m / m.sum() for m in maps]).astype(np.float32)

    np.savez(
        folder / "maps.npz",
        frames=frames.astype(np.uint8),
        truth=heat(0.06),
        pred=heat(spread),
        points=points,
        person=np.array(["p1", "p2", "p3"]),
    )


def write_study(out, methods=METHODS, people=4, **options):
    """Write OUT: one run per method, priors with known values, the index."""
    out.mkdir(parents=True, exist_ok=True)
    for method in methods:
        write_run(out / method, method, people=people, **options)
    rows = [
        (prior, f"p{i + 1}", metric, v + 0.1 * i)
        for prior, v in (("uniform", 0.0), ("centre", 0.6), ("other_people", 3.4))
        for i in range(people)
        for metric in ("nss", "kld")
    ]
    _csv(out / "priors.csv", "prior,person,metric,value", rows)
    index = {
        "runs": [{"label": m, "method": m, "dir": m} for m in methods],
        "task": "gaze_map",
        "priors": "priors.csv",
        "headline": "nss",
        "lower_is_better": ["kld"],
    }
    (out / "index.json").write_text(json.dumps(index))
    return out


@pytest.fixture(scope="session")
def out(tmp_path_factory) -> Path:
    """An OUT directory with 3 methods x 2 seeds x 4 people."""
    return write_study(tmp_path_factory.mktemp("study") / "OUT")
