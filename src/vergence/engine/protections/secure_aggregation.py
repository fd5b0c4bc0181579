"""Secure sums in a run: a check of the number of people, and who learns what of their replies.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.core.stages import SMASHED
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BuiltInProtection
from vergence.engine.secure_sums import masked, server_deals, smallest, steered, sums_for
from vergence.errors import ConfigError
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.hooks import ProtectedRun, Statement
from vergence.privacy.secure_aggregation.packing import BITS
from vergence.privacy.secure_aggregation.pairwise import RING_STEPS, STEPS, colluders

SUBTRACT = "who subtract themselves"
"""Words that describe all other clients in a sum: together they can compute the last reply."""


class SecureSumProtection(BuiltInProtection):
    """The protection of `privacy.aggregation`: sums in which no single reply can be seen."""

    policy: SecureAggregationConfig
    forecasts = False

    def check(self, run: ProtectedRun) -> None:
        """Refuse a run in which sums would have too few people."""
        sums_for(self.plan, run.method, self.plan.silos.count(len(run.federation.clients)))

    def statements(self, run: ProtectedRun) -> list[Statement]:
        """State in reports who learns what from secure sums, and what collusion and dropouts do."""
        return [
            Statement("size", self._sizes(run)),
            *self._rows(run),
            *(Statement("server", text) for text in _trusted(self.plan, run)),
            *(Statement("residual", text) for text in _residual(self.plan, run.method)),
        ]

    def _sizes(self, run: ProtectedRun) -> str:
        """Return a line on the size of what clients send: MB for each kind of request."""
        policy, sums, method = self.policy, smallest(self.plan), run.method
        assert sums is not None
        trees, sizes = method.known_trees(method.server(run.task)), list[str]()
        for verb in method.exposure:
            # The size of smashed data depends on the batch.
            try:
                form = sums.form(method, verb, trees)
            except ConfigError:
                sizes.append(f"as much as a batch is [{verb}]")
                continue
            if form is not None and form.words:
                sizes.append(f"{8 * form.words / 1e6:.2f} MB [{verb}]")
        steps = len(STEPS if policy.colluders is None else RING_STEPS)
        how = f"{steps} messages" if policy.name == "pairwise" else "one message"
        halves = "" if policy.entry_bits == BITS else ", two entries in each,"
        return (
            f"up goes as whole numbers of {BITS} bits{halves} that mean nothing until they are "
            f"added up: {', '.join(sizes)}, in {how} with some kB of keys"
        )

    def _rows(self, run: ProtectedRun) -> list[Statement]:
        """Return rows of a report's closing table: who learns what, collusion, dropouts, ranges."""
        privacy, policy = self.plan.privacy, self.policy
        people = self.plan.silos.count(len(run.federation.clients))
        method, least = run.method, privacy.least
        pads = policy.name == "pairwise"
        shown = [tree for e in method.exposure.values() if e.reveal == "each" for tree in e.trees]
        unit, each = senders(self.plan)
        hidden = f"nothing of fewer than {least} {unit}: weights and metrics are in the sum"
        if shown:
            hidden += f"; but every single person's {', '.join(shown)}, which no sum hides"
        if masked(method, privacy):
            hidden += f"; of an entry that fewer than {least} share, only that it is so"
        if pads:
            others = "another client"
            few, of, twice = _fewest_colluders(people, least, policy.colluders)
            more = f"the server with {few} clients{of}; or all others in a sum, {SUBTRACT}"
            if people and privacy.bounded:
                more += (
                    f"; to see one {each}'s words, under the same noise, in two sums of a round: "
                    f"the server with {plural(twice, 'client')}"
                )
            if policy.colluders is not None:
                more += "; or the server alone, with a probability of 2^-40 in each sum"
            gone = _vanishing(policy)
        else:
            names = ", ".join(policy.aggregators)
            others = f"an aggregator ({names})"
            more = f"all of {names}; or all others in a sum, {SUBTRACT}"
            if server_deals(method, privacy):
                more += (
                    "; for how many share an entry, the server with one of them; for entries that "
                    f"one {each} alone shares, nobody: a server that lies can have them opened, as "
                    "it deals the tables (deployments want 3 aggregators, of whom one deals)"
                )
            elif masked(method, privacy):
                dealer = policy.aggregators[-1]
                more += f"; for how many share an entry, {dealer} with one of the others"
            gone = "who vanishes is left out; without one of the aggregators there is no sum"
        rows = [
            (
                "who runs or taps the server",
                f"{hidden}; who is in a sum; each {each}'s test metrics where the experiment "
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
        return [Statement("closing table", text, who) for who, text in rows]


def _vanishing(policy: SecureAggregationConfig) -> str:
    """Return the words of a report on clients that vanish from a sum under pads."""
    ring = policy.colluders is not None
    return (
        (
            f"up to {policy.dropouts:.0%} of those asked may vanish after the ring is drawn; if "
            "more do, or somebody before"
            if ring
            else "up to a third of those asked may vanish at any time; if more do"
        )
        + ", those who are left begin anew, and where one had helped to open the sum, or too few "
        "are left, the round counts as nobody's reply"
    )


def _assumed(method: Method) -> list[tuple[str, str]]:
    """Return a row of a report: what the protocol must assume of the server.

    The result is [] if it need not assume anything.
    """
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


def senders(plan: Plan) -> tuple[str, str]:
    """Return the nouns for those who contribute to a sum, plural and singular.

    They are labs if the plan has labs, else people.
    """
    return ("labs", "lab") if plan.silos else ("people", "person")


def _fewest_colluders(people: int, least: int, allowed: int | None = None) -> tuple[int, str, int]:
    """Return how few clients suffice to help a malicious server to see one reply.

    Args:
        people: number of clients; 0: unknown.
        least: smallest number of clients in a sum.
        allowed: number of clients against which a ring of neighbours protects; None: no ring.

    Returns:
        The number of clients that suffice; the words " of N" if the number N of all clients is
        known; and the number of clients that suffice to get the reply into two sums of a round.
    """
    of = f" of {people}" if people else ""
    few = colluders(people or 2 * least, least)
    few = few if allowed is None else min(few, allowed + 1)
    return few, of, max(2 * least - people, 1)


def _colluding(plan: Plan, run: ProtectedRun) -> list[str]:
    """State how many clients suffice to help a malicious server to see one reply."""
    people, least = plan.silos.count(len(run.federation.clients)), plan.privacy.least
    policy = plan.privacy.aggregation
    few, of, twice = _fewest_colluders(people, least, policy and policy.colluders)
    unit, alone = (
        ("lab", "one lab's sum of updates") if plan.silos else ("device", "one person's update")
    )
    noisy = bool(people and plan.privacy.bounded)
    text = (
        "The server may look at all that it receives, and may even lie, as long as fewer than "
        f"{min(few, twice) if noisy else few}{of} {unit}s secretly help it. With "
        f"{plural(few, unit)} it can see {alone}"
    )
    if noisy:
        text += (
            f"; with {plural(twice, unit)} it can have {alone} added up twice in one round, with "
            "the same noise, and two such sums tell more than one. The smaller number counts"
        )
    return [f"{text}."]


def _trusted(plan: Plan, run: ProtectedRun) -> list[str]:
    """State for what the server and the aggregators ("helpers") are trusted."""
    method = run.method
    if any(SMASHED in e.trees and e.reveal == "each" for e in method.exposure.values()):
        steering = (
            "It is trusted to send everybody what the method says: the sum of what devices "
            "learned hides a person only from a server that does. One that lies to all but "
            "one of them sees what that one learned."
        )
        return [steering] if steered(method) else []
    parties = ", ".join(plan.privacy.aggregators)
    helpers = [
        f"The helpers ({parties}) have different owners, follow the rules, and at least "
        "one of them keeps what it has to itself.",
        "Each helper is run by somebody else, and none by who runs the server.",
    ]
    texts = helpers if parties else _colluding(plan, run)
    if server_deals(method, plan.privacy):
        texts.append(
            "The server follows the rules as well: with two helpers alone it prepares how "
            f"they find out which numbers of the model too few {senders(plan)[0]} share."
        )
    return texts


def _residual(plan: Plan, method: Method) -> list[str]:
    """State what secure sums do not hide, such as differences of similar sums."""
    parties, texts = plan.privacy.aggregators, list[str]()
    unit, each = senders(plan)
    if parties and masked(method, plan.privacy):
        two = "the server and a helper" if len(parties) == 2 else "two of the helpers"
        texts.append(
            f"How many {unit} share each number of the model: {two} can find it out together."
        )
    if server_deals(method, plan.privacy):
        texts.append(
            f"Numbers of the model that one {each} alone shares: a server that breaks the "
            "rules can see them, unless there are three helpers. Deployments want three; "
            "with two this is for simulations."
        )
    return [*texts, f"Two sums over nearly the same {unit} differ by one {each}'s part."]
