"""More rounds for a finished run; results are equal to those of a run planned with all rounds.

Used by `api.train`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vergence.core.files import JsonObject
from vergence.engine.plan import Plan
from vergence.engine.storage.more_rounds import prepare
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import ConfigError, StateError
from vergence.experiment import checksums
from vergence.experiment import provenance as stamp
from vergence.experiment.run import check_run_stamp, folders_of, locked, run_stamp
from vergence.experiment.schema import Experiment
from vergence.experiment.trust import trust_with_code, under
from vergence.experiment.validation import validate
from vergence.results import write as results
from vergence.results.run_files import read_config


def raise_rounds(experiment: Experiment, out: Path) -> None:
    """Raise the planned rounds of a finished run to those of an experiment, if these are more.

    The run's checkpoints are changed so that it can be resumed after its last round. The run's
    results are deleted; they are written again when the resumed run ends.

    Args:
        experiment: the experiment, which may have more rounds than the run.
        out: folder of the run.

    Raises:
        ConfigError: the results would differ from those of a run planned with so many rounds.
        StateError: the run is not finished, or is one of another experiment.
    """
    rounds = read_config(out / "config.toml").get("run", {}).get("rounds", Plan.rounds)
    if not isinstance(rounds, int) or rounds >= experiment.plan.rounds:
        return
    folders = folders_of(experiment, out)
    stopped = any(_manifest(folder).get("stopped") for folder in folders.values())
    refuse_more_rounds(experiment, rounds, stopped)
    table = {**experiment.table, "run": {**experiment.table.get("run", {}), "rounds": rounds}}
    before = replace(experiment, table=table, plan=replace(experiment.plan, rounds=rounds))
    with locked(out), under(trust_with_code(experiment.code)):
        stamp.check_settings(out, table)
        loaded = validate(experiment)
        stamps = {
            label: run_stamp(experiment, experiment.method_config(label), loaded)
            for label in folders
        }
        # An interrupted call has prepared some of the folders, which are not as the run was.
        if not any(
            _manifest(each).get("stamp") == stamps[label] for label, each in folders.items()
        ):
            if not all((folder / "results.json").exists() for folder in folders.values()):
                raise StateError(
                    f"{out} is not finished: go on with it as it was planned, with {rounds} "
                    "rounds, and raise them then"
                )
            check_run_stamp(before, loaded, out)
        for label, folder in folders.items():
            checksums.unseal(folder)
            plan = experiment.plan
            restores = plan.early_stopping.restores
            prepare(folder, stamps[label], bool(plan.points_in(rounds - 1)), restores)
            (folder / "results.json").unlink(missing_ok=True)
        if experiment.several:
            checksums.unseal(out)
            stamp.write(out, run_stamp(experiment, experiment.table, loaded))
        # Last: while the config names fewer rounds, an interrupted call can be made again.
        results.write_toml(out / "config.toml", experiment.table, experiment.remarks)


def _manifest(folder: Path) -> JsonObject:
    """Return the checkpoint manifest of a method's run; empty if the method has not begun."""
    begun = (folder / "state" / "checkpoint.json").exists()
    return read_manifest(folder) if begun else {}


def refuse_more_rounds(experiment: Experiment, rounds: int, stopped: bool) -> None:
    """Refuse more rounds for a run with settings that depend on their number.

    Args:
        experiment: the experiment with more rounds.
        rounds: number of rounds of the run.
        stopped: whether the run ended before its last round.

    Raises:
        ConfigError: there is such a setting; the message names it.
    """
    plan, local = experiment.plan, [method.local for method in experiment.methods.values()]
    names = [getattr(each.schedule, "__name__", each.schedule) for each in local]
    schedules = {str(name) for name in names} - {"constant"}
    reasons = (
        (
            plan.privacy.spends or plan.privacy.cut,
            f"the noise of [privacy] was chosen for {rounds} rounds",
        ),
        (
            plan.early_stopping.patience and stopped,
            "early_stopping ended it, however many rounds are planned",
        ),
        (
            plan.early_stopping.restores and not plan.evaluates(rounds),
            f"early_stopping has compared the models of round {rounds}, which is no evaluation of "
            f"a longer run (run.evaluate_every = {plan.evaluate_every})",
        ),
        (schedules, f"local.schedule = '{min(schedules, default='')}' depends on their number"),
    )
    for applies, why in reasons:
        if applies:
            raise ConfigError(
                f"this run's {rounds} rounds cannot become {plan.rounds}: {why}; start a new run"
            )
