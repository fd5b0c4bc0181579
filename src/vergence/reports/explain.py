"""`vergence explain`: who learns what, derived from a method's exposure table and its states.

Used by `api.explanation`, `cli.runs` and `reports.ethics.facts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from vergence.core.federation import Federation
from vergence.core.masks import Mask
from vergence.core.method import Exposure, Method
from vergence.core.naming import plural
from vergence.core.params import Params
from vergence.core.serialization import array_bytes, pack
from vergence.core.tags import field_tags
from vergence.core.task import StartingModel, Task
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import protections
from vergence.errors import ConfigError, DataError
from vergence.experiment.privacy import register
from vergence.experiment.privacy.spent import forecast_lines, statements
from vergence.experiment.schema import Experiment
from vergence.experiment.starting_model import provenance_entry
from vergence.experiment.validation import validate
from vergence.privacy.config import Privacy
from vergence.privacy.hooks import Statement
from vergence.privacy.poisoning.data import DataPoison
from vergence.reports.downloads import downloads
from vergence.reports.ethics.subjects import subject
from vergence.reports.ethics.wording import UPDATES, compares, kinds
from vergence.reports.traffic import LAB_SHARES, TurnTraffic, carried, totals

WEIGHTS = {
    "number": "one number per person (how many samples)",
    "mask": "which entries each person shares (with weights = samples, how many samples too)",
    "per entry": "which entries each person shares, and how much each of them counts",
}
"""What a reply's weight reveals about a person."""
LAB_WEIGHTS = {
    "number": "one number per lab (how many samples)",
    "mask": "how many people of each lab share an entry (with weights = samples, how many samples)",
    "per entry": "how much each entry counts, added up over each lab's people",
}


OWN_PRIOR = (
    "own prior: everybody's predictions use where this person looked in training; it is computed "
    "on the person's machine and no message contains it, but test scores depend on it, and a "
    "person's exported model contains it (task.personal_prior = 0: none)"
)


def explain(experiment: Experiment, console: Console) -> None:
    """Print, for every method of an experiment, the flow of data and who learns what."""
    task, plan = experiment.task(experiment.plan.seeds[0]), experiment.plan
    # Data are read only where a budget is forecast from them: without protections an experiment
    # can be explained on a machine that has no data.
    foreseen = any(protection.forecasts for protection in protections(plan))
    loaded = validate(experiment) if foreseen else None
    people = None if loaded is None else loaded.ready
    data = people or samples(experiment)
    if (known := counted(experiment, data)) is not None:
        plan = plan.known(plan.silos.count(len(known.clients)))
    many = count_people(experiment, known)
    few, start, grouping = experiment.few_data, experiment.model.start, experiment.dataset.grouping
    lines = [
        f"trains {experiment.default_length or plan.length}",
        *([f"few data: {few.sentence()}"] if few else []),
        *([OWN_PRIOR] if task.own_prior else []),
        *([f"clients: {grouping}"] if grouping else []),
        *([start_sentence(start)] if start is not None else []),
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    if loaded is not None:
        for line in register.sentences(plan, lambda: loaded.raw):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if seeds := plan.split_seeds:
        text = f"splits: all of this once for each of {len(seeds)}; numbers below are of one split"
        console.print(text, markup=False, soft_wrap=True)
    for label, method in experiment.methods.items():
        console.rule(f"[bold]{label}")
        console.print((type(method).__doc__ or "").partition("\n")[0])
        sentences = statements(plan, method, task, known, many)
        seen = people.pooled() if people is not None and method.pooled else people
        forecast = [] if seen is None else forecast_lines(experiment.plan, method, task, seen)
        for line in _training_lines(experiment, method, task, plan):
            console.print(line, highlight=False, markup=False)
        for line in (*forecast, *(each.text for each in sentences if each.part == "size")):
            console.print(f"  {line}", highlight=False, markup=False)
        if experiment.poison is not None and experiment.poison.share:
            text = f"  POISONED on purpose: {poisoned(experiment)}"
            console.print(text, highlight=False, markup=False)
        console.print(learns(method, task, plan, sentences))
        console.print(crossing(carried(plan, method, task, data), bool(plan.silos)))


def _training_lines(experiment: Experiment, method: Method, task: Task, plan: Plan) -> list[str]:
    """Return lines on local training, the flow of data, the codec and the delivery."""
    wire, delivery = experiment.plan.wire, experiment.plan.delivery
    how = "in closed form, without steps" if method.closed_form else method.local.sentence
    rest = "; what was not sent yet stays with the client" if wire.feedback else ""
    # A sum of one reply hides nobody, also where the exposure table promises sums.
    alone = delivery.name == "fedasync" or (
        delivery.name in ("quorum", "fedbuff") and delivery.replies == 1
    )
    return [
        f"  local training: {how}",
        flow(method, task, plan.privacy, bool(plan.silos)),
        *(
            [f"  up goes by the codec {wire.codec}, smaller than written above{rest}"]
            if not (wire.lossless or method.pooled)
            else []
        ),
        *(
            ["  beware: with this delivery each sum is one person's update"]
            if alone and not method.pooled
            else []
        ),
    ]


def start_sentence(start: StartingModel) -> str:
    """Return what `explain` says of a model that was trained outside the run."""
    licence = provenance_entry(start)["start"].get("licence", "")
    binds = f"; licence of its training data, which binds this run too: {licence}" * bool(licence)
    return (
        f"start: the common model of {start.run} ({start.data}, "
        f"{plural(len(start.people), 'person')}, {start.sha[:12]}); what it learned of them no "
        f"guarantee below speaks of{binds}"
    )


def samples(experiment: Experiment) -> Federation | None:
    """Return the data if bytes depend on their amount; None if not, or if they are not here."""
    # Split learning sends something for every sample, other methods for every round.
    if not any(method.served for method in experiment.methods.values()):
        return None
    try:
        return validate(experiment).ready
    except (ConfigError, DataError):
        return None


def counted(experiment: Experiment, data: Federation | None) -> Federation | None:
    """Return the people if secure sums depend on their number; None if not, or if it is unknown."""
    privacy = experiment.plan.privacy
    policy = privacy.aggregation
    if policy is None or (policy.min_contributors is not None and not privacy.bounded):
        return None
    try:
        return data or experiment.federation()
    except (ConfigError, DataError):
        return None


def count_people(experiment: Experiment, known: Federation | None) -> int | None:
    """Return the number of people, where it is known without reading the package's data sets."""
    dataset = experiment.dataset
    people = getattr(dataset, "people", None)
    if known is None and isinstance(people, int):
        return people
    if known is None and not type(dataset).__module__.startswith("vergence.data."):
        # Somebody's own data set may raise anything where its files are not.
        with suppress(Exception):
            known = experiment.load_data()
    return None if known is None else len(known.clients)


def crossing(rows: Sequence[TurnTraffic], labs: bool = False) -> Table:
    """Return the table of all that is sent in a turn: bytes of a person or lab, and who sees it."""
    parties = any(row.aggregators for row in rows)
    last = ("aggregators",) if parties else ()
    table = Table("turn", "way", "what", "bytes", "server", "network (TLS)", "others", *last)
    for row in rows:
        size = "not known yet" if row.bytes is None else f"{row.bytes:,}"
        size = f"at most {size}" if row.most else size
        helpers = (row.aggregators or "nothing",) if parties else ()
        way = "up" if row.up else "down"
        table.add_row(row.verb, way, row.what, size, row.server, row.network, row.clients, *helpers)
    up, down = totals(rows)
    known = "" if all(row.bytes is not None for row in rows) else ", as far as they are known"
    who = "lab" if labs else "person"
    table.caption = f"one {who}, each turn once: {up:,} bytes up, {down:,} down{known}"
    return table


def poisoned(experiment: Experiment) -> str:
    """Describe an experiment's poisoning in words."""
    poison = experiment.poison
    assert poison is not None
    what = "the data they train on" if isinstance(poison, DataPoison) else "what they send"
    return f"{poison.share:.0%} of the people lie about {what} ({poison.attack})"


def flow(method: Method, task: Task, privacy: Privacy, labs: bool = False) -> str:
    """Draw what the server sends, what clients reply and what stays, with sizes."""
    server, client = method.server(task), method.client(task)
    offered = {name: f"{name} ({megabytes(p)})" for name, p in method.offer(server, "").items()}
    pooled = "  everybody's raw data ------> one data centre   (once, before training)"
    lines = [pooled] if method.pooled else []
    for verb, exposed in method.exposure.items():
        sent = list(offered) if exposed.down is None else exposed.down
        down = ", ".join(offered.get(name, name) for name in sent)
        lines += [
            f"  server --- {down or 'nothing'} ---> client        [{verb}]",
            f"  server <-- {upwards(exposed, server, method, task, privacy, labs)} --- client",
        ]
    rest = ", ".join(f"{name} ({megabytes(p)})" for name, p in method.server_part(server).items())
    stays = (
        f"  stays with the server: {rest}; in a deployment it goes to each client that is measured"
    )
    own = f"  stays with the client: raw data; {', '.join(state_contents(client)) or 'no state'}"
    return "\n".join([*lines, *([stays] if rest else []), own])


def upwards(
    exposed: Exposure, server: Any, method: Method, task: Task, privacy: Privacy, labs: bool
) -> str:
    """List the contents of a reply, with sizes."""
    # Under differential privacy metrics stay on the client: no noise is added to them.
    metrics = ["metrics"] if exposed.metrics and not privacy.differential else []
    if not exposed.trees:
        return "metrics (training loss)" if metrics else "nothing"
    offered = method.offer(server, "")
    sizes = [
        f"{t} update ({megabytes(offered[t])})"
        if t in offered and method.tree(t).kind in UPDATES
        else t
        for t in reply_contents(method, exposed, task)
    ]
    if privacy.bounded:
        return ", ".join(sizes)
    if exposed.weight != "number":
        weights = LAB_SHARES[exposed.weight] if labs else "mask when it changed"
        text = f"shared entries of {', '.join(sizes)} at most, {weights}"
        return ", ".join([text, *metrics])
    return ", ".join([*sizes, "weight", *metrics])


def reply_contents(method: Method, exposed: Exposure, task: Task) -> list[str]:
    """List the trees of a reply; public ones by the names of the task's public columns."""
    public = {t for t in exposed.trees if method.tree(t).kind == "public"}
    named = f"{', '.join(task.public)} (public)"
    return [named if t in public else t for t in exposed.trees if t not in public or task.public]


def _named(method: Method, exposed: Exposure, task: Task) -> list[str]:
    """List the trees of a reply, updates of parameters first and called updates."""
    trees = reply_contents(method, exposed, task)
    learned = [t for t in trees if not exposed.raw and method.tree(t).kind in UPDATES]
    updates = [f"{', '.join(learned)} updates"] if learned else []
    return [*updates, *(tree for tree in trees if tree not in learned)]


def state_contents(client: Any) -> list[str]:
    """List the parts of a client's state with their packed size in bytes."""
    return [
        f"{name} (later)" if size is None else f"{name} ({size:,} B)"
        for name, size in parts_of(client).items()
    ]


def parts_of(client: Any) -> dict[str, int | None]:
    """Return name -> packed bytes of the parts of a client's state; None: empty before a run."""
    sizes: dict[str, int] = {}
    for path, size in array_bytes(pack(client)).items():
        # Packed names are short tags; `field_tags` below leads from fields to them.
        part = path.split(".")[1]
        sizes[part] = sizes.get(part, 0) + size
    return {
        name: sizes.get(packed)
        for name, packed in field_tags(type(client))
        if packed in sizes or getattr(client, name) is None
    }


def megabytes(params: Params) -> str:
    """Return the size of a tree as it travels, uncompressed."""
    return f"{params.flat.numel() * params.flat.element_size() / 1e6:.2f} MB"


def learns(method: Method, task: Task, plan: Plan, statements: Sequence[Statement]) -> Table:
    """Return the table of parties and what each sees in a round, with what protects people."""
    table = Table("who", "learns")
    if method.pooled:
        table.add_row("data centre", "everything: raw recordings and labels of everybody")
        return table
    protected = [(each.who, each.text) for each in statements if each.part == "table"]
    of_others = _of_others(method, task, plan, statements)
    for who, text in (*_of_requests(method, task, plan), *protected, *of_others):
        table.add_row(who, text)
    return table


def _of_requests(method: Method, task: Task, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what the server learns from each request of a method: party and text."""
    privacy = plan.privacy
    weight_texts = LAB_WEIGHTS if plan.silos else WEIGHTS
    for verb, exposed in method.exposure.items():
        every = "every person's reply"
        if exposed.reveal != "each":
            judged = privacy.judged and exposed.trees
            every = f"what {privacy.judged} makes" if judged else "the weighted sum over people"
        trees = f"of {', '.join(_named(method, exposed, task)) or 'metrics only'}"
        summed = privacy.least and exposed.reveal != "each"
        weights = "of weights their sum" if summed else weight_texts[exposed.weight]
        if privacy.bounded or exposed.blind:
            weights = "everybody counts once"
        blind = "; worked out without data" if exposed.blind else ""
        empty = not (exposed.trees or (exposed.metrics and not privacy.differential))
        learned = "nothing" if empty else f"{every} {trees}; {weights}{blind}"
        yield f"server ({verb})", learned


def _of_others(
    method: Method, task: Task, plan: Plan, statements: Sequence[Statement]
) -> Iterator[tuple[str, str]]:
    """Yield what anybody else learns, and what nobody does: party and text."""
    privacy, labs = plan.privacy, bool(plan.silos)
    plain = any(e.trees for e in method.exposure.values())
    single = "every lab's sum of updates" if labs else "every single update"
    seen = f"{single}: aggregation here is plain, not secure" if plain else "metrics"
    sent = {kind for exposed in method.exposure.values() for kind in kinds(method, exposed)}
    columns = (*task.labels, *task.side_inputs) if "labels" in sent else ()
    compared = any(compares(method, exposed) for exposed in method.exposure.values())
    what = "pictures (from end)" if task.never_sent else "labels (from pull and end)"
    chosen = " and its models are chosen" if plan.early_stopping.restores else ""
    closing = [each for each in statements if each.part == "closing table"]
    rows = (
        (True, "another client", others(method, task)),
        (
            not privacy.least,
            "who runs or taps the server",
            f"{seen}; sizes and times of messages",
        ),
        *((True, each.who, each.text) for each in closing),
        (columns, "server", f"{', '.join(columns)} of every sample it is told of"),
        # What attackers of the literature can compute is said next to what they see.
        (
            "smashed" in sent,
            "beware",
            "pictures can be rebuilt from smashed data (see split_learning.md)",
        ),
        (
            compared,
            "beware",
            "single real samples can be worked out from gradients: made-up ones are compared with "
            "them",
        ),
        (
            "loss gradients" in sent,
            "server, by computing",
            f"{what}: not sent, but it averages end",
        ),
        (
            plan.early_stopping.patience,
            "who runs the server",
            f"every person's score on validation samples, by which the run ends{chosen}",
        ),
    )
    yield from ((who, text) for holds, who, text in rows if holds)
    *raw, labels = subject(task).raw
    secrets = [
        *raw,
        *([] if columns else [labels]),
        *([] if plan.early_stopping.patience else ["validation scores"]),
        *(["personal entries"] if personal(method.client(task)) else []),
    ]
    # In a simulation personal models lie side by side, in one folder.
    where = ", in a deployment" * method.stores_inputs(task)
    yield f"nobody else{where}", ", ".join(secrets)


def others(method: Method, task: Task) -> str:
    """Describe what every client gets, through which one client may learn about others."""
    common = downloads(method, task)
    if not common.trees:
        return "nothing"
    of = " of the client's group" if common.grouped else ""
    handed = ", as the client before left it" if common.handed else ""
    text = f"the server's {', '.join(common.trees)}{of}{handed}"
    if not common.server_part:
        return text
    return f"{text}; in a deployment, where it is measured, {', '.join(common.server_part)} too"


def personal(client: Any) -> bool:
    """Return whether a client's state holds masks or parameters of its own."""
    return any(isinstance(getattr(client, f.name), Params | Mask) for f in fields(client))
