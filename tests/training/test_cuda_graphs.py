"""A recorded step is the step of the sequential solver.

On a CPU it runs without the recording: the same kernels on the same layout, only the clipping
factor is rounded elsewhere. What these tests are for there is the static memory: what warm-up or
the client before left in it is gone. Where torch sees a GPU they are repeated on it, and a GPU's
sums in another order may differ from the CPU's by some 1e-5 of the largest entry.
"""

import gc
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests.engine.learners import (
    EXTRAS,
    LOCALS,
    TASKS,
    Banked,
    Odd,
    Peeking,
    apart,
    asks_of,
    banked,
    numbers,
    streams_of,
)
from vergence.api.task_from import task_from
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.errors import ConfigError
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask
from vergence.training.batch_buffers import _shared
from vergence.training.cuda_graphs import Graphed, GraphSlot, Uncapturable
from vergence.training.device import choose_device, move_to_device, training_copies
from vergence.training.graph_recorder import CudaGraphRecorder
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

pytestmark = pytest.mark.usefixtures("deterministic")
WITHIN = {"mlp64": 1e-13}
ON_GPU = 100
"""How many times further apart results of a GPU may be: it adds up in another order."""


def check(task, graphed: Graphed, asks: list[Fit], within: float = 1e-6) -> None:
    if graphed.device.type != "cpu":  # where a float64 network learns at a float32 rate, too
        within = max(within * ON_GPU, 1e-7)
    solver, streams = Solver(task), streams_of(asks)
    for ask, stream, found in zip(asks, streams, graphed.fit_all(asks, streams, 0.3), strict=True):
        alone = solver.fit(ask, stream, 0.3)
        assert apart(found.params, alone.params) <= within
        assert (found.steps, found.examples) == (alone.steps, alone.examples)
        assert found.metrics == pytest.approx(alone.metrics, rel=max(1e-5, within))
        if ask.trainable is not None:
            frozen = ~ask.trainable.bits
            assert torch.equal(found.params.flat[frozen], ask.params.flat[frozen])


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", ["mlp", "mlp64"])
def test_graphed_is_sequential(name, local, device):
    asks = asks_of(*TASKS[name], LOCALS[local], "none")
    check(TASKS[name][0], Graphed(TASKS[name][0], device), asks, WITHIN.get(name, 1e-6))


@pytest.mark.parametrize("extra", EXTRAS[1:])
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_requests_with_extras(name, extra, device):
    asks = asks_of(*TASKS[name], LOCALS["clip"], extra, clients=2)
    check(TASKS[name][0], Graphed(TASKS[name][0], device), asks)


def test_one_lane_takes_requests_of_every_kind_in_turn(device):
    """Kinds, sizes that grow and shrink, optimisers: nothing of one client reaches the next."""
    task, make = TASKS["mlp"]
    asks = [
        asks_of(task, make, LOCALS[local], extra, clients=1, n=n)[0]
        for local, extra, n in [
            ("clip", "all", 12),
            ("momentum", "none", 12),
            ("adamw", "none", 40),
            ("adam", "none", 3),
            ("clip", "anchor", 9),
            ("plain", "trainable", 33),
            ("momentum", "none", 5),
        ]
    ]
    check(task, Graphed(task, device), asks)


def test_lanes_train_side_by_side(device):
    task, make = TASKS["mlp"]
    graphed = Graphed(task, device, streams=2)
    check(task, graphed, asks_of(task, make, LOCALS["momentum"], "all", clients=5))
    assert all(lane.programs for lane in graphed.lanes)


@pytest.mark.parametrize("streams", [1, 4])
def test_dropout_is_that_of_the_client_and_its_step_in_every_lane(streams, device):
    """The same requests twice have the same bits, whatever was trained or drawn between."""
    task = task_from(dropping, torch.nn.functional.mse_loss)
    draw = torch.Generator().manual_seed(0)
    data = Samples(
        {"x": torch.randn(40, 8, generator=draw), "y": torch.randn(40, 1, generator=draw)}
    )
    asks = [
        Fit(task.init(), data, LocalTraining(optimizer="sgd", batch=10, lr=0.05)) for _ in range(9)
    ]
    graphed, streams_ = Graphed(task, device, streams=streams), streams_of(asks)
    once = [found.params.flat for found in graphed.fit_all(asks, streams_)]
    torch.randn(7, device=device)
    again = [found.params.flat for found in graphed.fit_all(asks[::-1], streams_[::-1])][::-1]
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    assert len({tuple(one.tolist()) for one in once}) == len(asks)
    alone = Graphed(task, device).fit(asks[4], streams_[4]).params.flat
    assert torch.equal(alone, once[4])
    if device == "cpu":  # a GPU draws other numbers
        solved = Solver(task).fit(asks[4], streams_[4]).params
        assert apart(asks[4].params.like(alone), solved) <= 1e-6


def dropping():
    net = torch.nn
    return net.Sequential(net.Linear(8, 64), net.ReLU(), net.Dropout(0.5), net.Linear(64, 1))


def test_an_optimiser_goes_on_where_it_was(device):
    """Two fits of one epoch, the state handed over, are what the sequential solver makes of it."""
    task, make = TASKS["mlp"]
    wider = 1 if device == "cpu" else ON_GPU
    for name in ("momentum", "adamw"):
        ask = replace(asks_of(task, make, LOCALS[name], "none")[0], optimiser=OptimizerState({}, 0))
        results = []
        for solver in (Graphed(task, device), Solver(task)):
            first = solver.fit(ask, streams_of([ask])[0])
            again = replace(ask, params=first.params, optimiser=first.optimiser)
            results.append(solver.fit(again, streams_of([ask])[0]))
        one, other = results
        assert apart(one.params, other.params) <= 1e-6 * wider
        assert one.optimiser is not None
        assert one.optimiser.steps == other.optimiser.steps > one.steps
        for slot, value in one.optimiser.slots.items():
            assert apart(value, other.optimiser.slots[slot]) <= 1e-5 * wider


def test_a_step_is_recorded_once_per_shape_and_kind(monkeypatch, device):
    """12 samples in batches of 5: full batches and one of 2, whatever the client or the round."""
    recorded = []
    honest = GraphSlot._record
    monkeypatch.setattr(
        GraphSlot, "_record", lambda self, *key: recorded.append(key[-1]) or honest(self, *key)
    )
    task, make = TASKS["mlp"]
    asks = asks_of(task, make, replace(LOCALS["clip"], schedule="cosine"), "none")
    graphed = Graphed(task, device)
    for progress in (0.0, 0.5):
        graphed.fit_all(asks, streams_of(asks), progress)
    assert recorded == [5, 2]


def test_threads_that_record_at_once_collect_no_garbage_meanwhile_and_all_of_it_after(monkeypatch):
    """The recorder's code; CUDA's part of it is left out."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    modes, collected = [], []

    def graph(*_, stream, capture_error_mode):
        modes.append(capture_error_mode)
        return nullcontext(stream)

    monkeypatch.setattr(torch.cuda, "graph", graph)

    def record(number):
        recorder = CudaGraphRecorder(torch.device("cpu"))
        monkeypatch.setattr(recorder, "stream", object())

        def work():
            time.sleep(0.02 * (number + 1))
            collected.append(gc.isenabled())

        recorder.capture(work)

    assert gc.isenabled()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(record, range(4)))
        assert collected == [False] * 4
        # Else what one thread does with a GPU ends the recording of another.
        assert modes == ["thread_local"] * 4
        assert gc.isenabled()
    finally:
        gc.enable()


def test_banks_are_shared_and_may_change(device):
    task = Banked(Linear(6))
    graphed = Graphed(task, device)
    for seed in (3, 4):
        rows = torch.randn(30, 6, generator=torch.Generator().manual_seed(seed))

        def make(n: int, client: int, rows: torch.Tensor = rows) -> Samples:
            return banked(n, client, rows)

        check(task, graphed, asks_of(task, make, LOCALS["momentum"], "none"))


def test_scores_and_outputs_are_the_solvers(device):
    task, make = TASKS["lenet"]
    params, data = task.init(), make(70, 1)
    graphed, solver = Graphed(task, device), Solver(task)
    near = 1e-6 if device == "cpu" else 1e-5
    assert torch.allclose(graphed.outputs(params, data), solver.outputs(params, data), atol=near)
    assert graphed.score(params, data) == pytest.approx(solver.score(params, data), abs=near)


def test_people_with_one_model_fill_batches_together(device, monkeypatch):
    """70, 3 and 64 samples of one model and 5 of another: 137 fill 3 batches, and one is alone."""
    (task, make), sizes = TASKS["lenet"], [70, 3, 5, 64]
    one = task.init()
    other = one.like(one.flat.flip(0))
    models = [(other if n == 5 else one, make(n, n)) for n in sizes]
    graphed, solver, forwards = Graphed(task, device), Solver(task), []
    near = 1e-6 if device == "cpu" else 1e-4
    honest = type(task).forward
    with monkeypatch.context() as patch:
        patch.setattr(
            type(task),
            "forward",
            lambda self, module, batch: (
                forwards.append(len(batch["gaze"])) or honest(self, module, batch)
            ),
        )
        outputs = graphed.outputs_of(models)
    assert forwards == [64, 64, 9, 5]
    for (params, data), found in zip(models, outputs, strict=True):
        assert found.device.type == "cpu"
        assert torch.allclose(found, solver.outputs(params, data), atol=near)


def test_another_network_may_look_at_its_batch(device):
    """Less the mean over the batch, an output depends on whose samples are in it."""
    task = task_from(Centred, torch.nn.functional.mse_loss)
    draw = torch.Generator().manual_seed(0)
    parts = [
        Samples({"x": torch.randn(n, 8, generator=draw), "y": torch.zeros(n, 1)}) for n in (4, 7)
    ]
    params, solver = task.init(), Solver(task)
    found = Graphed(task, device).outputs_of([(params, part) for part in parts])
    for part, outputs in zip(parts, found, strict=True):
        assert torch.allclose(outputs, solver.outputs(params, part), atol=1e-5)


class Centred(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 1)

    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.gpu
def test_a_step_that_looks_at_a_value_is_refused_and_the_gpu_goes_on():
    odd, (task, make) = ToyTask(Odd(Peeking)), TASKS["mlp"]
    ask = asks_of(odd, make, LOCALS["clip"], "none")[0]
    with pytest.raises(Uncapturable, match=r"a step of Peeking cannot be recorded.*sequential"):
        Graphed(odd, "cuda").fit(ask, RandomStream("odd"))
    check(task, Graphed(task, "cuda"), asks_of(task, make, LOCALS["clip"], "none"))


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"'tpu' is not known; use 'auto', 'cpu', 'cuda'"):
        choose_device("tpu")
    with pytest.raises(ConfigError, match=r"'cuda:x' is not known"):
        choose_device("cuda:x")
    with pytest.raises(ConfigError, match="streams must be 1 or more"):
        Graphed(TASKS["mlp"][0], streams=0)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"sees no GPU; install .* or use device 'cpu' or 'auto'"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        ConfigError, match="'cuda:2' is not there, this machine has cuda:0 to cuda:1"
    ):
        choose_device("cuda:2")


def test_resident_data_is_the_same_and_laid_out_together():
    federation = People(people=4, inputs=6).load()
    moved = move_to_device(federation, torch.device("cpu"))
    for person, splits in federation.people.items():
        for name, column in splits.train.columns.items():
            assert torch.equal(moved.people[person].train.columns[name], column)
        assert moved.people[person].val is splits.val
    columns = [splits.train.columns["x"] for splits in moved.people.values()]
    shared = _shared(columns)
    assert shared is not None
    assert shared[1] == [0, 12, 36, 72]  # 60 % of 20, 40, 60, 20 samples, one after the other


class Read(Mapping):
    """People who are read anew each time, as one's own mapping may do."""

    def __iter__(self):
        return (f"p{number:02d}" for number in range(20))

    def __len__(self):
        return 20

    def __getitem__(self, person):
        x = torch.full((3, 2), float(person[1:]))
        return Splits(*(Samples({"x": x}) for _ in range(3)))


def test_nobody_is_trained_on_the_copy_of_somebody_else():
    """Copies go by the `id` of samples, and samples that are gone leave theirs to others."""
    people = Read()
    found = training_copies(Federation("read", people), torch.device("cpu"))
    assert len(found) == len(people)
    for number, (here, there) in found.items():
        assert id(here) == number
        assert torch.equal(here.columns["x"], there.columns["x"])
    later = [people[person].train for _ in range(5) for person in people]
    assert not [samples for samples in later if id(samples) in found]


def test_resident_keeps_shared_banks_shared():
    rows = torch.randn(30, 6, generator=torch.Generator().manual_seed(3))
    parts = {c: banked(8, c, rows) for c in range(3)}
    people = {f"p{c}": Splits(part, part, part) for c, part in parts.items()}
    moved = move_to_device(Federation("banked", people), torch.device("cpu")).people
    assert len({id(splits.train.banks["frames"].rows) for splits in moved.values()}) == 1
    task = Banked(Linear(6))
    asks = [
        Fit(task.init(), s.train, LocalTraining(optimizer="sgd", batch=4)) for s in moved.values()
    ]
    apart_asks = [replace(a, data=parts[c]) for c, a in enumerate(asks)]
    stacked, streams = Stacked(task), streams_of(asks)
    for one, other in zip(
        stacked.fit_all(asks, streams), stacked.fit_all(apart_asks, streams), strict=True
    ):
        assert torch.equal(one.params.flat, other.params.flat)


def test_an_empty_client_is_refused():
    task = TASKS["mlp"][0]
    with pytest.raises(ConfigError, match="without training samples"):
        Graphed(task).fit(
            Fit(task.init(), numbers(0, 1), LocalTraining(optimizer="sgd")), RandomStream("a")
        )
