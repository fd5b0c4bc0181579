"""What must hold of the personalised rivals in whole runs, on toy people and on eye crops.

Bytes are those of the methods design note, 0.4: b (n - n_local) up and down, b = 4. small_eye has
n = 22774 entries, by hand: 16 * 9 + 16 and 24 * 144 + 24 and 24 * 216 + 24 in its convolutions,
432 * 32 + 32 and 34 * 2 + 2 = 70 in its linear layers; the last is its head.
"""

from dataclasses import replace

import pytest
import torch

from tests.conformance.test_methods import transcript
from tests.engine.toys import table
from tests.scripts import PLAIN, Product, Two, pairs, summed, taught
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.ditto import Ditto
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedbabu import FedBABU
from vergence.methods.fedbn import FedBN
from vergence.methods.feddf import FedDF
from vergence.methods.fedgen import FedGen
from vergence.methods.fedpac import FedPAC
from vergence.methods.fedper import FedPer
from vergence.methods.fedrep import FedRep
from vergence.methods.lg_fedavg import LGFedAvg
from vergence.methods.local_only import LocalOnly
from vergence.models.linear import Linear
from vergence.models.resnet_preact import ResNetPreact
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
TASK = ToyTask(Linear(inputs=4))
PEOPLE = People(people=3, inputs=4).load()
N, HEAD = 22774, 70


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a method; its folder is at `go.path`."""

    def go(method, people=PEOPLE, task=TASK, rounds=3):
        go.path = tmp_path / f"{type(method).__name__}{len(list(tmp_path.iterdir()))}"
        folder = RunDirectory(go.path, {"config": "a"})
        folder.open()
        plan = Plan(rounds=rounds, evaluate_every=0, workers=1, solver="sequential")
        return run_rounds(method, task, federation=people, plan=plan, folder=folder)

    return go


def bits(params):
    return params.flat.numpy().tobytes()


def test_ditto_without_a_leash_is_local_training(run):
    """mu = 0: one's own model takes the steps of a solver left alone, a fresh optimiser a turn."""
    outcome, solver = run(Ditto(local=LOCAL, mu=0.0)), Solver(TASK)
    for client, splits in PEOPLE.people.items():
        params = TASK.init()
        for at in range(3):
            stream = RandomStream("run", 0, client, at, "train", "batches", 1)
            params = solver.fit(Fit(params, splits.train, LOCAL), stream).params
        assert bits(outcome.clients[client].params) == bits(params)
    leashed = run(Ditto(local=LOCAL, mu=1.0)).clients
    assert all(bits(leashed[c].params) != bits(s.params) for c, s in outcome.clients.items())


def test_ditto_without_a_leash_or_momentum_is_local_only(run):
    """Whole batches leave nothing to the order of samples but rounding."""
    local = replace(LOCAL, batch=1000, momentum=0.0)
    ours, alone = run(Ditto(local=local, mu=0.0)), run(LocalOnly(local=local))
    for client, state in alone.clients.items():
        assert torch.allclose(ours.clients[client].params.flat, state.params.flat, atol=1e-6)


def test_dittos_common_model_is_fedavg(run):
    plain = run(FedAvg(local=LOCAL)).server.model
    assert bits(run(Ditto(local=LOCAL, mu=3.0)).server.model) == bits(plain)


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        (FedPer(local=LOCAL), "weight"),
        (FedRep(local=LOCAL), "weight"),
        (FedBABU(local=LOCAL), "weight"),
        (LGFedAvg(local=LOCAL), "bias"),
    ],
)
def test_nothing_of_the_other_part_travels(method, sent, tmp_path):
    """The line's head is its bias: no message and no reply holds what stays."""
    seen = transcript(method, tmp_path)
    assert {request.verb for request, *_ in seen} == set(method.exposure)
    for _, _, message, sealed, _ in seen:
        for params in (*message.trees.values(), *(t.total for t in sealed.trees.values())):
            assert params.layout.names == (sent,)


def eyes(client: int, n: int = 6) -> Samples:
    generator = torch.Generator().manual_seed(client)
    image = torch.randint(256, (n, 1, 9, 15), generator=generator, dtype=torch.uint8)
    gaze = 0.2 * torch.randn(n, 2, generator=generator)
    return Samples({"image": image, "gaze": gaze, "pose": gaze.flip(1)})


CROPS = Federation(
    "crops", {c: Splits(eyes(i), eyes(i + 9), eyes(i + 18)) for i, c in enumerate("ab")}
)


def travelled(path, verb):
    """Return the (up, down) bytes of every client's turn, summed over trees."""
    sums = {}
    for row in table(path, "turns.csv"):
        if row["verb"] == verb:
            up, down = sums.get((row["round"], row["client"]), (0, 0))
            sums[row["round"], row["client"]] = (
                up + int(row["bytes_up"]),
                down + int(row["bytes_down"]),
            )
    return sums


@pytest.mark.parametrize(
    ("method", "entries", "end"),
    [
        (FedPer(), N - HEAD, False),
        (FedRep(head_epochs=1, final_epochs=1), N - HEAD, True),
        (FedBABU(tune_epochs=1), N - HEAD, True),
        (LGFedAvg(), HEAD, False),
    ],
)
def test_12_bytes_are_those_of_what_is_shared(run, method, entries, end):
    run(
        replace(method, local=LocalTraining(optimizer="sgd", batch=6)),
        CROPS,
        GazeAngle(SmallEye()),
        rounds=2,
    )
    found = travelled(run.path, "train")
    assert len(found) == 2 * 2
    assert set(found.values()) == {(4 * entries, 4 * entries)}
    assert set(travelled(run.path, "tune").values()) == ({(0, 4 * entries)} if end else set())


def test_12_bytes_of_fedpac(run):
    """Up b (n + K d) and b (K d + 1) and 4 K counts, K = 16 classes, d = 34 features.

    Down b (n + K d) and 4 K counts once there are class means, in the first of two requests.
    """
    k, d = 16, 34
    run(
        FedPAC(local=LocalTraining(optimizer="sgd", batch=6)),
        CROPS,
        GazeAngle(SmallEye()),
        rounds=2,
    )
    train, share = travelled(run.path, "train"), travelled(run.path, "share")
    up = {key: both[0] + share[key][0] for key, both in train.items()}
    assert set(up.values()) == {4 * (N + k * d) + 4 * (k * d + 1) + 4 * k}
    downs = sorted({down for _, down in train.values()})
    assert downs == [4 * N, 4 * (N + k * d + k)]


def test_12_bytes_of_methods_whose_server_learns(run):
    """Up b n, FedGen 4 K counts too; down b n, FedGen b (n + n_gen) and which of K it knows.

    n_gen: 32 + K inputs to 8, normalised, to 34 features.
    """
    k, made = 16, (32 + 16 + 1) * 8 + 2 * 8 + (8 + 1) * 34
    for method, up, down in (
        (FedGen(hidden=8, steps=1), N + k, N + made + k),
        (FedDF(steps=0), N, N),
    ):
        run(
            replace(method, local=LocalTraining(optimizer="sgd", batch=6)),
            CROPS,
            GazeAngle(SmallEye()),
            rounds=2,
        )
        assert set(travelled(run.path, "train").values()) == {(4 * up, 4 * down)}


@pytest.mark.parametrize(
    "method", [FedGen(steps=0), FedGen(alpha=0.0, beta=0.0, steps=1), FedDF(steps=0)]
)
def test_servers_that_learn_nothing_or_are_not_heard_are_fedavg(run, method):
    mine, theirs = (run(replace(m, local=LOCAL), PEOPLE, rounds=3) for m in (method, FedAvg()))
    assert torch.allclose(mine.server.model.flat, theirs.server.model.flat, atol=1e-6)


def test_fedbn_is_refused_where_there_is_no_norm():
    with pytest.raises(ConfigError, match="SmallEye has no normalisation layer"):
        FedBN().check(GazeAngle(SmallEye()))
    with pytest.raises(ConfigError, match="or method fedavg"):
        FedBN().check(TASK)


def test_fedbn_keeps_exactly_the_norms_of_a_residual_network(run):
    task = GazeAngle(ResNetPreact())
    norms = set(task.norms())
    FedBN().check(task)
    assert norms
    assert all("norm" in name for name in norms)
    outcome = run(FedBN(local=LocalTraining(optimizer="sgd", batch=6)), CROPS, task, rounds=1)
    assert set(outcome.server.model) == set(task.init()) - norms
    a, b = (outcome.clients[c].params for c in "ab")
    assert not torch.equal(a.only(norms).flat, b.only(norms).flat)
    shared = 4 * len(outcome.server.model.flat)
    assert set(travelled(run.path, "train").values()) == {(shared, shared)}


def test_alone_fedper_is_fedavg_bit_for_bit():
    """One client, numbers a computer holds exactly: b = 2, h = 1, y = 4, rate 1/4, two rounds.

    The server adds the update and so rounds its head, which FedPer's client does not: where
    numbers are not exact the two part in the last bit.
    """
    local, data, task = replace(PLAIN, lr=0.25), pairs((1, 4)), Product(Two())
    ends = []
    for method in (FedPer(local=local), FedAvg(local=local)):
        server, state = method.server(task), method.client(task)
        for at in range(2):
            offered = method.offer(server, "a")
            state, sealed = taught(method, task, state, offered, data, round=at)
            server = summed(method, server, [sealed], offered)
        message = method.offer(server, "a")
        ends.append(method.model_on(state, message, None))
    assert bits(ends[0]) == bits(ends[1])
    assert bits(ends[0]) != bits(task.init())


def test_alone_fedper_is_fedavg(run):
    """The first round's body bit for bit; later rounds start from heads a rounding apart."""
    one = replace(PEOPLE, people={"p00": PEOPLE.people["p00"]})
    for rounds in (1, 5):
        mine, theirs = (run(m(local=LOCAL), one, rounds=rounds) for m in (FedPer, FedAvg))
        body, whole = mine.server.model, theirs.server.model
        assert rounds > 1 or bits(body) == bits(whole.only(body))
        assert torch.allclose(body.flat, whole.only(body).flat, atol=1e-6)
        head = mine.clients["p00"].params["bias"]
        assert torch.allclose(head, whole["bias"], atol=1e-6)
