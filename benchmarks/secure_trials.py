"""Secure sums of whole updates while people vanish: exact, or aborted, and never anything else.

python -m benchmarks.secure_trials [--trials 500] [--clients 14] [--words 1827000]: before random
steps random people vanish, seldom an aggregator. Every sum is compared with the plain sum of the
quantised rows, word by word. Prints a Markdown table of how many ended how; stops at a wrong one.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from rich.progress import track

from benchmarks.common.options import options
from benchmarks.secure_aggregation import LEAST, on_shares, replies, under_pads
from vergence.privacy.secure_aggregation.session import Aborted

CLIENT_STEPS = 5
"""Of a sum under pads: keys, shares, masked words, who is in, what unmasks."""


def enough_for_pads(names: list[str], gone: Mapping[str, int]) -> bool:
    threshold = 2 * len(names) // 3 + 1
    there = [sum(gone.get(name, 9) > step for name in names) for step in range(CLIENT_STEPS)]
    return min(there[:3]) >= max(threshold, LEAST) and min(there[3:]) >= threshold


def enough_on_shares(names: list[str], gone: Mapping[str, int]) -> bool:
    """Clients are asked once, in the second step; an aggregator is needed to the end."""
    parts = sum(gone.get(name, 9) > 1 for name in names)
    return parts >= LEAST and not any(name.startswith("aggregator") for name in gone)


def main() -> None:
    given = options(__doc__, trials=500, clients=14, words=1_827_000)
    torch.set_num_threads(1)
    plain, masked, twofold = (
        replies(given.clients, given.words, False),
        replies(given.clients, given.words, True),
        replies(given.clients, given.words, False, ("model", "control")),
    )
    kinds = {
        "FedAvg, FedAdam: pads": (under_pads, plain, 0),
        "SCAFFOLD: pads": (under_pads, twofold, 0),
        "FedAvg, FedAdam: shares": (on_shares, plain, 1),
        "SCAFFOLD: shares": (on_shares, twofold, 1),
        "FedCPF: shares with a threshold": (on_shares, masked, 1),
    }
    rng, found = np.random.default_rng(0), defaultdict[str, Counter](Counter)
    for trial in track(range(given.trials), "sums"):
        kind = list(kinds)[trial % len(kinds)]
        hold, (form, sealed), shared = kinds[kind]
        names = list(sealed)
        share = rng.choice([0, 0.1, 0.2, 0.4, 0.9])
        gone = {name: int(rng.integers(CLIENT_STEPS)) for name in names if rng.random() < share}
        more = ()
        if shared:
            many = int(rng.integers(2, 5))
            more = (many, form.counted)
            if rng.random() < 0.2:
                gone[f"aggregator {rng.integers(many)}"] = int(rng.integers(3))
        enough = (enough_on_shares if shared else enough_for_pads)(names, gone)
        try:
            hold(form, sealed, *more, gone)
            ended = "exact"
        except Aborted:
            ended = "aborted"
        assert enough == (ended == "exact"), f"{kind}: {ended}, with {gone} gone"
        found[kind][ended] += 1
        found[kind]["with people gone"] += ended == "exact" and bool(gone)
    print("| sum | exact | of them with people gone | too few there: aborted |")
    print("|---|---|---|---|")
    for kind, came in found.items():
        print(f"| {kind} | {came['exact']} | {came['with people gone']} | {came['aborted']} |")


if __name__ == "__main__":
    main()
