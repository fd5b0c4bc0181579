"""`vergence explain` in Python: what leaves a client, what stays there, and who sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from vergence.api.finished_run import FinishedRun
from vergence.api.from_objects import experiment_from, plan_for
from vergence.core.federation import Dataset, Federation
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment, load
from vergence.privacy.config import Privacy
from vergence.reports.explain import explain as tell


def explain(
    what: Any,
    task: Task | None = None,
    people: Dataset | Federation | None = None,
    *,
    privacy: Privacy | Mapping[str, Any] | None = None,
    plan: Plan | None = None,
) -> None:
    """Print what leaves a client, what stays there, and who sees it.

    Args:
        what: a run, an experiment, an experiment file, or a method. A method needs `task` and
            `people`.
        task: the task on which the method trains.
        people: the people on whose data the method trains.
        privacy: protections for a method, as in `train`.
        plan: other settings for a method, as in `train`.

    Raises:
        ConfigError: `what` is something else, or a method without `task` or `people`.
    """
    if isinstance(what, FinishedRun):
        experiment = what.experiment
    elif isinstance(what, Experiment):
        experiment = what
    elif isinstance(what, str | Path):
        experiment = load(what)
    elif task is None or people is None:
        raise ConfigError(
            "explain takes a run, an experiment or its file; or a method, its task and its people, "
            "explain(FedAvg(), task, people)"
        )
    else:
        whole, length = plan_for(what, people, plan, privacy=privacy)
        experiment = replace(experiment_from(what, task, people, whole), default_length=length)
    tell(experiment, Console())
