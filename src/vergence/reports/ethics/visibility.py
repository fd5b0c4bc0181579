"""Visibility on the page for an ethics board: what each party of a plan sees.

Used by `reports.ethics.facts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vergence.core.method import Exposure
from vergence.reports.downloads import Downloads, downloads
from vergence.reports.ethics.wording import UPDATES, PrivacyMeans
from vergence.reports.traffic import named

ALONE = "the rest of each person's model stays on their device"


def sees(means: PrivacyMeans) -> list[tuple[str, str]]:
    """Return the parties and what each of them sees, in plain words."""
    # Every text follows from the method's exposure table and the plan: a new method that declares
    # what it sends needs no text of its own here.
    if means.method.pooled:
        return [("the data centre", "all recordings and labels of everybody")]
    found = downloads(means.method, means.task)
    helpers = (
        f"the helpers ({means.parties})",
        "who took part, and random numbers that say something only if all helpers put theirs "
        "together",
    )
    return [
        ("whoever runs the server", _server(means)),
        *([helpers] if means.parties else []),
        (
            "somebody on the network",
            "when messages are sent and how long they are; if lines were "
            "not encrypted, all that is sent",
        ),
        ("other participants", _others(means, found)),
        ("whoever gets the model", _model(means, found)),
        (
            "whoever holds a device",
            "everything on it: recordings, labels, "
            f"{'personal parts of the model' if found.shared else 'the whole model'}",
        ),
    ]


def _others(means: PrivacyMeans, downloads: Downloads) -> str:
    extra = "who else is in a sum" if means.least and not means.parties else ""
    if not downloads.trees:
        return f"{extra}; nothing else" if extra else "nothing"
    told = ", ".join(_known(means, downloads, tree) for tree in downloads.trees)
    if downloads.handed:
        told += ", as the person before left them"
    if downloads.server_part:
        rest = ", ".join(named(means.method, means.task, tree) for tree in downloads.server_part)
        told += f"; who is measured is sent the {rest} too"
        told += ", and has the whole model then" if downloads.whole else ""
    elif not downloads.whole:
        told += f"; {ALONE}"
    return f"{told}; and {extra}" if extra else told


def _known(means: PrivacyMeans, downloads: Downloads, tree: str) -> str:
    description = means.method.tree(tree)
    if description.whole:
        return f"the common {description.title}{' of their group' if downloads.grouped else ''}"
    return named(means.method, means.task, tree)


def _model(means: PrivacyMeans, downloads: Downloads) -> str:
    if not downloads.shared:
        return "nobody gets one: every person's model stays on their device"
    bound = (
        ", which tells about one person no more than is promised below"
        if means.plan.privacy.bounded
        else ", to study for as long as they like"
    )
    if downloads.whole:
        return f"the model{bound}"
    parts = ", ".join(named(means.method, means.task, tree) for tree in downloads.offered)
    return f"{parts} of the model{bound}; {ALONE}"


def _server(means: PrivacyMeans) -> str:
    if not means.sends:
        of = ", in the mean of its people" if means.plan.silos else ""
        return (
            f"measurements (how well the model works for each {means.sender}{of}); nothing learned"
        )
    if "smashed" in means.kinds:
        labels = (
            f"; {', '.join(means.task.labels)} of every picture" if "labels" in means.kinds else ""
        )
        layers = f"the sum over {means.least} people or more" if means.least else "the update"
        sent = _of_kind(means, means.method.exposure.values(), UPDATES)
        return (
            f"for every picture, what the first layers of the model make of it{labels}"
            f"{f'; {layers} of the layers on each device' if sent else ''}"
        )
    if "answers" in means.kinds:
        toward = ", and which way single real ones lie" if means.compared else ""
        return f"what the model on each device says of samples that the server made up{toward}"
    # The things seen person by person, or lab by lab: updates, whole models, numbers.
    updates = _of_kind(means, means.seen, UPDATES)
    found = [f"update{_parts(means, means.seen)}{_counted(means)}"] if updates else []
    values = _of_kind(means, means.seen, {"values"})
    counted = "" if updates else _counted(means)
    found += [f"{named(means.method, means.task, tree)}{counted}" for tree in values]
    single = [*found, *_raw(means, means.seen), *([means.numbers] if means.numbers else [])]
    if means.least:
        hidden = [e for e in means.method.exposure.values() if e.reveal != "each"]
        many = f"{means.least} {'labs' if means.plan.silos else 'people'} or more"
        learned = f"the sum of what {many} learned{_parts(means, hidden)}"
        told = [learned] if _of_kind(means, hidden, UPDATES) else []
        trees = [named(means.method, means.task, t) for t in _of_kind(means, hidden, {"values"})]
        told += [f"the sum over {many} of {what}" for what in (*trees, *_raw(means, hidden))]
        seen = f"who took part, and {'; '.join(told)}"
        return f"{seen}; and of every single person: {'; '.join(single)}" if single else seen
    whose = "of each lab, added up over its people:" if means.plan.silos else "each person's"
    return f"{whose} {'; '.join(single)}"


def _raw(means: PrivacyMeans, exposed: Iterable[Exposure]) -> list[str]:
    """Return the parts of replies that are made from single samples, by names for readers."""
    trees = dict.fromkeys(tree for e in exposed if e.raw for tree in e.trees)
    told = f"{', '.join((*means.task.labels, *means.task.side_inputs))} of every picture"
    return [
        told
        if means.method.tree(tree).kind == "labels"
        else named(means.method, means.task, tree, True)
        for tree in trees
    ]


def _of_kind(means: PrivacyMeans, exposed: Iterable[Exposure], kinds: Collection[str]) -> list[str]:
    """Return the trees of some kinds in replies that are not made from single samples."""
    trees = dict.fromkeys(tree for e in exposed if not e.raw for tree in e.trees)
    return [tree for tree in trees if means.method.tree(tree).kind in kinds]


def _parts(means: PrivacyMeans, exposed: Iterable[Exposure]) -> str:
    """Return the names of the parts that are updated, "" if it is the whole model."""
    trees = [(tree, means.method.tree(tree)) for tree in _of_kind(means, exposed, UPDATES)]
    if any(told.whole or told.kind == "groups" for _, told in trees):
        return ""
    told = ", ".join(named(means.method, means.task, tree) for tree, _ in trees)
    return f" of {told}" if told else ""


def _counted(means: PrivacyMeans) -> str:
    """Return the text on the weights that go with every update, "" where they are hidden."""
    # With user-level privacy everybody counts once; in secure sums weights are summed too.
    if means.plan.privacy.bounded or means.least:
        return ""
    kinds = {e.weight for e in means.seen if e.trees}
    if means.plan.silos:
        told = ", and how many recordings they have"
        told += ", and how many share each number of the model" if kinds - {"number"} else ""
    else:
        told = ", and how many recordings each has"
        told += ", and which numbers of the model each shares" if kinds - {"number"} else ""
    return told + (", and how much each of these counts" if "per entry" in kinds else "")
