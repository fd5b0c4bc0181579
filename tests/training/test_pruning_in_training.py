"""Pruning while a run trains: what is trained and measured has exactly the zeros asked for."""

from dataclasses import replace

import pytest
import torch
from torch.nn.utils import prune

from tests.cli.commands import ONE, run, write
from tests.engine.learners import INPUTS, Mlp
from tests.engine.toys import LOCAL, Interrupt, run_toy, table, untimed
from vergence.core import files
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.pruning_hooks import PruningHooks
from vergence.errors import ConfigError
from vergence.experiment.provenance import config_digest
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.methods.centralised import Centralised
from vergence.methods.fedadam import FedAdam
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF
from vergence.methods.local_only import LocalOnly
from vergence.methods.split.splitfed import SplitFed
from vergence.results.read import read
from vergence.tasks.toy import ToyTask
from vergence.training.pruning import Gradual, bind_parameters
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

TASK = ToyTask(Mlp())
"""Weights 6 x 16 and 16 x 1, 16 biases between."""
ROUNDS = 5
HALF = Gradual(0.75, from_round=2, until_round=4)
GONE = {"0.weight": 72, "2.weight": 12}
"""Three quarters of 96 and of 16."""
ZEROS = (72 + 12) / (96 + 16 + 16)
METHODS = [
    FedAvg(local=LOCAL),
    FedAvg(local=LOCAL, weights="equal"),
    FedAdam(local=LOCAL),
    FedCPF(local=LOCAL, rate=0.1),
    LocalOnly(local=LOCAL),
    FedAvgFT(local=LOCAL, tune_epochs=1),
    Centralised(local=LOCAL),
]


def trained(path, method, pruning=HALF, **plan):
    plan = {"rounds": ROUNDS, "solver": "sequential", "evaluate_every": 1, **plan}
    return run_toy(path, method, task=TASK, inputs=INPUTS, pruning=pruning, **plan)


@pytest.fixture
def fits(monkeypatch):
    """Return a list that fills with what every fit started from and what it gave."""
    seen, honest = [], Solver.fit

    def fit(self, ask, *rest):
        fitted = honest(self, ask, *rest)
        seen.append((ask.params, fitted.params))
        return fitted

    monkeypatch.setattr(Solver, "fit", fit)
    return seen


def zeros(params):
    return {name: int((params[name] == 0).sum()) for name in GONE}


@pytest.mark.parametrize(
    ("round", "share"),
    [
        (0, 0.0),
        (1, 0.0),
        (2, 0.4625),
        (3, 0.7),
        (4, 0.7875),
        (5, 0.8),
        (9, 0.8),
    ],
)
def test_the_share_climbs_by_a_cubic(round, share):
    """0.8 over four rounds: 0.8 times 1 - (3/4)^3, 1 - (2/4)^3, 1 - (1/4)^3, 1."""
    ramp = Gradual(0.8, "both", "global", from_round=2, until_round=5)
    now = ramp.at(round)
    assert now.amount == pytest.approx(share, abs=1e-12)
    assert (now.layers, now.scope, now.structured) == ("both", "global", False)


def test_without_an_end_all_goes_at_once():
    assert [Gradual(0.3, from_round=2).at(r).amount for r in (1, 2, 3)] == [0.0, 0.3, 0.3]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_share_of_zeros_is_the_one_asked_for(method, tmp_path, fits):
    outcome = trained(tmp_path, method, points=("P0", "P1", "P2"))
    rows = [r for r in table(tmp_path, "people.csv") if r["metric"] == "zeros"]
    assert rows
    assert {float(r["value"]) for r in rows} == {ZEROS}
    # By rounds: 1 - (2/3)^3 = 19/27 and 1 - (1/3)^3 = 26/27 of 3/4 of 96 and 16, rounded.
    ramp = [
        float(r["value"])
        for r in table(tmp_path, "rounds.csv")
        if (r["metric"], r["evaluation"]) == ("zeros", "P0")
    ]
    assert ramp == [0, 0, (51 + 8) / 128, (69 + 12) / 128, ZEROS, ZEROS]
    for before, after in fits[-1 if method.pooled else -3 :]:
        assert zeros(before) == zeros(after) == GONE
        assert int(after["0.bias"].count_nonzero()) == 16
    people = People(inputs=INPUTS).load()
    worker = ClientExecutor(
        method,
        TASK,
        LocalData(people, people),
        RandomStream("test"),
        hooks=[PruningHooks(HALF, TASK)],
    )
    for person in people.clients:
        message = Message("evaluate", method.prediction_trees(outcome.server, person), round=ROUNDS)
        state = outcome.clients.get(person, method.client(TASK))
        site = worker.site(people, person, message)
        assert zeros(worker.predicting(state, message, site)) == GONE


@pytest.mark.parametrize(
    "method", [METHODS[1], LocalOnly(local=LOCAL)], ids=lambda m: type(m).__name__
)
def test_what_went_stays_away(method, tmp_path, fits):
    """From the last round of the ramp on: the same zeros of everybody, through every fit."""
    trained(tmp_path, method, rounds=8)
    rounds = [[after.flat == 0 for _, after in fits[i : i + 3]] for i in range(0, 24, 3)]
    for masks in rounds[4:]:
        for mask, first in zip(masks, rounds[3], strict=True):
            assert int(mask.sum()) == 84
            assert torch.equal(mask, first)
    assert not torch.equal(fits[-1][0].flat, fits[-1][1].flat)


def test_a_server_s_momentum_brings_zeros_back_and_they_go_again(tmp_path):
    """FedAdam's own model has few zeros; whoever is sent it trains and predicts without them."""
    server = trained(tmp_path, FedAdam(local=LOCAL)).server
    assert int((server.model.flat == 0).sum()) < 84


@pytest.mark.parametrize("scope", ["local", "global"])
def test_the_first_mask_is_torch_s(scope, tmp_path, fits):
    trained(tmp_path, FedAvg(local=LOCAL), Gradual(0.6, scope=scope))
    theirs = bind_parameters(TASK.module(), TASK.init())
    chosen = [(theirs.get_submodule(at), "weight") for at in ("0", "2")]
    if scope == "global":
        prune.global_unstructured(chosen, prune.L1Unstructured, amount=0.6)
    else:
        for layer, name in chosen:
            prune.l1_unstructured(layer, name, 0.6)
    for before, _ in fits[:3]:
        for name, (layer, _) in zip(GONE, chosen, strict=True):
            mask = layer.get_buffer("weight_mask")
            assert torch.equal(before[name], TASK.init()[name] * mask)


def test_the_first_neurons_that_go_are_torch_s(tmp_path, fits):
    trained(tmp_path, FedAvg(local=LOCAL), Gradual(0.5, structured=True))
    theirs = bind_parameters(TASK.module(), TASK.init()).get_submodule("0")
    prune.ln_structured(theirs, "weight", 0.5, n=1, dim=0)
    mask = theirs.get_buffer("weight_mask")
    assert torch.equal(fits[0][0]["0.weight"], TASK.init()["0.weight"] * mask)
    assert int((fits[-1][1]["0.weight"] == 0).all(1).sum()) == 8


def test_amount_0_is_no_pruning_to_the_bit(tmp_path):
    method = FedCPF(local=LOCAL, rate=0.1)
    plain = trained(tmp_path / "a", method, Gradual(0.0))
    assert "zeros" not in {r["metric"] for r in table(tmp_path / "a", "people.csv")}
    idle = trained(tmp_path / "b", method, Gradual(0.0, "both", "global", from_round=9))
    assert idle.fingerprint == plain.fingerprint
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")


def test_nothing_goes_before_the_first_round_of_the_ramp(tmp_path):
    method = FedAvg(local=LOCAL)
    trained(tmp_path / "a", method, Gradual(0.0))
    trained(tmp_path / "b", method, Gradual(0.9, from_round=4))
    early = [
        [r for r in untimed(tmp_path / run)["rounds.csv"] if int(r["round"]) < 4]
        for run in ("a", "b")
    ]
    assert early[0] == [r for r in early[1] if r["metric"] != "zeros"]
    assert {r["value"] for r in early[1] if r["metric"] == "zeros"} == {"0.0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [FedAdam(local=LOCAL), FedCPF(local=LOCAL, rate=0.1)], ids=lambda m: type(m).__name__
)
def test_workers_bytes_and_a_resumed_run_give_the_same_bits(method, tmp_path, monkeypatch):
    whole = trained(tmp_path / "a", method)
    assert trained(tmp_path / "b", method, workers=2).fingerprint == whole.fingerprint
    assert trained(tmp_path / "c", method, engine="bytes").fingerprint == whole.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(4, after=True))
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "d", method)
    assert trained(tmp_path / "d", method).fingerprint == whole.fingerprint
    for other in "bcd":
        assert untimed(tmp_path / other) == untimed(tmp_path / "a")


def test_a_stack_prunes_alike(tmp_path, monkeypatch):
    stacks, honest = [], Stacked.fit_all
    monkeypatch.setattr(
        Stacked, "fit_all", lambda *a, **k: stacks.append(len(a[1])) or honest(*a, **k)
    )
    one, other = (
        trained(tmp_path / solver, FedAvg(local=LOCAL), solver=solver, people=6)
        for solver in ("sequential", "stacked")
    )
    assert stacks
    assert min(stacks) > 1
    torch.testing.assert_close(one.server.model.flat, other.server.model.flat)
    assert torch.equal(one.server.model.flat == 0, other.server.model.flat == 0)


def test_zeros_travel_like_any_number(tmp_path):
    for name, pruning in (("a", Gradual(0.0)), ("b", Gradual(0.9))):
        trained(tmp_path / name, FedAvg(local=LOCAL), pruning)
    told = [
        [(r["bytes_up"], r["bytes_down"]) for r in table(tmp_path / name, "turns.csv")]
        for name in "ab"
    ]
    assert told[0] == told[1] == [("512", "512")] * len(told[0])


def test_a_run_reports_its_zeros_and_its_digest_knows_them(tmp_path):
    """The toy's line: two of four weights and a bias."""
    out = run(tmp_path, ONE, "pruning.amount=0.5", "pruning.until_round=2")
    assert read(out).runs[0].results["metrics"]["zeros"]["mean"] == pytest.approx(0.4)
    digests = {
        config_digest(load(write(tmp_path, ONE), [f"pruning.{given}"]).table)
        for given in ("amount=0.5", "amount=0.4", "amount=0")
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["pruning.amount=1.5"], "pruning: amount must be >= 0 and <= 1; got 1.5"),
        (["pruning.layers=conv"], "pruning: 'amount' must be given"),
        (["pruning.amont=0.5"], "unknown key 'amont'"),
        (["pruning.amount=0.5", "pruning.from_round=0"], "from_round must be >= 1; got 0"),
        (["pruning.amount=0.5", "pruning.until_round=9"], "reached in round 9, and the run has 3"),
        (
            ["pruning.amount=0.5", "pruning.from_round=3", "pruning.until_round=2"],
            "until_round must be from_round (3) or later; got 2",
        ),
        (
            ["pruning.amount=0.5", "pruning.structured=true", "pruning.scope=global"],
            "scope = 'local'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(given, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, ONE), given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_network_without_such_layers_is_refused_before_anything_is_trained(tmp_path):
    experiment = load(write(tmp_path, ONE), ["pruning.amount=0.5", "pruning.layers=conv"])
    with pytest.raises(ConfigError, match="has no trainable conv layer to prune"):
        start(experiment, tmp_path / "out")
    assert not (tmp_path / "out" / "config.toml").exists()


EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 2, samples = 40, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "splitfed"]
pruning    = { amount = 0.5 }
"""


def test_a_cut_network_pruned_across_the_cut_is_refused_before_anything_is_trained(tmp_path):
    said = r"method 'splitfed': SplitFed has a network in two hands, .* scope = 'local'"
    across = EYES.replace("amount = 0.5", 'amount = 0.5, scope = "global"')
    with pytest.raises(ConfigError, match=said):
        start(load(write(tmp_path, across)), tmp_path / "out")
    assert not (tmp_path / "out" / "config.toml").exists()
    with pytest.raises(ConfigError, match="SplitFed has a network in two hands"):
        trained(tmp_path / "one", SplitFed(local=LOCAL), replace(HALF, scope="global"))
