"""Data larger than a GPU's memory: batches are copied ahead of the steps that read them.

The device is one that stands in for a GPU. Results have the bits of a training whose data lie on
it.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.engine.learners import LOCALS, TASKS, Banked, asks_of, banked, streams_of
from tests.engine.toys import run_toy
from tests.stand_in_device import DEVICE, StandIn
from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import solver_selection
from vergence.engine.storage import checkpoint_validation
from vergence.methods.fedcpf import FedCPF
from vergence.models.linear import Linear
from vergence.training import cuda_graphs, device
from vergence.training.cuda_graphs import Graphed
from vergence.training.device import training_copies
from vergence.training.prefetching import AHEAD, Prefetcher

READS = {"cuda_graphs.fit_all"}
"""Losses, after the last step: nothing else comes home."""


class Averaged(Banked):
    """The toy task on windows: means of the frames that a sample names."""

    def forward(self, module, batch):
        return module(batch["frames"].float().mean(1)).squeeze(1)


def windows(n: int, client: int) -> Samples:
    """Draw a client's own bank of bytes, and windows of three of its rows."""
    draw = torch.Generator().manual_seed(client)
    rows = torch.randint(256, (20 + client, 6), generator=draw, dtype=torch.uint8)
    where = torch.randint(len(rows), (n, 3), generator=draw)
    y = torch.randn(n, generator=draw)
    return Samples({"ids": where, "y": y}, {"frames": SharedRows(rows, "ids")})


SHARED = torch.randn(30, 6, generator=torch.Generator().manual_seed(1))
KINDS = {
    "columns": TASKS["mlp"],
    "shared bank": (Banked(Linear(6)), lambda n, client: banked(n, client, SHARED)),
    "windows of own banks": (Averaged(Linear(6)), windows),
}


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_streamed_data_give_the_bits_of_resident_ones(kind, streams, monkeypatch):
    """Five clients with 3 to 43 samples: every lane has some of either, and batches of rests."""
    task, make = KINDS[kind]
    with StandIn(READS):
        start = task.init()
        start = start.like(start.flat.to(DEVICE))
        sizes = {1: 12, 2: 3, 3: 7, 4: 30, 5: 43}
        asks = [Fit(start, make(n, client), LOCALS["clip"]) for client, n in sizes.items()]
        people = {f"p{n}": Splits(a.data, a.data, a.data) for n, a in enumerate(asks)}
        moved = [there for _, there in training_copies(Federation("a", people), DEVICE).values()]
        there = [Fit(a.params, data, a.local) for a, data in zip(asks, moved, strict=True)]
        resident = Graphed(task, DEVICE, streams=streams).fit_all(there, streams_of(asks))
        loaded = note_loads(monkeypatch)
        graphed = Graphed(task, DEVICE, streams=streams)
        some = [there[0], asks[1], there[2], asks[3], there[4]]
        half = sorted(sum(t.nbytes for t in tensors(ask.data)) for ask in asks)[2]
        for mixed, at_once in [(asks, 0), (asks, half), (some, 0), (asks[::-1], half)]:
            monkeypatch.setattr(cuda_graphs, "AT_ONCE", at_once)
            back = slice(None, None, -1 if mixed[0] is asks[-1] else 1)
            streamed = graphed.fit_all(mixed, streams_of(asks)[back])[back]
            for one, other in zip(resident, streamed, strict=True):
                assert torch.equal(one.params.flat.raw, other.params.flat.raw)
                assert one.metrics == other.metrics
    # The first client has two sizes of batches to record, then three steps: after the first of
    # them the other lanes go on.
    assert loaded[:3] == [0, 0, 0]
    assert streams == 1 or loaded[3] == 1
    assert set(loaded) == set(range(streams))


def tensors(data: Samples) -> list[torch.Tensor]:
    return [*data.columns.values(), *(bank.rows for bank in data.banks.values())]


def note_loads(monkeypatch) -> list[int]:
    """Let prefetchers, numbered as they come, note that they load a batch."""
    loaded, feeds, honest = [], [], Prefetcher.load

    def load(self, *rest):
        if self not in feeds:
            feeds.append(self)
        loaded.append(feeds.index(self))
        return honest(self, *rest)

    monkeypatch.setattr(Prefetcher, "load", load)
    return loaded


def test_little_data_in_main_memory_are_copied_at_once(monkeypatch):
    task, make = KINDS["windows of own banks"]
    asks = asks_of(task, make, LOCALS["clip"], "none", 2)
    monkeypatch.setattr(Prefetcher, "load", None)
    with StandIn(READS):
        there = [replace(a, params=a.params.like(a.params.flat.to(DEVICE))) for a in asks]
        Graphed(task, DEVICE).fit_all(there, streams_of(asks))
        columns = sum(t.nbytes for t in asks[0].data.columns.values())
        monkeypatch.setattr(cuda_graphs, "AT_ONCE", columns)
        with pytest.raises(TypeError, match="NoneType"):
            Graphed(task, DEVICE).fit_all(there, streams_of(asks))
    # On a CPU everything is at hand.
    Graphed(task).fit_all(asks, streams_of(asks))


def test_people_are_copied_as_long_as_there_is_room(monkeypatch, capsys):
    """Two pairs share 60 and 20 rows of 8 bytes; columns take 8 bytes a sample."""
    bank, own = torch.zeros(60, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    people = {}
    for person, rows in {"a": bank, "b": own, "c": bank, "d": own}.items():
        part = Samples({"ids": torch.zeros(10, dtype=torch.int64)}, {"f": SharedRows(rows, "ids")})
        people[person] = Splits(part, part, part)
    federation = Federation("few", people)
    # a takes 80 + 480, b 80 + 160, and then c and d 80 each.
    cases = {960: "abcd", 959: "abc", 720: "ac", 559: "bd", 79: ""}
    for room, copied in {float("inf"): "abcd", **cases}.items():
        monkeypatch.setattr(device, "room_on", lambda *_, room=room: room)
        device._note.cache_clear()
        moved = training_copies(federation, torch.device("cpu"))
        assert [p for p, s in people.items() if id(s.train) in moved] == list(copied)
        training_copies(federation, torch.device("cpu"))
        said = capsys.readouterr().err
        assert said.count("stay in main memory") == (len(copied) < 4)
        assert len(copied) == 4 or f"data of {4 - len(copied)} of 4 people stay" in said


@pytest.mark.slow
def test_a_run_without_room_for_data_has_the_same_fingerprint(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(solver_selection, "choose_device", lambda _: DEVICE)
    shape = dict(checkpoint_validation.SHAPE, solving=object)
    monkeypatch.setattr(checkpoint_validation, "SHAPE", shape)
    method = FedCPF(local=LOCALS["momentum"], rate=0.2)
    runs = []
    people = People(people=5).load().people
    size = sum(c.nbytes for s in people.values() for c in s.train.columns.values())
    for name, room in [("all", float("inf")), ("some", size / 2), ("none", 0)]:
        with monkeypatch.context() as patch, StandIn():
            patch.setattr(device, "room_on", lambda *_, room=room: room)
            patch.setattr(cuda_graphs, "AT_ONCE", 0)
            device._note.cache_clear()
            runs.append(run_toy(tmp_path / name, method, people=5, solver="sequential").fingerprint)
            assert ("people stay in main memory" in capsys.readouterr().err) == (name != "all")
    assert len(set(runs)) == 1


class Clock:
    """Streams and events that write down what they are asked for."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []

    def stream(self, name: str):
        clock = self

        class Stream:
            def wait_event(self, event):
                clock.log.append((name, "waits for", event.name))

        return Stream()

    def event(self, name: str):
        clock = self

        class Event:
            def __init__(self):
                self.name = name

            def synchronize(self):
                clock.log.append(("host", "waits for", name))

            def record(self):
                clock.log.append((name, "is next"))

        return Event()


def test_a_place_is_overwritten_when_its_batch_was_copied_and_read(monkeypatch):
    clock, feed = Clock(), Prefetcher(torch.device("cpu"))
    data = Samples({"x": torch.arange(9)})
    feed.load(data, torch.arange(2))
    lane, feed.stream = clock.stream("lane"), clock.stream("side")
    feed.copied = [clock.event(f"copied {n}") for n in range(AHEAD)]
    feed.read = [clock.event(f"read {n}") for n in range(AHEAD)]

    @contextmanager
    def inside(_):
        clock.log.append(("side", "begins"))
        yield
        clock.log.append(("side", "ends"))

    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: lane)
    honest = Prefetcher._copy
    monkeypatch.setattr(
        Prefetcher, "_copy", lambda *rest: clock.log.append(("copy",)) or honest(*rest)
    )
    batches: list[torch.Tensor] = []
    for number in range(5):
        before, place = feed.place, (feed.place + 1) % AHEAD
        clock.log.clear()
        rows = torch.arange(2 * number, min(2 * number + 2, 9))
        batches.append(feed.load(data, rows)["x"])
        assert clock.log == [
            (f"read {before}", "is next"),
            ("host", "waits for", f"copied {place}"),
            ("side", "waits for", f"read {place}"),
            ("side", "begins"),
            ("copy",),
            (f"copied {place}", "is next"),
            ("side", "ends"),
            ("lane", "waits for", f"copied {place}"),
        ]
        for at in range(max(0, number - AHEAD + 1), number + 1):
            assert batches[at].tolist() == list(range(9))[2 * at : 2 * at + 2]


def test_networks_of_ten_million_parameters_train_two_side_by_side(monkeypatch):
    task = TASKS["mlp"][0]
    size = task.init().flat.numel()
    monkeypatch.setattr(cuda_graphs, "LARGE", size)
    assert [len(Graphed(task, streams=n).lanes) for n in (1, 2, 4)] == [1, 2, 2]
    asks = asks_of(*TASKS["mlp"], LOCALS["adamw"], "all", 5)
    two = Graphed(task, streams=4).fit_all(asks, streams_of(asks))
    monkeypatch.setattr(cuda_graphs, "LARGE", size + 1)
    assert [len(Graphed(task, streams=n).lanes) for n in (1, 2, 4)] == [1, 2, 4]
    four = Graphed(task, streams=4).fit_all(asks, streams_of(asks))
    for one, other in zip(two, four, strict=True):
        assert torch.equal(one.params.flat, other.params.flat)
        assert one.metrics == other.metrics
