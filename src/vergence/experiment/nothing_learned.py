"""Detection of runs in which nothing was learned, as no reply counted in any round.

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
    """Return the command line's advice on a run in which nothing was learned."""
    return f"they are kept in {folder}: mend this, and run it into another --out"


def refuse_unlearned(
    folders: Mapping[str, Path], plan: Plan, advice: Callable[[Path], str] = command_line_advice
) -> None:
    """Refuse finished methods in which no reply counted, as their model is the untrained one.

    Args:
        folders: the methods' run directories, by label.
        plan: the plan of their run.
        advice: folder -> text on where its numbers are, and what to do.

    Raises:
        PartialRun: no training of a method and seed counted; the message names both, and the
            reason for which most of its replies were refused.
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
            f"its numbers are those of the untrained model; {advice(folder)}"
        )


def seeds_without_training(folder: Path, plan: Plan) -> dict[int, str]:
    """Return the seeds of one method in which no training counted, each with the reason.

    A turn with gradient steps counts as training. Without such turns, all replies in the rounds
    count, or, for a method that asks nobody during its rounds, the replies before and after them.
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
    """Return the turns whose replies were replaced by zeros on this machine, with the reason."""
    # turns.csv has the status ok for them, as zeros were added up in their place.
    path = state / FOLDER / covered_in(seed)
    try:
        rows = text_rows(path) if path.exists() else []
        return {(client, int(at)): why for client, at, why in rows}
    except ValueError as error:
        raise StateError(f"{path} is damaged ({error}): restore it") from None


def _most(statuses: Counter[str]) -> str:
    """Return the most frequent reason in words, with its count."""
    refused = Counter({status: n for status, n in statuses.items() if status != "ok"})
    if not refused:
        return "nobody was asked"
    reason, times = refused.most_common(1)[0]
    return f"{times} of {statuses.total()} replies: {reason.removeprefix('quarantined: ')}"
