"""Detection of runs in which nothing was learned, because no reply counted in any round.

Used by `deployment.server_run` and `experiment.run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import covered_in
from vergence.errors import PartialRun, StateError
from vergence.privacy.release_log import FOLDER
from vergence.results.read import table, text_rows


def command_line_advice(folder: Path) -> str:
    """Return advice for the command line on the run in `folder`, in which nothing was learned."""
    return f"they are kept in {folder}: mend this, and run it into another --out"


def refuse_unlearned(
    folders: Mapping[str, Path], plan: Plan, advice: Callable[[Path], str] = command_line_advice
) -> None:
    """Raise an error if no reply of clients counted for some method and seed.

    The method's model is then the untrained one.

    Args:
        folders: run directory of each method, by the method's label (name in tables).
        plan: the plan of their run.
        advice: function of the run directory; it returns a text on what to do.

    Raises:
        PartialRun: no training counted for a method and seed. The message names both, and the most
            frequent reason for which replies were refused.
    """
    failures = [
        (f"{label}, seed {seed}", folder, why)
        for label, folder in folders.items()
        for seed, why in seeds_without_training(folder, plan).items()
    ]
    if failures:
        where, folder, why = failures[0]
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise PartialRun(
            f"{where}{more}: nobody's reply counted in any round ({why}): nothing was learned, and "
            f"its numbers are those of the untrained model"
            f"{': look for NaN in a transform, the loss or a too large lr' * ('NaN' in why)}; "
            f"{advice(folder)}"
        )


def seeds_without_training(folder: Path, plan: Plan) -> dict[int, str]:
    """Return the seeds of one method for which no training counted, each with the reason.

    A client's reply after gradient steps counts as training. If no client made gradient steps, all
    replies during the rounds count as training. If there are no replies during the rounds either,
    the replies before the first and after the last round count as training.

    Args:
        folder: the method's run directory.
        plan: the plan of the run.
    """
    # A run of no rounds only measures the model that it starts from.
    if not plan.rounds:
        return {}
    turns, reasons = table(folder / "turns.csv"), {}
    for seed in plan.seeds:
        own, zeros = turns[turns.seed == seed], _zeroed_replies(folder / "state", seed)
        replies = zip(own.client, own["round"], own.status, strict=True)
        why = own.status.where(
            own.status != "ok", [zeros.get((c, at - 1), status) for c, at, status in replies]
        )
        during, stepped = own["round"].between(1, plan.rounds), own.steps != 0
        kinds = during & stepped, during & ~stepped, ~during
        training, other, outside = (Counter(why[kind]) for kind in kinds)
        if not (training or other or outside)["ok"]:
            reasons[seed] = _most(training + other or outside)
    return reasons


def _zeroed_replies(state: Path, seed: int) -> dict[tuple[str, int], str]:
    """Return the replies that zeros replaced on this machine: (client, round) and the reason.

    Args:
        state: the run's folder of states.
        seed: the seed.
    """
    # turns.csv has the status ok for them, as zeros were added up in their place.
    path = state / FOLDER / covered_in(seed)
    try:
        rows = text_rows(path) if path.exists() else []
        return {(client, int(at)): why for client, at, why in rows}
    except ValueError as error:
        raise StateError(f"{path} is damaged ({error}): restore it") from None


def _most(statuses: Counter[str]) -> str:
    """Return the most frequent reason for which replies were refused, with its count, as text."""
    refused = Counter({status: n for status, n in statuses.items() if status != "ok"})
    if not refused:
        return "nobody was asked"
    reason, times = refused.most_common(1)[0]
    return f"{times} of {statuses.total()} replies: {reason.removeprefix('quarantined: ')}"
