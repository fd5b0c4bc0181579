"""Detection of runs in which nothing was learned, as no reply counted in any round."""

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
    """Advice of the command line on a run in which nothing was learned."""
    return f"they are kept in {folder}: mend this, and run it into another --out"


def refuse_unlearned(
    folders: Mapping[str, Path], plan: Plan, advice: Callable[[Path], str] = command_line_advice
) -> None:
    """Look for training that counted in the tables of finished methods.

    Args:
        folders: of the methods, by label.
        plan: of their run.
        advice: where the numbers in a folder are now, and what to do, in words.

    Raises:
        PartialRun: there is none of a method in one of its seeds; names both, and the reason that
            most of its replies were refused for.
    """
    found = [
        (f"{label}, seed {seed}", folder, why)
        for label, folder in folders.items()
        for seed, why in seeds_without_training(folder, plan).items()
    ]
    if found:
        where, folder, why = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PartialRun(
            f"{where}{more}: nobody's reply counted in any round ({why}): nothing was learned, and "
            f"its numbers are those of the untrained model; {advice(folder)}"
        )


def seeds_without_training(folder: Path, plan: Plan) -> dict[int, str]:
    """The seeds of one method in which no training of any round counted, and why not.

    Training is what took steps. Where nothing did in any round, all replies of the rounds are
    looked at, and those before and after where a method asks nobody in its rounds. A run of no
    rounds was to learn nothing.
    """
    if not plan.rounds:
        return {}
    turns, found = table(folder / "turns.csv"), {}
    for seed in plan.seeds:
        own, zeros = turns[turns.seed == seed], _zeroed_replies(folder / "state", seed)
        replies = zip(own.client, own["round"], own.status, strict=True)
        why = own.status.where(
            own.status != "ok", [zeros.get((c, at - 1), status) for c, at, status in replies]
        )
        during, stepped = own["round"].between(1, plan.rounds), own.steps != 0
        kinds = during & stepped, during & ~stepped, ~during
        trained, asked, beside = (Counter(why[kind]) for kind in kinds)
        if not (trained or asked or beside)["ok"]:
            found[seed] = _most(trained + asked or beside)
    return found


def _zeroed_replies(state: Path, seed: int) -> dict[tuple[str, int], str]:
    """Turns whose replies were replaced by zeros on this machine, and why."""
    path = state / FOLDER / covered_in(seed)
    try:
        rows = text_rows(path) if path.exists() else []
        return {(client, int(at)): why for client, at, why in rows}
    except ValueError as error:
        raise StateError(f"{path} is damaged ({error}): restore it") from None


def _most(statuses: Counter[str]) -> str:
    """The most frequent reason, and how frequent it is."""
    refused = Counter({status: n for status, n in statuses.items() if status != "ok"})
    if not refused:
        return "nobody was asked"
    reason, times = refused.most_common(1)[0]
    return f"{times} of {statuses.total()} replies: {reason.removeprefix('quarantined: ')}"
