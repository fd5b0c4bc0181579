"""What secure sums cost: CPU seconds at clients, server and aggregators, and bytes.

python -m benchmarks.secure_aggregation [--clients 14] [--words 1827000] [--repeats 3]
[--cipher aes-256-ctr] [--only WORDS]: prints a Markdown table, of rows whose name holds WORDS. On
a ring a tenth of the clients may collude.
Updates are random normal numbers, masks keep a fifth of the entries. Seconds are of one thread, the
least of the repeats; those of a client are the mean over clients and hold quantising, those of a
server hold reading the sum. Bytes are those of all messages of a client, beside those of its update
as float32.
"""

import platform
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from benchmarks.common.options import options
from vergence.core.aggregation import add_up
from vergence.core.masks import Mask
from vergence.core.messages import SealedReply, reply, seal
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.privacy.secure_aggregation.additive import Aggregator, Contributor
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.masking import PAD_CIPHERS, PadCipher
from vergence.privacy.secure_aggregation.packing import BITS, withheld
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient, PairwiseServer, converse
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams
from vergence.privacy.secure_aggregation.relay import Coordinator
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout, ValueLimits
from vergence.privacy.secure_aggregation.session import UsedContributions, signing_pair

LEAST = 3
AES = PAD_CIPHERS[0]


def size(message: Any) -> int:
    """Return the bytes a message holds, names and numbers aside."""
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, Mapping):
        return sum(size(value) for value in message.values())
    if isinstance(message, tuple):
        return sum(size(value) for value in message)
    if hasattr(message, "__dataclass_fields__"):
        return sum(size(getattr(message, f.name)) for f in fields(message))
    return 0


class Clock:
    """Adds up CPU seconds and bytes by who spent them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.up: dict[str, int] = defaultdict(int)
        self.down: dict[str, int] = defaultdict(int)

    def timed(self, who: str, do: Any, *given: Any) -> Any:
        began = time.thread_time()
        try:
            return do(*given)
        finally:
            self.seconds[who] += time.thread_time() - began

    def hold(self, talk: Any, ends: Mapping[str, Any], gone: Mapping[str, int]) -> Any:
        """Hold a conversation; `gone` says before which step somebody vanishes."""
        asked, step = self.timed("server", next, talk), 0
        while True:
            answers = {}
            for name, message in asked.items():
                if gone.get(name, 9) <= step:
                    continue
                self.down[name] += size(message)
                answers[name] = self.timed(name, ends[name].answer, message)
                self.up[name] += size(answers[name])
            step += 1
            try:
                asked = self.timed("server", talk.send, answers)
            except StopIteration as end:
                return end.value


def under_pads(
    form: ReplyLayout,
    sealed: Mapping[str, SealedReply],
    gone: Mapping[str, int],
    cipher: PadCipher = AES,
    colluders: int | None = None,
) -> Clock:
    clock, keys = Clock(), {name: signing_pair() for name in sealed}
    known = {name: pair[1] for name, pair in keys.items()}
    threshold = max(2 * len(sealed) // 3 + 1, LEAST)
    terms = PairwiseParams("bench", "0", 0, form.words, threshold, form.digest, cipher, colluders)
    rows = {name: clock.timed(name, form.row, one) for name, one in sealed.items()}
    ends = {
        n: PairwiseClient(n, terms, row, keys[n][0], known, UsedContributions())
        for n, row in rows.items()
    }
    server = clock.timed("server", PairwiseServer, terms, known)
    total = clock.hold(converse(server), ends, gone)
    clock.timed("server", form.aggregate, total.words, len(total.names))
    np.testing.assert_array_equal(total.words, plain(rows, total.names))
    return clock


def on_shares(
    form: ReplyLayout,
    sealed: Mapping[str, SealedReply],
    many: int,
    gated: bool,
    gone: Mapping[str, int],
    cipher: PadCipher = AES,
) -> Clock:
    clock, aggregators = Clock(), tuple(f"aggregator {i}" for i in range(many))
    keys = {name: signing_pair() for name in (*sealed, *aggregators, "server")}
    known = {name: pair[1] for name, pair in keys.items()}
    packing, gate = form.trees["model"], {}
    if gated:
        dealer = "server" if many == 2 else aggregators[-1]
        gate = {"gated": form.entries, "count_bits": packing.count_bits, "dealer": dealer}
    terms = AdditiveParams(
        "bench", "0", 0, form.words, LEAST, form.digest, cipher, aggregators, **gate
    )
    rows = {name: clock.timed(name, form.row, one) for name, one in sealed.items()}
    ends: dict[str, Any] = {
        n: Contributor(n, terms, row, keys[n][0], known, UsedContributions())
        for n, row in rows.items()
    }
    ends |= {n: Aggregator(n, terms, keys[n][0], known, UsedContributions()) for n in aggregators}
    talk = Coordinator(terms, tuple(sealed), known, keys["server"][0]).converse()
    total = clock.hold(talk, ends, gone)
    clock.timed("server", form.aggregate, total.words, len(total.names))
    wanted = plain(rows, total.names)
    if gated:
        wanted[: form.entries] = withheld(wanted[: form.entries], packing, LEAST)
    np.testing.assert_array_equal(total.words, wanted)
    return clock


def plain(rows: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    total = np.zeros_like(next(iter(rows.values())))
    for name in names:
        total += rows[name]
    return total


def in_clear(sealed: Mapping[str, SealedReply]) -> Clock:
    clock = Clock()
    clock.timed("server", add_up, sealed.values(), {})
    for name, one in sealed.items():
        clock.up[name] = 4 * one.trees["model"].total.layout.n
    return clock


def replies(
    clients: int, n: int, masked: bool, trees: tuple[str, ...] = ("model",), bits: int = BITS
) -> tuple[ReplyLayout, dict[str, SealedReply]]:
    rng, found = torch.Generator().manual_seed(0), {}
    like = Params.named(a=torch.zeros(n))
    for i in range(clients):
        updates = {tree: like.like(0.02 * torch.randn(n, generator=rng)) for tree in trees}
        mask = Mask(torch.rand(n, generator=rng) < 0.2, like.layout)
        answer = reply(mask if masked else 100.0, {"loss": 1.0}, **updates)
        found[f"client {i:02d}"] = seal(answer, 0)
    exposed = Exposure(trees=trees, weight="mask" if masked else "number")
    ranges = ValueLimits(clients, total=100.0, weight=1 if masked else 1e4, bits=bits)
    return ReplyLayout(exposed, dict.fromkeys(trees, like), ranges), found


def main() -> None:
    given = options(
        __doc__,
        clients=14,
        words=1_827_000,
        repeats=3,
        cipher={"choices": PAD_CIPHERS, "default": AES},
        only="",
    )
    torch.set_num_threads(1)
    print(f"{given.clients} clients, {given.words:,} entries; {platform.machine()}, one thread\n")
    print("| sum | client s | server s | aggregators s, all | all s | up / float32 | MB down |")
    print("|---|---|---|---|---|---|---|")
    whole, masked = (replies(given.clients, given.words, kind) for kind in (False, True))
    half, cipher = replies(given.clients, given.words, False, bits=32), given.cipher
    late, tenth = {"client 03": 2, "client 05": 2}, max(1, given.clients // 10)
    after = dict.fromkeys(late, 3)
    rows = {
        "in clear": lambda: in_clear(whole[1]),
        "pads": lambda: under_pads(*whole, {}, cipher),
        "pads, entry_bits = 32": lambda: under_pads(*half, {}, cipher),
        "pads, 2 vanish before their words": lambda: under_pads(*whole, late, cipher),
        "pads, 2 vanish after": lambda: under_pads(*whole, after, cipher),
        f"pads on a ring, {tenth} collude": lambda: under_pads(*whole, {}, cipher, tenth),
        **{
            f"shares, {k} aggregators": lambda k=k: on_shares(*whole, k, False, {}, cipher)
            for k in (2, 3, 4)
        },
        "in clear, masks": lambda: in_clear(masked[1]),
        **{
            f"shares, {k} aggregators, masks, counts of {LEAST} or more": lambda k=k: on_shares(
                *masked, k, True, {}, cipher
            )
            for k in (2, 3, 4)
        },
    }
    for name, hold in rows.items():
        if given.only not in name:
            continue
        clocks = [hold() for _ in range(given.repeats)]
        show(name, min(clocks, key=lambda c: sum(c.seconds.values())), given.clients, given.words)


def show(name: str, clock: Clock, clients: int, n: int) -> None:
    def spent(who: str) -> float:
        return sum(s for key, s in clock.seconds.items() if key.startswith(who))

    ups = [b for key, b in clock.up.items() if key.startswith("client")]
    downs = [b for key, b in clock.down.items() if key.startswith("client")] or [0]
    print(
        f"| {name} | {spent('client') / clients:.3f} | {spent('server'):.2f} | "
        f"{spent('aggregator'):.2f} | {sum(clock.seconds.values()):.2f} | "
        f"{max(ups) / (4 * n):.3f} | {max(downs) / 1e6:.3f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
