"""Federated, personalised gaze models: trained across people without collecting their data.

Examples:
    >>> import vergence as vg
    >>> people = vg.data.OSIE()
    >>> task = vg.tasks.GazeMap(vg.models.GLCFeatures(grid=(30, 40)), criterion="kl")
    >>> run = vg.train(vg.methods.FedCPF(), task, people, rounds=8)  # doctest: +SKIP
    >>> run.scores  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import version

    from vergence import attacks, data, methods, metrics, models, privacy, tasks
    from vergence.api.comparison import Comparison, compare
    from vergence.api.explanation import explain
    from vergence.api.finished_run import FinishedRun as Run
    from vergence.api.recipe import recipe
    from vergence.api.task_from import task_from
    from vergence.api.train import load_experiment, open_run, run_experiment, train, train_all
    from vergence.core.aggregation import Aggregate
    from vergence.core.client import ClientContext
    from vergence.core.conversation import Conversation, aggregate, collect, compute, fit
    from vergence.core.data import Samples, SharedRows, Splits
    from vergence.core.federation import Dataset, Federation
    from vergence.core.identifiers import ClientId
    from vergence.core.layers.batch_norm import (
        average_batch_norm,
        freeze_batch_norm,
        personalize_batch_norm,
    )
    from vergence.core.layers.group_norm import group_norm
    from vergence.core.layers.kernel_head import KernelHead
    from vergence.core.local_training import LocalTraining, OptimizerState
    from vergence.core.masks import Mask
    from vergence.core.messages import Message, Reply, reply
    from vergence.core.method import Exposure, Global, Layers, Method, NoState, Tree
    from vergence.core.objectives import Objective
    from vergence.core.options import Share
    from vergence.core.params import Params
    from vergence.core.task import Model, Task
    from vergence.engine.early_stopping import EarlyStopping
    from vergence.engine.participation import Participation
    from vergence.engine.plan import Plan
    from vergence.errors import (
        BuiltInPython,
        ConfigError,
        DataError,
        PartialRun,
        StateError,
        UntrustedCode,
        VergenceError,
    )
    from vergence.experiment.run import RoundReport
    from vergence.experiment.schema import Experiment
    from vergence.privacy.config import Privacy

    __version__ = version("vergence")

_HOMES = {
    "Aggregate": "core.aggregation",
    "BuiltInPython": "errors",
    "ClientContext": "core.client:ClientContext",
    "ClientId": "core.identifiers",
    "Comparison": "api.comparison",
    "ConfigError": "errors",
    "Conversation": "core.conversation",
    "DataError": "errors",
    "Dataset": "core.federation",
    "EarlyStopping": "engine.early_stopping",
    "Experiment": "experiment.schema",
    "Exposure": "core.method:Exposure",
    "Federation": "core.federation",
    "Global": "core.method",
    "KernelHead": "core.layers.kernel_head:KernelHead",
    "Layers": "core.method",
    "LocalTraining": "core.local_training:LocalTraining",
    "Objective": "core.objectives:Objective",
    "Mask": "core.masks",
    "Message": "core.messages",
    "Method": "core.method",
    "Model": "core.task",
    "NoState": "core.method:NoState",
    "OptimizerState": "core.local_training:OptimizerState",
    "Params": "core.params",
    "PartialRun": "errors",
    "Participation": "engine.participation:Participation",
    "Plan": "engine.plan",
    "Privacy": "privacy.config",
    "Reply": "core.messages",
    "RoundReport": "experiment.run",
    "Run": "api.finished_run:FinishedRun",
    "Samples": "core.data",
    "Share": "core.options",
    "SharedRows": "core.data:SharedRows",
    "Splits": "core.data",
    "StateError": "errors",
    "Task": "core.task",
    "Tree": "core.method:Tree",
    "UntrustedCode": "errors",
    "VergenceError": "errors",
    "aggregate": "core.conversation",
    "average_batch_norm": "core.layers.batch_norm",
    "collect": "core.conversation",
    "compare": "api.comparison",
    "compute": "core.conversation",
    "explain": "api.explanation",
    "fit": "core.conversation",
    "freeze_batch_norm": "core.layers.batch_norm",
    "group_norm": "core.layers.group_norm:group_norm",
    "load_experiment": "api.train",
    "open_run": "api.train",
    "personalize_batch_norm": "core.layers.batch_norm",
    "recipe": "api.recipe:recipe",
    "reply": "core.messages",
    "run_experiment": "api.train",
    "task_from": "api.task_from",
    "train": "api.train",
    "train_all": "api.train",
}
_PACKAGES = ("attacks", "data", "methods", "metrics", "models", "privacy", "tasks")

__all__ = [
    "Aggregate",
    "BuiltInPython",
    "ClientContext",
    "ClientId",
    "Comparison",
    "ConfigError",
    "Conversation",
    "DataError",
    "Dataset",
    "EarlyStopping",
    "Experiment",
    "Exposure",
    "Federation",
    "Global",
    "KernelHead",
    "Layers",
    "LocalTraining",
    "Mask",
    "Message",
    "Method",
    "Model",
    "NoState",
    "Objective",
    "OptimizerState",
    "Params",
    "PartialRun",
    "Participation",
    "Plan",
    "Privacy",
    "Reply",
    "RoundReport",
    "Run",
    "Samples",
    "Share",
    "SharedRows",
    "Splits",
    "StateError",
    "Task",
    "Tree",
    "UntrustedCode",
    "VergenceError",
    "__version__",
    "aggregate",
    "attacks",
    "average_batch_norm",
    "collect",
    "compare",
    "compute",
    "data",
    "explain",
    "fit",
    "freeze_batch_norm",
    "group_norm",
    "load_experiment",
    "methods",
    "metrics",
    "models",
    "open_run",
    "personalize_batch_norm",
    "privacy",
    "recipe",
    "reply",
    "run_experiment",
    "task_from",
    "tasks",
    "train",
    "train_all",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `vergence --help` need not wait."""
    if name == "__version__":
        return import_module("importlib.metadata").version("vergence")
    if name in _PACKAGES:
        return import_module(f"vergence.{name}")
    if name not in _HOMES:
        from vergence.errors import meant

        near = "" if name.startswith("_") else meant(name, __all__)
        raise AttributeError(f"module 'vergence' has no attribute '{name}'{near}", name=name)
    module, _, attribute = _HOMES[name].partition(":")
    found = getattr(import_module(f"vergence.{module}"), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
