"""Federated, personalised gaze models: trained across people without collecting their data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vergence.app.config import load
    from vergence.app.run import start as run
    from vergence.core.conversation import aggregate, collect, compute, fit
    from vergence.core.mask import Mask
    from vergence.core.method import Method
    from vergence.core.params import Params
    from vergence.core.task import Task
    from vergence.core.wire import reply

_HOMES = {
    "load": "app.config",
    "run": "app.run:start",
    "aggregate": "core.conversation",
    "collect": "core.conversation",
    "compute": "core.conversation",
    "fit": "core.conversation",
    "Mask": "core.mask",
    "Method": "core.method",
    "Params": "core.params",
    "Task": "core.task",
    "reply": "core.wire",
}

__all__ = [
    "Mask",
    "Method",
    "Params",
    "Task",
    "aggregate",
    "collect",
    "compute",
    "fit",
    "load",
    "reply",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `vergence --help` need not wait."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vergence' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(f"vergence.{module}"), attribute or name)
