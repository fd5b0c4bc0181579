"""Worker processes: the same bits for any number of them, and none outlives its run."""

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.engine.toys import LOCAL, mostly_slow, run_toy, table
from vergence.core.aggregation import Sum
from vergence.core.conversation import collect
from vergence.core.federation import Population
from vergence.core.masks import Mask
from vergence.core.messages import SealedReply, SealedTree, reply
from vergence.core.method import Exposure, Global
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.data.synthetic.toy import Toy
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.exchange import lengths
from vergence.engine.plan import Plan
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.workers.pools import Forked, InProcess, worker_pool
from vergence.engine.workers.process_main import placed
from vergence.engine.workers.shared_memory import Layouts, SharedArena
from vergence.errors import PartialRun
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedprox import FedProx
from vergence.methods.local_only import LocalOnly
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))


@pytest.mark.parametrize("solver", mostly_slow(("sequential", "stacked"), "stacked"))
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(FedAvg(local=LOCAL), marks=pytest.mark.slow),
        FedCPF(local=LOCAL, rate=0.2),
        pytest.param(FedProx(local=LOCAL), marks=pytest.mark.slow),
    ],
    ids=lambda m: type(m).__name__,
)
def test_fingerprints_are_equal_for_any_number_of_workers(tmp_path, method, solver):
    found = {
        count: run_toy(
            tmp_path / str(count),
            method,
            people=30,
            solver=solver,
            workers=count,
            points=("P0", "P1"),
            evaluate_every=2,
        )
        for count in (1, 2, 4)
    }
    assert len({outcome.fingerprint for outcome in found.values()}) == 1
    rows = [
        [
            {k: v for k, v in row.items() if k != "seconds"}
            for row in table(tmp_path / str(count), name)
        ]
        for count in found
        for name in ("people.csv", "turns.csv", "rounds.csv")
    ]
    assert rows[:3] == rows[3:6] == rows[6:]


@pytest.mark.slow
def test_many_groups_are_told_several_at_a_time_to_the_same_bits(tmp_path, monkeypatch):
    """70 clients in 35 groups: two are told of at once; in the fewest slots that there can be."""
    from vergence.engine.workers import pools

    method = FedCPF(local=LOCAL, rate=0.2)
    plan = {"people": 70, "rounds": 2, "solver": "sequential"}
    found = {run_toy(tmp_path / str(n), method, workers=n, **plan).fingerprint for n in (1, 2, 4)}
    monkeypatch.setattr(pools, "SMALL", 0)
    found.add(run_toy(tmp_path / "few", method, workers=3, **plan).fingerprint)
    assert len(found) == 1


def test_solvers_agree_within_rounding_and_are_told_apart(tmp_path):
    """Other batched products, other last bits: 1e-5 of the largest entry.

    Docs: docs/explanation/engine.md.
    """
    method = FedCPF(local=LOCAL, rate=0.2, select="random")
    one = run_toy(tmp_path / "one", method, people=30, inputs=9, solver="sequential")
    many = run_toy(tmp_path / "many", method, people=30, inputs=9, solver="stacked")
    a, b = one.server.model.flat, many.server.model.flat
    assert float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())
    assert one.fingerprint != many.fingerprint


def test_a_resumed_run_trains_as_it_began(tmp_path, monkeypatch):
    """The choice is kept: a trial that would now say otherwise is not asked."""
    from vergence.engine import round_loop as module

    folder = tmp_path / "run"
    honest = module.RoundLoop.one_round

    def stop(self, at, server):
        if at == 2:
            raise KeyboardInterrupt
        return honest(self, at, server)

    method = FedAvg(local=LOCAL)
    whole = run_toy(tmp_path / "whole", method, people=30, solver="stacked")
    with monkeypatch.context() as patch:
        patch.setattr(module.RoundLoop, "one_round", stop)
        with pytest.raises(KeyboardInterrupt):
            run_toy(folder, method, people=30, solver="stacked")
    monkeypatch.setattr(module, "solver_for", None)
    assert run_toy(folder, method, people=30, solver="auto").fingerprint == whole.fingerprint


class Asks(FedAvg):
    """FedAvg whose server sees every reply, with a weight of its own kind."""

    exposure = {"train": Exposure("each", weight="per entry")}  # noqa: RUF012

    def round(self, s, cohort):
        got = yield from collect("train", to=cohort)
        total = Sum()
        for client in sorted(got):
            total.add(got[client])
        return Global(s.model + total.aggregate({}, {}).mean("model"))

    def on_train(self, c, msg, site):
        c, said = yield from super().on_train(c, msg, site)
        each = said.trees["model"] * 0.0 + float(len(site.train))
        return c, reply(model=said.trees["model"], weight=each, metrics=said.metrics)


def test_single_replies_come_through_shared_memory(tmp_path):
    """A weighted mean of collected replies is that of the aggregate, up to the order of sums."""
    plain = run_toy(tmp_path / "a", FedAvg(local=LOCAL), people=9)
    found = [run_toy(tmp_path / str(n), Asks(local=LOCAL), people=9, workers=n) for n in (1, 2)]
    assert found[0].fingerprint == found[1].fingerprint
    assert torch.allclose(found[0].server.model.flat, plain.server.model.flat, atol=1e-6)


@dataclass(frozen=True)
class Collected:
    """A model, and what was collected in the first round."""

    model: Params
    first: Params | None = None


class Keeps(LocalOnly):
    """Local-only whose server collects everybody's parameters, and keeps the first it got."""

    exposure = {"train": Exposure("each")}  # noqa: RUF012

    def server(self, task):
        return Collected(task.init())

    def offer(self, s, client):
        return {"model": s.model}

    def round(self, s, cohort):
        got = yield from collect("train", to=cohort)
        first = got["p00"].trees["model"].total
        return Collected(s.model, first if s.first is None else s.first)

    def on_train(self, c, msg, site):
        trained, _ = yield from super().on_train(c, msg, site)
        return trained, reply(model=c.params if msg.round else trained.params)


def test_what_a_server_collected_stays_though_state_files_are_written_over(tmp_path):
    found = [run_toy(tmp_path / str(n), Keeps(local=LOCAL), workers=n, rounds=5) for n in (1, 2)]
    assert found[0].fingerprint == found[1].fingerprint
    once = run_toy(tmp_path / "once", Keeps(local=LOCAL), rounds=1)
    assert torch.equal(found[0].server.first.flat, once.server.first.flat)


def test_every_kind_of_weight_survives_an_arena():
    params = Params(torch.arange(8.0), LAYOUT)
    mask = Mask(torch.arange(8) % 3 == 0, LAYOUT)
    arena = SharedArena()
    for layouts, weight in itertools.product(
        (Layouts(), Layouts(LAYOUT)), (2.5, mask, params * 2.0)
    ):
        arena.clear()
        arena.new(3, torch.float64)  # something before it
        note = placed(
            SealedReply(3, {"model": SealedTree(params, weight)}, {"loss": 1.0}), arena, layouts
        )
        total, kept = note["trees"]["model"]
        back = arena.read_weight(kept, layouts)
        assert torch.equal(arena.read(total, layouts).flat, params.flat)
        assert type(back) is type(weight)
        if isinstance(weight, Mask):
            assert back == weight
        elif isinstance(weight, Params):
            assert torch.equal(back.flat, weight.flat)
        else:
            assert back == weight


def test_groups_are_cut_by_length_and_by_load():
    assert lengths([1.0] * 7, 3, False) == [3, 3, 1]
    assert lengths([5, 5, 5, 2, 2, 1], 2, True) == [2, 1, 2, 1]
    assert lengths([], 3, True) == []


class Falls(FedAvg):
    """A method with a mistake in its client half."""

    def on_train(self, c, msg, site):
        if site.id == "p03":
            raise ValueError("a mistake of p03")
        return (yield from super().on_train(c, msg, site))


@pytest.mark.parametrize("count", [1, 2])
def test_a_mistake_in_a_method_ends_the_run_with_its_name(tmp_path, count):
    with pytest.raises((ValueError, RuntimeError), match="a mistake of p03"):
        run_toy(tmp_path, Falls(local=LOCAL), people=6, workers=count)
    assert not children(os.getpid())


class Dies(FedAvg):
    """A client whose turn kills its process, as the kernel does when memory runs out."""

    def on_train(self, c, msg, site):
        if site.id == "p01" and msg.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from super().on_train(c, msg, site))


def test_a_killed_worker_is_named_and_the_others_end(tmp_path):
    with pytest.raises(PartialRun, match=r"worker process died.*vergence resume"):
        run_toy(tmp_path, Dies(local=LOCAL), people=6, workers=2)
    assert not children(os.getpid())


SCRIPT = """
import sys
from pathlib import Path
from vergence.core.conversation import fit
from vergence.core.local_training import LocalTraining
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

folder = RunDirectory(Path(sys.argv[1]), {"config": "script"})
folder.open()
run_rounds(FedAvg(local=LocalTraining(epochs=1000000)), ToyTask(Linear()),
        federation=People(people=4).load(), plan=Plan(rounds=9, workers=2, evaluate_every=0),
        folder=folder)
"""


@pytest.mark.slow
def test_workers_in_the_middle_of_a_long_turn_die_with_a_killed_parent(tmp_path):
    """No `__main__` guard, no hook: kill -9 of a plain script leaves nobody behind for 2 s."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "run")])
    try:
        deadline = time.monotonic() + 60
        while len(workers := children(parent.pid)) < 2 or not busy(workers):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.kill()
        parent.wait()
        gone = time.monotonic() + 2
        while alive := [pid for pid in workers if running(pid)]:
            assert time.monotonic() < gone, alive
            time.sleep(0.02)
    finally:
        parent.kill()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    if not tasks.exists():
        pytest.skip("needs /proc/PID/task/TID/children, which this system does not have")
    return [int(child) for child in tasks.read_text().split()]


def busy(pids: list[int]) -> bool:
    """Whether all have spent processor time of their own: they are at work."""
    spent = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return all(int(fields[11]) + int(fields[12]) > 5 for fields in spent)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("rounds", "workers", "many", "expected"),
    [
        (2, 0, False, InProcess),
        (2, 2, False, Forked),
        (2_000, 0, False, Forked),
        (2, 0, True, Forked),
    ],
    ids=["a short run", "workers asked for", "a long run", "people made on demand"],
)
def test_processes_are_started_where_they_pay(
    tmp_path, monkeypatch, rounds, workers, many, expected
):
    monkeypatch.setattr("vergence.engine.plan.cpu_count", lambda: 2)
    federation = Toy(people=3).load()
    if many:
        whole = list(federation.people.values())
        federation = replace(federation, people=Population(3, whole.__getitem__, "toy"))
    task, data = ToyTask(Linear(inputs=4)), LocalData(federation, federation)
    executor = ClientExecutor(FedAvg(local=LOCAL), task, data, RandomStream("pools"))
    runner = ClientRunner(executor, ClientStateStore(tmp_path, 0, executor.records))
    pool = worker_pool(runner, Plan(rounds=rounds, workers=workers), 3)
    pool.close()
    assert type(pool) is expected
