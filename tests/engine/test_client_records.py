"""Small records of the engine by hand: tasks in groups, states to keep, weights, shared memory."""

import multiprocessing
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from vergence.core.data import Samples, SharedRows
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.engine.channel import DIRECT
from vergence.engine.client_runner import (
    ClientRunner,
    SettledReply,
    heaviest,
    masks,
    owned,
    unchanged,
)
from vergence.engine.records import ClientState, ClientTask, LabState, TaskBatch, numbers
from vergence.engine.workers import pools
from vergence.engine.workers.pools import SMALL, Forked, training_seconds
from vergence.engine.workers.shared_memory import ALIGN, Layouts, SharedArena, TaskTickets
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.packing import RangeFault

MODEL = Params.named(a=torch.tensor([1.0, 2.0]), b=torch.tensor([3.0]))
SOME = Mask(torch.tensor([True, False, True]), MODEL.layout)
NONE = Mask(torch.tensor([False, False, False]), MODEL.layout)


@dataclass(frozen=True)
class Own:
    """A method's state with an array."""

    model: Params


@dataclass(frozen=True)
class Bare:
    """A method's state without fields."""


@dataclass(frozen=True)
class Labelled:
    """A method's state without an array."""

    turns: int


def test_groups_are_consecutive_tasks():
    tasks = [ClientTask(name, Message("train")) for name in "abcdef"]
    batch = TaskBatch("turn", tasks, [2, 0, 3, 1])
    found = ["".join(task.client for task in batch.group(number)) for number in range(4)]
    assert found == ["ab", "", "cde", "f"]


@pytest.mark.parametrize(
    ("state", "empty"),
    [
        (ClientState(), True),
        (ClientState(Bare()), True),
        (ClientState("text"), True),
        (ClientState(LabState()), True),
        (ClientState(Own(MODEL)), False),
        (ClientState(LabState({"ann": None})), False),
        (ClientState(None, {"model": SOME}), False),
        (ClientState(None, {}, {"model": MODEL}), False),
    ],
)
def test_a_state_is_empty_if_nothing_is_to_be_kept(state, empty):
    assert state.empty is empty


def test_measured_numbers_become_plain_floats():
    made = numbers({"P0": {"loss": torch.tensor(0.5), "acc": 1}})
    assert made == {"P0": {"loss": 0.5, "acc": 1.0}}
    assert {type(value) for value in made["P0"].values()} == {float}


@pytest.mark.parametrize(
    ("weight", "heavy"),
    [
        (2.5, 2.5),
        (SOME, 1.0),
        (NONE, 0.0),
        (Params.named(a=torch.tensor([1.0, 4.0]), b=torch.tensor([-5.0])), 4.0),
    ],
)
def test_the_heaviest_entry_of_a_reply(weight, heavy):
    assert heaviest(SealedTree(MODEL, weight)) == heavy


def test_a_reply_tells_the_masks_that_it_has():
    entries = Params.named(a=torch.tensor([0.0, 2.0]), b=torch.tensor([1.0]))
    trees = {"x": SealedTree(MODEL, SOME), "y": SealedTree(MODEL, 2.0)}
    assert masks(SealedReply(0, trees, {})) == {"x": SOME}
    found = masks(SealedReply(0, {"z": SealedTree(MODEL, entries)}, {}))
    assert [mask.bits.tolist() for mask in found.values()] in ([], [[False, True, True]])


def test_a_reply_that_is_owned_has_memory_of_its_own():
    weight = Params.named(a=torch.tensor([1.0, 4.0]), b=torch.tensor([5.0]))
    trees = {"x": SealedTree(MODEL, weight), "y": SealedTree(MODEL, SOME)}
    sealed = SealedReply(7, trees, {"loss": 1.0})
    mine = owned(sealed)
    assert (mine.round, mine.metrics, list(mine.trees)) == (7, {"loss": 1.0}, ["x", "y"])
    for name, tree in mine.trees.items():
        assert torch.equal(tree.total.flat, MODEL.flat)
        assert tree.total.flat.data_ptr() != sealed.trees[name].total.flat.data_ptr()
    assert torch.equal(mine.trees["x"].weight.flat, weight.flat)
    assert mine.trees["x"].weight.flat.data_ptr() != weight.flat.data_ptr()
    assert mine.trees["y"].weight is SOME


def test_a_turn_left_a_state_unchanged_if_all_its_parts_are_the_same_objects():
    own, rest, known = Own(MODEL), {"model": MODEL}, {"x": SOME}
    before = ClientState(own, known, rest)
    assert unchanged(before, ClientState(own, dict(known), rest))
    assert not unchanged(before, ClientState(Own(MODEL), known, rest))
    assert not unchanged(before, ClientState(own, known, dict(rest)))
    assert not unchanged(before, ClientState(own, {}, rest))
    assert not unchanged(before, ClientState(own, {**known, "y": SOME}, rest))
    assert not unchanged(before, ClientState(own, {"x": NONE}, rest))


def filed(task, before, after, exposed=Exposure(), fresh=None):  # noqa: B008
    """Return whether a state goes to a file after a turn."""
    here = SimpleNamespace(fresh=fresh or ClientState(Bare()))
    return ClientRunner._state_to_file(here, task, before, after, exposed) is not None


def test_a_state_goes_to_a_file_where_it_could_not_be_made_again():
    new, old = (ClientTask("a", Message("train"), file) for file in (None, "file"))
    own = ClientState(Own(MODEL))
    asks = Exposure(numbered=("number",))
    assert filed(new, ClientState(), own)
    assert filed(old, own, own)
    assert not filed(old, own, own, asks)
    assert filed(new, own, own, asks)
    assert filed(old, own, ClientState(Own(MODEL)), asks)
    assert not filed(old, own, ClientState(Bare()))

    # What a fresh state holds, too, needs no file, unless one is there already.
    fresh = ClientState(Labelled(0))
    assert not filed(new, fresh, ClientState(Labelled(0)), fresh=fresh)
    assert filed(new, fresh, ClientState(Labelled(1)), fresh=fresh)
    assert filed(old, fresh, ClientState(Labelled(0)), fresh=fresh)
    assert filed(new, own, ClientState(Own(MODEL)), fresh=own)


def test_the_personal_share_is_that_of_the_methods_mask():
    here = SimpleNamespace(worker=SimpleNamespace(method=SimpleNamespace(personal=lambda m: m)))
    assert ClientRunner.share(here, SOME) == pytest.approx(2 / 3)
    assert ClientRunner.share(here, None) is None


def test_arrays_in_an_arena_begin_on_cache_lines_and_stay_apart():
    arena = SharedArena(1000)
    one = arena.new(3, torch.float32)
    assert arena.used == ALIGN == 64
    two = arena.new(17, torch.float32)
    assert arena.used == 3 * 64
    three = arena.new(16, torch.float32)
    assert arena.used == 4 * 64
    assert arena.new(0, torch.float32).tolist() == []
    assert arena.used == 4 * 64
    for number, part in enumerate((one, two, three)):
        part.fill_(number + 1)
    assert [float(part.sum()) for part in (one, two, three)] == [3, 34, 48]
    assert arena.at(64, 2, torch.float32).tolist() == [2, 2]
    arena.clear()
    assert arena.used == 0
    assert arena.new(2, torch.float32).tolist() == [1, 1]


def test_parameters_are_described_by_their_place_type_and_layout():
    other = Params.named(z=torch.tensor([[1.0], [2.0]], dtype=torch.float64))
    layouts, arena = Layouts(MODEL.layout), SharedArena(1000)
    notes = [arena.write(params, layouts) for params in (MODEL, other)]
    assert notes[0] == {"at": 0, "dtype": "float32", "layout": 0}
    assert (notes[1]["at"], notes[1]["dtype"]) == (64, "float64")
    assert notes[1]["layout"] == [other.layout.names, other.layout.shapes]
    for note, params in zip(notes, (MODEL, other), strict=True):
        found = arena.read(note, layouts)
        assert torch.equal(found.flat, params.flat)
        assert found.layout == params.layout
    same = Params.named(a=torch.zeros(2), b=torch.zeros(1))
    assert layouts.name(same.layout) == 0
    assert Layouts(other.layout, MODEL.layout).name(same.layout) == 1
    assert layouts.find(0) is MODEL.layout


@pytest.mark.parametrize("weight", [2.5, SOME, MODEL])
def test_weights_are_copied_out_of_an_arena(weight):
    layouts, arena = Layouts(MODEL.layout), SharedArena(1000)
    note = arena.write_weight(weight, layouts)
    found = arena.read_weight(note, layouts)
    assert isinstance(found, type(weight))
    assert (note == 2.5) == (weight == 2.5)
    if weight != 2.5:
        assert ("mask" in note) == (weight is SOME)
        kept = getattr(found, "bits", getattr(found, "flat", None)).clone()
        arena.clear()
        arena.new(9, torch.float32).fill_(7)
        assert torch.equal(getattr(found, "bits", getattr(found, "flat", None)), kept)
        assert torch.equal(kept, weight.bits if weight is SOME else weight.flat)


def test_tickets_are_drawn_once_up_to_the_end():
    tickets = TaskTickets(multiprocessing.get_context())
    assert [tickets.draw(2) for _ in range(3)] == [0, 1, None]
    assert tickets.draw(3) == 2
    assert tickets.settled == 0
    tickets.settle()
    tickets.settle()
    assert tickets.settled == 2
    assert tickets.draw(4) == 3


BEFORE = ClientState(Bare(), {"model": SOME})


@pytest.mark.parametrize("covers", [True, False])
@pytest.mark.parametrize("packed", ["bytes", None])
def test_a_refused_reply_becomes_zeros_where_a_protection_hides_faults(covers, packed):
    """Without one it does not count; in both cases the client's state stays."""
    asked = []
    worker = SimpleNamespace(covers=lambda *given: asked.append(given) or covers)
    here = SimpleNamespace(worker=worker, exposed=lambda _: Exposure(), sums=None)
    task = ClientTask("ann", Message("train", {"model": MODEL}, {}, 4))
    bad = SealedReply(4, {"model": SealedTree(MODEL, 3.0)}, {"loss": 1.0})
    refused = SettledReply(bad, bad, ClientState(Own(MODEL)), packed, "finite: NaN")
    done = ClientRunner._replace_with_zeros(here, task, None, {"model": MODEL}, BEFORE, refused)
    assert asked == [("ann", 4, "finite: NaN")]
    assert done.state is BEFORE
    if covers:
        assert done.fault is None
        assert done.reply.trees["model"].total.flat.tolist() == [0, 0, 0]
        assert (done.reply.round, done.reply.metrics, done.outgoing) == (4, {}, done.reply)
        assert (done.packed is None) == (packed is None)
    else:
        assert (done.fault, done.reply, done.packed) == ("finite: NaN", bad, None)


def test_a_refused_reply_of_unknown_shape_does_not_count():
    here = SimpleNamespace(worker=None, exposed=lambda _: Exposure(), sums=None)
    bad = SealedReply(4, {}, {})
    refused = SettledReply(bad, bad, ClientState(), "bytes", "trees: none")
    task = ClientTask("ann", Message("train"))
    done = ClientRunner._replace_with_zeros(here, task, None, {}, BEFORE, refused)
    assert (done.fault, done.packed, done.state) == ("trees: none", None, BEFORE)


def test_the_seconds_of_a_runs_training_by_hand():
    """10 samples of 4 numbers and a bank of 4 each, in batches of 3: 4 steps an epoch."""
    columns = {"x": torch.zeros(10, 2), "y": torch.zeros(10)}
    shown = SharedRows(torch.zeros(6, 4), "ids")
    train = Samples({**columns, "ids": torch.zeros(10, dtype=torch.int64)}, {"frames": shown})
    people = {name: SimpleNamespace(train=train) for name in "ab"}

    def seconds(local):
        worker = SimpleNamespace(
            trained_on=SimpleNamespace(people=people),
            method=SimpleNamespace(local=local),
            solver=SimpleNamespace(layout=SimpleNamespace(n=1e9)),
        )
        return training_seconds(SimpleNamespace(worker=worker), SimpleNamespace(rounds=5))

    step = 5e-4 + 6 * 1e9 * (2 + 1 + 1 + 4) * 3 / 5e9
    assert seconds(LocalTraining(optimizer="sgd", batch=3, epochs=2)) == pytest.approx(
        2 * 5 * 8 * step
    )
    assert seconds(LocalTraining(optimizer="sgd", batch=3, steps=11)) == pytest.approx(
        2 * 5 * 11 * step
    )


@pytest.mark.parametrize(("entries", "slots"), [(SMALL, 4 * 4), (SMALL + 1, 2 * 4)])
def test_more_sums_may_wait_where_they_are_small(entries, slots, monkeypatch):
    """Of 3 processes; every arena leaves room for the others and for what is sent."""
    among, started = [], []
    ends = [multiprocessing.Pipe() for _ in range(3)]
    process = SimpleNamespace(start=lambda: started.append(1), kill=int, join=int)
    context = SimpleNamespace(
        Lock=lambda: None, Pipe=iter(ends).__next__, Process=lambda **_: process
    )
    monkeypatch.setattr(pools, "fork_context", lambda: context)
    monkeypatch.setattr(pools, "SharedArena", lambda count: among.append(count) or "arena")
    layout = SimpleNamespace(n=entries)
    runner = SimpleNamespace(worker=SimpleNamespace(solver=SimpleNamespace(layout=layout)))
    made = Forked(runner, 3)
    made.close()
    assert (len(made.slots), made.sent, len(started), made.count) == (slots, "arena", 3, 3)
    assert among == [slots + 1] * (slots + 1)


@pytest.mark.parametrize(
    ("table", "numbered", "form", "named"),
    [
        ([Exposure()], (), True, False),
        ([Exposure(), Exposure("each")], (), True, False),
        ([Exposure(), Exposure()], (), True, True),
        ([Exposure()], ("at",), True, True),
        ([Exposure(), Exposure()], ("at",), False, False),
    ],
)
def test_noise_is_keyed_by_the_question_where_a_round_asks_several(table, numbered, form, named):
    key = NoiseKey(bytes(32))
    method = SimpleNamespace(exposure=dict(enumerate(table)))
    worker = SimpleNamespace(noise_key=lambda client: key.child(client), method=method)
    layout = SimpleNamespace(exposed=Exposure(numbered=numbered)) if form else None
    task = ClientTask("ann", Message("train", {}, {"at": 6}, 4))
    found = ClientRunner._noise_key(SimpleNamespace(worker=worker), task, layout)
    own = key.child("ann")
    if named:
        own = own.child("sum", "4.train.6" if numbered else "4.train")
    assert found.words(2).tolist() == own.words(2).tolist()


class Sums:
    """Secure sums that refuse replies of weight 9, and add the noise of a key."""

    def encode(self, layout, reply, secret):
        if reply.trees["model"].weight == 9:
            raise RangeFault("range: too heavy")
        return SealedReply(reply.round, {"words": SealedTree(MODEL, 1.0)}, {})


@pytest.mark.parametrize("secure", [False, True])
def test_what_the_server_knows_of_a_client_after_a_reply(secure):
    """A mask is known once it was sent in the open, in a reply that counts."""
    here = SimpleNamespace(
        exposed=lambda _: Exposure(weight="mask"),
        sums=Sums() if secure else None,
        channel=DIRECT,
        store=SimpleNamespace(records=()),
        _state_to_file=lambda *given: SimpleNamespace(finite=given[2].state != "nan"),
        _noise_key=print,
    )
    task = ClientTask("ann", Message("train", {"model": MODEL}, {}, 4))
    layout = SimpleNamespace() if secure else None
    rest = {"model": MODEL}

    def check(weight=SOME, round=4, state="new"):
        reply = SealedReply(round, {"model": SealedTree(SOME.keep(MODEL), weight)}, {"loss": 1.0})
        after = ClientState(state, {}, rest)
        sent = {"model": MODEL}
        return reply, ClientRunner._check(here, task, layout, sent, BEFORE, reply, after)

    reply, good = check()
    assert good.fault is None
    assert good.state.residuals is rest
    assert good.state.known_masks == (BEFORE.known_masks if secure else {"model": SOME})
    assert (good.outgoing is reply) != secure
    _, late = check(round=3)
    assert late.fault is not None
    assert late.state.known_masks == BEFORE.known_masks
    _, broken = check(state="nan")
    assert broken.fault == "finite: the client's own state holds NaN or infinity"
    _, both = check(round=3, state="nan")
    assert both.fault == late.fault
    if secure:
        here.exposed = lambda _: Exposure()
        assert check(weight=9.0)[1].fault == "range: too heavy"
