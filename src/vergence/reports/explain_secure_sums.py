"""Explanation of secure sums: lines on what they change in who learns what."""

from __future__ import annotations

from vergence.core.method import Method
from vergence.core.task import Task
from vergence.engine.secure_sums import SecureSum, masked, server_deals, steered
from vergence.errors import ConfigError
from vergence.privacy.config import Privacy
from vergence.privacy.secure_aggregation.packing import BITS
from vergence.privacy.secure_aggregation.pairwise import STEPS, colluders


def sizes(method: Method, task: Task, privacy: Privacy) -> str:
    """Line on the size of what goes up, to stand below the flow of data."""
    policy, user = privacy.aggregation, privacy.user
    assert policy is not None
    policy = policy.among(0)
    sums = SecureSum(policy, 2 * policy.threshold, user.level() if user else None)
    offered, told = method.offer(method.server(task), ""), []
    for verb in method.exposure:
        try:
            form = sums.form(method, verb, offered)
        except ConfigError:  # how much it is, only the run knows
            told.append(f"as much as a batch is [{verb}]")
            continue
        if form is not None and form.words:
            told.append(f"{8 * form.words / 1e6:.2f} MB [{verb}]")
    how = f"{len(STEPS)} messages" if policy.name == "pairwise" else "one message"
    held = "" if policy.entry_bits == BITS else ", two entries in each,"
    return (
        f"  up goes as whole numbers of {BITS} bits{held} that tell nothing alone: "
        f"{', '.join(told)}, in {how} with some kB of keys"
    )


def rows(method: Method, privacy: Privacy, people: int | None = None) -> list[tuple[str, str]]:
    """Rows on who learns what of sums, who must collude for more, and what a dropout costs."""
    policy = privacy.aggregation
    assert policy is not None
    least = policy.among(0).threshold
    pads = policy.name == "pairwise"
    shown = [tree for e in method.exposure.values() if e.reveal == "each" for tree in e.trees]
    hidden = f"nothing of fewer than {least} people: weights and metrics are in the sum"
    if shown:
        hidden += f"; but every single person's {', '.join(shown)}, which no sum hides"
    if masked(method, privacy):
        hidden += f"; of an entry that fewer than {least} share, only that it is so"
    if pads:
        others = "another client"
        few = f"{colluders(people or 2 * least, least)} clients{f' of {people}' if people else ''}"
        more = f"the server with {few}; or all others in a sum, who subtract themselves"
        if people and privacy.user is not None:
            twice = max(2 * least - people, 1)
            more += (
                f"; to see one person's words, under the same noise, in two sums of a round: the "
                f"server with {twice} client{'s' if twice > 1 else ''}"
            )
        gone = (
            "up to a third of those asked may vanish at any time; if more do, those who are left "
            "begin anew, and where one had helped to open the sum, or too few are left, the round "
            "counts as nobody's reply"
        )
    else:
        names = ", ".join(policy.aggregators)
        others = f"an aggregator ({names})"
        more = f"all of {names}; or all others in a sum, who subtract themselves"
        if server_deals(method, privacy):
            more += (
                "; for how many share an entry, the server with one of them; for entries that one "
                "person alone shares, nobody: a server that lies can have them opened, as it deals "
                "the tables (deployments want 3 aggregators, of whom one deals)"
            )
        elif masked(method, privacy):
            dealer = policy.aggregators[-1]
            more += f"; for how many share an entry, {dealer} with one of the others"
        gone = "who vanishes is left out; without one of the aggregators there is no sum"
    return [
        (
            "who runs or taps the server",
            f"{hidden}; who is in a sum; each person's test metrics where the experiment "
            "evaluates; sizes and times of messages",
        ),
        (f"{others}, of sums", "who is in a sum"),
        ("to see one reply", f"must collude: {more}"),
        *_assumed(method),
        ("if somebody vanishes", gone),
        (
            "out of range",
            f"updates above range = {policy.range:g} and weights above weight = "
            f"{policy.weight:g} are refused, by name alone; nothing is clipped",
        ),
        ("beware", "a sum is still a model: it tells about people what models tell"),
    ]


def _assumed(method: Method) -> list[tuple[str, str]]:
    """Row on what the sums of a method assume of the server beside the protocol."""
    if not (sent := steered(method)):
        return []
    summed = dict.fromkeys(
        t for e in method.exposure.values() if e.reveal != "each" for t in e.trees
    )
    return [
        (
            "assumed",
            f"the server sends everybody {', '.join(sent)} as the method says: the sum of "
            f"{', '.join(summed)} hides a person only from a server that does. One that lies needs "
            "nobody's help: people whose gradients are zero, or whose layers learn nothing, add "
            "nothing to the sum, and it is one person's",
        )
    ]
