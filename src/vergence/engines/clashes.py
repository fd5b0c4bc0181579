"""What may not be combined in a run: every rule in one table.

A row names two things that do not go together, in words that `composition` knows, and says why.
"""

from __future__ import annotations

from typing import NamedTuple

from vergence.privacy.rule import WHOLE


class Clash(NamedTuple):
    """Two things that do not go together; `why` may name what a `Case` knows."""

    one: str
    other: str
    why: str


AMONG_SETTINGS = (
    Clash("Ray", "GPUs",
          'run: engine = "ray" trains on CPUs, not on device = "{plan.device}"; leave out one of '
          "them"),
    Clash("poison", "a lossy codec",
          "poison.attack = '{attack}' replaces updates, which wire.codec has packed already; leave "
          "out wire"),
    Clash("asynchronous delivery", "all replies lost",
          "delivery: '{delivery}' waits for replies, and presence.lost = 1 loses all of them; lose "
          "fewer"),
    Clash("asynchronous delivery", "a robust rule",
          "delivery: '{delivery}' takes replies as they arrive, one by one, and privacy.robust "
          "needs those of a round side by side; leave out one of them"),
    Clash("asynchronous delivery", "poison",
          "delivery: '{delivery}' takes replies as they arrive, one by one, and poison.attack "
          "needs those of a round side by side; leave out one of them"),
    Clash("asynchronous delivery", "pruning while training",
          "delivery: '{delivery}' has no rounds that people share, by which pruning could grow; "
          "leave out pruning, and prune afterwards with `vergence prune`"),
    Clash("secure sums", "a robust rule without groups",
          "privacy.aggregation: a robust rule looks at single replies; let it judge the sums of "
          "groups of k people (privacy.aggregation.groups = k), or leave out privacy.robust"),
    Clash("sums of groups", "no robust rule",
          "privacy.aggregation: groups are for a robust rule to judge; leave out groups, or set "
          "privacy.robust"),
    Clash("sums of groups", "bytes or Ray",
          "privacy.aggregation: sums of groups are simulated only; leave out run.engine = "
          '"{plan.engine}"'),
    Clash("sums of groups", "a rule with a root",
          "privacy.aggregation: a rule that trusts a root looks at that person's single update; "
          "take another rule"),
    Clash("secure sums", "poison",
          "privacy.aggregation: whoever poisons updates looks at single replies; leave out poison"),
    Clash("secure sums", "asynchronous delivery",
          "privacy.aggregation: by '{delivery}' replies arrive one by one, and each would be a sum "
          'of its own; use delivery.name = "all"'),
    Clash("secure sums", "a quorum that is too small",
          "privacy.aggregation: delivery.replies = {plan.delivery.replies} is fewer than the "
          "{least} that a sum needs"),
    Clash("secure sums", "a lossy codec",
          'privacy.aggregation: words of a sum travel as they are, not by wire.codec = "{codec}"'),
    Clash("secure sums", "a cohort that is too small",
          "privacy.aggregation: presence.cohort = {plan.presence.cohort} is fewer than the {least} "
          "people a sum needs"),
    Clash("DP for people", "asynchronous delivery",
          "privacy.user bounds what one person adds to a round's sum, and delivery '{delivery}' "
          "weighs updates by their age; use all, quorum or deadline"),
    Clash("DP for people", "a lossy codec",
          "privacy.user: wire.codec '{codec}' may make an update longer than its bound again; "
          "leave out the codec"),
    Clash("DP for people", "a robust rule",
          "privacy.user adds noise to a plain sum of bounded updates, and privacy.robust replaces "
          "updates or their sum; use one of the two"),
    Clash("DP for people", "liars",
          "privacy.user adds noise to a plain sum of bounded updates, and poison replaces updates "
          "or their sum; use one of the two"),
    Clash("noise of a tree", "secure sums",
          "privacy.user.turns: the server adds one tree of noise to the sums of rounds, and "
          "privacy.aggregation hides it from the server; leave out one of the two"),
    Clash("a defence at the cut", "Ray",
          "privacy.cut keeps its secret and books on this machine; leave out run.engine"),
    Clash("SplitGuard", "Ray",
          "privacy.split_guard keeps its secret and books on this machine; leave out run.engine"),
    Clash("a private choice of masks", "Ray",
          "privacy.mask keeps its secret and books on this machine; leave out run.engine"),
    Clash("a private choice of masks", "DP for people",
          "privacy.mask hides a person in the choice of a mask, and under privacy.user masks stay "
          "at home, where nobody sees them; leave out privacy.mask"),
    Clash("DP-SGD", "GPUs, Ray, other precisions, stacks",
          "privacy.solver trains clients one by one, on this machine's CPUs and in fp32; leave out "
          "run.{elsewhere}"),
)  # fmt: skip
"""What a plan refuses whatever its method is."""

WITH_METHODS = (
    Clash("sums of groups", "masks that differ",
          "privacy.aggregation: replies of {name} differ in which entries they share, and groups "
          "would show whose"),
    Clash("secure sums", "pooled data",
          "privacy.aggregation: {name} collects everybody's data, and nothing is summed"),
    Clash("secure sums", "a server that sees single updates",
          "privacy.aggregation: the server of {name} looks at every single reply to '{single}'"),
    Clash("pads without DP for people", "masks that differ",
          "privacy.aggregation: replies of {name} differ in which entries they share, and under "
          "pads the server would see entries that one person shares; use privacy.aggregation = "
          '{{ name = "additive" }}'),
    Clash("DP for people", "pooled data",
          "privacy.user bounds updates, and this method collects everybody's data"),
    Clash("DP for people", "single replies or samples on their way",
          "privacy.user hides people in sums, and '{unbounded}' shows every single reply; use "
          "privacy.solver, or another method"),
    Clash("DP for people", "weights of single entries",
          "privacy.user counts everybody once, and '{weighed}' weighs every entry by itself; use "
          "another method"),
    Clash("noise of a tree", "several sums a round",
          "privacy.user.turns is one tree of noise for one sum a round, and {name} shows {sums}; "
          "leave out turns, or use another method"),
    Clash("DP-SGD", "training samples used in other ways", "{unprotected}"),
    Clash("liars", "pooled data",
          "poison.attack = '{attack}' cannot change what {name} sends: everybody's data lies in "
          "one place, and nobody sends an update; poison training data instead (gaze_offset, "
          "noisy_data)"),
    Clash("liars", "split learning",
          "poison.attack = '{attack}' cannot change what {name} sends: its clients are served "
          "batch by batch, and no update of theirs is all they did; poison training data instead "
          "(gaze_offset, noisy_data)"),
    Clash("liars", "a server that sees single replies",
          "poison.attack = '{attack}' cannot change what {name} sends: its own server looks at "
          "every single reply to '{each}', which no sum replaces; poison training data instead "
          "(gaze_offset, noisy_data)"),
    Clash("a robust rule", "pooled data",
          "privacy.robust = '{rule}' cannot judge {name}: everybody's data lies in one place, and "
          "nobody sends an update"),
    Clash("a robust rule", "split learning",
          "privacy.robust = '{rule}' cannot judge {name}: its clients are served batch by batch, "
          "and no update of theirs is all they did"),
    Clash("a robust rule", "a server that sees single replies",
          "privacy.robust = '{rule}' cannot judge {name}: its own server looks at every single "
          "reply to '{each}', which no sum replaces"),
    Clash("a robust rule", "trees that belong together",
          "privacy.robust = '{rule}' cannot judge {name}: its updates of {trees} belong together, "
          "and clients keep what the server must add up in full"),
    Clash("a rule of whole updates", "masks that differ",
          f"privacy.robust = '{{rule}}' cannot judge {{name}}: the rule {WHOLE}"),
    Clash("a range of smashed data", "no client's smashed data",
          "privacy.output_range looks at every client's smashed data, and the server of '{module}' "
          "sees none; use split, splitfed, splitfed_v2 or splitfed_u"),
    Clash("a defence at the cut", "no cut",
          "privacy.cut stands where a network is cut, and '{module}' cuts none; use split, "
          "splitfed, splitfed_v2, splitfed_u or smashed_average"),
    Clash("a defence at the cut", "layers that learn in another way",
          "privacy.cut defends layers that learn from the gradient that comes back, and those of "
          "'{module}' do not; use split, splitfed, splitfed_v2, splitfed_u or smashed_average"),
    Clash("a defence that clients' layers learn", "layers that never learn",
          "privacy.cut = 'nopeek' is a part of what clients' layers learn, and those of '{module}' "
          "stay as they were drawn; use bottleneck or pixel_dp"),
    Clash("SplitGuard", "no answers to labels",
          "privacy.split_guard sends false labels and looks at the answers, and the server of "
          "'{module}' is sent no labels, or answers none; use split, splitfed or splitfed_v2"),
    Clash("a private choice of masks", "no masks that data choose",
          "privacy.mask is for masks that a person's data choose, and '{module}' has none; use "
          "fedcpf or fedselect"),
    Clash("a clock", "split learning",
          "{name} serves clients batch by batch, and the virtual clock knows whole turns only; "
          "leave out delivery"),
    Clash("asynchronous delivery", "rounds that cannot be taken apart",
          "{name} cannot be delivered by '{delivery}': {torn}"),
    Clash("pruning while training", "split learning",
          "{name} trains batch by batch, and only whole fits are pruned; leave out pruning, and "
          "prune afterwards with `vergence prune`"),
    Clash("GPUs, other precisions", "split learning",
          "{name} serves clients batch by batch, on the CPU and in fp32; leave out "
          "run.{elsewhere}"),
    Clash("a lossy codec", "split learning",
          "{name} serves clients batch by batch, on the CPU and in fp32; leave out wire, and set "
          "the method's `number`"),
)  # fmt: skip
"""What a plan refuses of some methods."""
