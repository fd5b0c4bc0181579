"""Bytes counted are bytes carried, and equal the formulas of the methods design note, 0.4.

b = 4 bytes per entry, n entries. The toy line over i inputs has n = i + 1.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from math import ceil, floor, log2
from typing import Any

import pytest
import torch
from safetensors.torch import load

from tests.conformance.test_methods import SUITED, WITH_SLOW_KIN
from tests.engine.toys import CHAIN, LOCAL, run_toy, table
from vergence.core.masks import Mask
from vergence.core.method import Method
from vergence.core.params import Layout
from vergence.core.serialization import array_bytes, pack
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import channel
from vergence.engine.participation import Participation
from vergence.experiment.registry import find
from vergence.methods.centralised import Centralised
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedprox import FedProx
from vergence.methods.fedselect import FedSelect
from vergence.methods.local_only import LocalOnly
from vergence.methods.split.base import Cutting
from vergence.wire.encoding import packed_mask, unpacked_mask
from vergence.wire.size import bytes_of_arrays

N = 4000
INPUTS = N - 1


def counted(path, verb="train"):
    """Return (round, client) -> (bytes up, bytes down)."""
    rows = [t for t in table(path, "turns.csv") if t["verb"] == verb]
    return {
        (int(t["round"]), t["client"]): (int(t["bytes_up"]), int(t["bytes_down"])) for t in rows
    }


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local=LOCAL),
        FedAvg(local=LOCAL, weights="equal"),
        FedProx(local=LOCAL),
    ],
)
def test_dense_methods_send_bn_up_and_down(tmp_path, method):
    run_toy(tmp_path, method, inputs=INPUTS)
    found = counted(tmp_path)
    assert len(found) == 4 * 3
    assert set(found.values()) == {(4 * N, 4 * N)}


def test_local_only_sends_nothing(tmp_path):
    run_toy(tmp_path, LocalOnly(local=LOCAL), inputs=INPUTS)
    assert set(counted(tmp_path).values()) == {(0, 0)}


def test_fine_tuning_downloads_once_more_and_sends_nothing_back(tmp_path):
    run_toy(tmp_path, FedAvgFT(local=LOCAL, tune_epochs=1), inputs=INPUTS)
    assert set(counted(tmp_path).values()) == {(4 * N, 4 * N)}
    assert set(counted(tmp_path, "tune").values()) == {(0, 4 * N)}


def test_a_data_centre_gets_the_raw_data_once(tmp_path):
    """x [n, 4] and y [n] of training and validation, 4 bytes each; inside it nothing travels."""
    run_toy(tmp_path, Centralised(local=LOCAL), inputs=4)
    assert set(counted(tmp_path).values()) == {(0, 0)}
    people = People(people=3, inputs=4).load().people
    assert counted(tmp_path, "upload") == {
        (0, p): (4 * (4 + 1) * (len(s.train) + len(s.val)), 0) for p, s in people.items()
    }


def test_a_data_centre_takes_as_many_steps_as_all_its_clients(tmp_path):
    """Two steps for each of three people are six for everybody's data; epochs stay epochs."""
    for method in (FedAvg, Centralised):
        run_toy(tmp_path / method.__name__, method(local=replace(LOCAL, steps=2)), rounds=1)
        rows = [t for t in table(tmp_path / method.__name__, "turns.csv") if t["verb"] == "train"]
        assert sum(int(t["steps"]) for t in rows) == 6


def mask_message(new: int, n: int) -> int:
    """Return the bytes of a mask that gained `new` personal entries: bitmap or list of indices."""
    return min(ceil(n / 8), ceil(new * ceil(log2(n)) / 8)) if new else 0


MASKED = {
    "fedcpf": FedCPF(local=LOCAL, rate=0.1, limit=0.35),
    "fedcpf by samples": FedCPF(local=LOCAL, rate=0.1, limit=0.35, weights="samples"),
    "fedcpf per tensor": FedCPF(local=LOCAL, rate=0.1, limit=0.35, scope="per_tensor"),
    "fedselect": FedSelect(local=LOCAL, rate=0.1, limit=0.35),
    "fedselect code": FedSelect(local=LOCAL, rule="code", rate=0.1, limit=0.35),
}


@pytest.mark.parametrize("n", [N, 100])
@pytest.mark.parametrize("name", MASKED)
def test_masked_methods_send_shared_entries_and_masks_that_changed(tmp_path, name, n):
    """up = b n (1 - rho_r) + mask message; rho_r is the mask the round began with; down = bn."""
    method, rounds = MASKED[name], 5
    masks = {
        r: run_toy(tmp_path / str(r), method, inputs=n - 1, rounds=r).clients
        for r in range(1, rounds + 1)
    }
    found = counted(tmp_path / str(rounds))
    known = dict.fromkeys(("p00", "p01", "p02"), 0)
    for at in range(1, rounds + 1):
        for client in known:
            kept = masks[at][client].last_mask.count  # eta of this round
            message = mask_message(kept - known[client], n)
            assert found[at, client] == (4 * (n - kept) + message, 4 * n), (at, client)
            known[client] = kept
    if "code" not in name:  # a bias of one entry is never personal under a limit of its own
        full = n - 1 if "per tensor" in name else n
        assert set(known.values()) == {floor(0.35 * full)}


@pytest.mark.parametrize(
    ("new", "n", "form"),
    [
        (0, 4000, set()),
        (1, 4000, {"index"}),
        (333, 4000, {"index"}),
        (334, 4000, {"bitmap"}),
        (1, 8, {"bitmap"}),
        (2, 64, {"index"}),
    ],
)
def test_the_shorter_mask_message_is_sent(new, n, form):
    """n = 4000: 500 B as bitmap, 12 bits an index, so 333 indices (500 B) are the turning point."""
    layout = Layout(("w",), ((n,),))
    bits = torch.ones(n, dtype=torch.bool)
    bits[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:new]] = False
    sent = packed_mask(Mask(bits, layout), None)
    assert unpacked_mask(sent, Mask.full(layout)) == Mask(bits, layout)
    assert bytes_of_arrays(sent) == mask_message(new, n)
    if (new, n) == (333, 4000):
        assert bytes_of_arrays(sent) == 500  # both forms take as much
    else:
        assert set(sent) == form


@pytest.mark.parametrize("name", [*WITH_SLOW_KIN, *MASKED])
def test_what_is_counted_is_what_the_wire_carries(tmp_path, name, monkeypatch):
    """The sum of all arrays in the safetensors bytes of every encoded reply, reply by reply."""
    kind: Any = find("methods", name, Method) if name not in MASKED else None
    method = MASKED.get(name) or kind(local=LOCAL, **SUITED.get(name, {}))
    if isinstance(method, FedCPF | FedSelect):
        method = replace(method, rate=0.1)
    carried = []
    honest = channel.encode

    def watch(sealed, known):
        data = honest(sealed, known)
        carried.append(sum(a.numel() * a.element_size() for a in load(data).values()))
        return data

    monkeypatch.setattr(channel, "encode", watch)
    split = isinstance(method, Cutting)
    shape = {"task": CHAIN} if split else {"inputs": 49}
    run_toy(tmp_path, method, engine="bytes", presence=Participation(lost=0.2), **shape)
    rows = [t for t in table(tmp_path, "turns.csv") if t["status"] == "ok"]
    rows = [t for t in rows if t["verb"] != "upload"]
    told = [
        sum(int(t["bytes_up"]) for t in of_one)  # a row per tree
        for _, of_one in groupby(rows, key=lambda t: (t["round"], t["client"], t["verb"]))
    ]
    if split:  # a client's replies of a round are counted together
        assert sum(told) == sum(carried) > 0
        return
    if not method.pooled:
        assert told == carried
    assert len(told) == len(carried) > 0


def test_bytes_are_the_same_for_any_engine_and_after_lost_replies(tmp_path):
    """A mask whose reply was lost is still unknown to the server, and is sent with the next."""
    method, presence = FedCPF(local=LOCAL, rate=0.1), Participation(lost=0.3)
    for engine, count in (("simulator", 1), ("simulator", 2), ("bytes", 1)):
        run_toy(
            tmp_path / f"{engine}{count}",
            method,
            inputs=99,
            rounds=8,
            engine=engine,
            workers=count,
            presence=presence,
        )
    plain = counted(tmp_path / "simulator1")
    assert plain == counted(tmp_path / "simulator2") == counted(tmp_path / "bytes1")
    assert 0 in {up for up, _ in plain.values()}


def test_fedcpf_at_limit_one_half_saves_46_to_51_percent(tmp_path):
    """n = 4000, 200 entries a round: masks are full (2000) after 10 rounds.

    The round that first sends the full mask: 8000 B + 200 new indices of 12 bits (300 B) against
    16 000 B, 48.1 % less; from then on 8000 B, 50 % less.
    """
    run_toy(tmp_path / "fedavg", FedAvg(local=LOCAL), inputs=INPUTS, rounds=13)
    outcome = run_toy(tmp_path / "fedcpf", FedCPF(local=LOCAL), inputs=INPUTS, rounds=13)
    assert {s.mask.fraction for s in outcome.clients.values()} == {0.5}
    dense, masked = counted(tmp_path / "fedavg"), counted(tmp_path / "fedcpf")
    saved = defaultdict(set)
    for key, (up, _) in masked.items():
        saved[key[0]].add(round(1 - up / dense[key][0], 5))
    assert saved[1] == {0.0}  # nothing is personal yet, and no mask is sent
    assert saved[11] == {0.48125}
    assert saved[12] == saved[13] == {0.5}
    for filled in (11, 12, 13):
        assert all(0.46 <= s <= 0.51 for s in saved[filled])


def test_mask_state_costs_at_most_4n_plus_a_quarter_n(tmp_path):
    """The window's sum (4n) and two masks of one bit per entry, in the packed client state."""
    outcome = run_toy(tmp_path, FedCPF(local=LOCAL), inputs=INPUTS, rounds=12)
    for state in outcome.clients.values():
        sizes = array_bytes(pack(state))
        parts = {path: s for path, s in sizes.items() if path != "s.params"}
        assert set(parts) == {"s.window.total", "s.kept", "s.mask"}
        assert sum(parts.values()) <= 4 * N + N / 4
        assert sizes["s.params"] == 4 * N
