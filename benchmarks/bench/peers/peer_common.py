"""Loads the benchmark's plain files by their path: a peer's environment holds no vergence."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

torch.set_num_threads(1)


def load(name: str) -> ModuleType:
    """Load a file of the benchmark as a module of its own."""
    path = Path(__file__).parent.parent / f"{name}.py"
    found = importlib.util.spec_from_file_location(f"vergence_bench_{name}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


plain = load("plain")


def job() -> Any:
    """Return the job; processes share the memory of its rows."""
    return plain.Job.load(Path(os.environ["VERGENCE_BENCH_JOB"]), mapped=True)


def gate() -> Any:
    """Return the gate to the clock."""
    return load("gate").Gate()


def final(work: Any, module: torch.nn.Module, steps: int) -> dict[str, float]:
    """Return what a peer tells at its end."""
    flat = torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])
    return {"loss": work.cost(module), "norm": float(flat.norm()), "steps": steps}


class CountedSgd(torch.optim.SGD):
    """SGD that counts the steps of all its instances."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        CountedSgd.steps += 1
        return super().step(closure)
