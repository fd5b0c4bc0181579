"""DP-SGD and pruning of a cut network: what one sample moves, what is counted, what is refused."""

import itertools
from dataclasses import replace

import pytest
import torch

from tests.engine.split.test_split import LOCAL, PEOPLE, SMALL, run, whole
from tests.engine.toys import mostly_slow
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.local_training import FRESH, LocalTraining
from vergence.core.params import Params
from vergence.core.requests import Step
from vergence.core.stages import PULL, SMASHED
from vergence.engine import compatibility_check
from vergence.engine.compatibility import agree
from vergence.engine.plan import Plan
from vergence.engine.protections.dp_split import SplitDpHooks
from vergence.engine.protections.setup import check_privacy, protections
from vergence.engine.split_session import ServerSession
from vergence.errors import ConfigError
from vergence.experiment.privacy.spent import spent_block
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.base import unpack
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.privacy.config import DpSgd, Privacy, SecureAggregationConfig
from vergence.privacy.dp import private_step
from vergence.privacy.dp.private_step import PrivateGradients
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.privacy.secure_aggregation.masking import SEED
from vergence.privacy.split.defense import NoPeekCut, PixelCut
from vergence.privacy.split.output_range import OutputRange
from vergence.privacy.split.split_guard import SplitGuardConfig
from vergence.training.pruning import Gradual
from vergence.training.steps import Trainer

METHODS = (SplitFed, SplitFedV2, SplitLearning)
PLAIN = LocalTraining(
    epochs=1, batch=64, optimizer="sgd", lr=1.0, momentum=0.0, weight_decay=0.0, clip=0.0
)
KEY = NoiseKey(bytes(SEED))


def solver(**options):
    return Privacy(solver=DpSgd(**{"clip": 0.05, "noise": 20.0, "delta": 1e-3, **options}))


def two_people(odd: bool) -> Federation:
    """Two people, of whose samples the first is another one, that pulls hard, if it is odd."""
    people = {}
    for name in ("p00", "p01"):
        splits = PEOPLE.people[name]
        columns = {key: column[:32].clone() for key, column in splits.train.columns.items()}
        if odd and name == "p00":
            columns["image"][0], columns["gaze"][0] = 255 - columns["image"][0], -3.0
        people[name] = replace(splits, train=Samples(columns))
    return Federation("two", people)


def mean_alone(flat, _, expected, __):
    """A private mean without its noise."""
    return flat.div_(expected)


def released(path, method, people, **privacy):
    """What somebody who gets the model sees: all parameters after one round of one step."""
    return whole(run(path, method, people, rounds=1, privacy=solver(**privacy)).server)


@pytest.mark.parametrize("method", mostly_slow(METHODS, SplitFed))
def test_one_sample_moves_both_halves_by_twice_the_clip_at_most(method, tmp_path, monkeypatch):
    """Rate 1, one step of rate 1: another sample in its place moves the sum by 2 C, n of them.

    Averages of two people halve that. Without private steps of the server it is more.
    """
    monkeypatch.setattr(private_step, "noised", mean_alone)
    method, people = method(local=PLAIN), [two_people(False), two_people(True)]
    size = len(people[0].people["p00"].train)

    def apart(folder):
        one, other = (
            released(tmp_path / f"{folder}{at}", method, data) for at, data in enumerate(people)
        )
        return float((one - other).norm()) * size

    bound = 2 * 0.05 * (1.0 if isinstance(method, SplitLearning | SplitFedV2) else 0.5) * 1.01
    assert 0.01 < apart("private") <= bound
    monkeypatch.delattr(SplitDpHooks, "serving")
    assert apart("front alone") > 2 * bound


def test_whoever_gets_the_model_cannot_tell_which_sample_was_in_it(tmp_path, monkeypatch):
    """The attacker knows all samples but one, both models without noise, and looks along their
    difference: 2 C / n of a model whose noise has 20 C / n. Of 12 pairs she tells few apart; where
    the server's half steps without noise, all."""
    seeds = itertools.count(1)
    new_seed = lambda: next(seeds).to_bytes(32, "big")  # noqa: E731
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", new_seed)
    method, people = SplitFed(local=PLAIN), [two_people(False), two_people(True)]

    def without_noise(folder):
        with monkeypatch.context() as patched:
            patched.setattr(private_step, "noised", mean_alone)
            return [released(tmp_path / f"{folder}{i}", method, d) for i, d in enumerate(people)]

    def told(folder):
        right = 0
        for at in range(12):
            seen = [
                released(tmp_path / f"{folder}{at}.{i}", method, data)
                for i, data in enumerate(people)
            ]
            along = (bare[1] - bare[0]) * mask
            right += int(float(along @ seen[1]) > float(along @ seen[0]))
        return right

    front = method.front(SMALL).init().layout.n
    bare = without_noise("bare")
    mask = torch.ones_like(bare[0])
    assert 2 <= told("private") <= 10
    mask[:front] = 0  # she looks where there is no noise
    monkeypatch.delattr(SplitDpHooks, "serving")
    bare = without_noise("half")
    assert told("front alone") == 12


def test_without_noise_and_with_room_a_private_step_is_a_plain_one():
    method, rows = SplitFed(local=LOCAL), torch.arange(9)
    batch = PEOPLE.people["p00"].train.take(rows)
    front, back = method.parts(SMALL)
    smashed = front.forward(front.module(), batch).detach()
    told = {SMASHED: smashed, "gaze": batch["gaze"], "pose": batch["pose"]}
    pull = torch.randn(smashed.shape, generator=torch.Generator().manual_seed(0)) / 9
    for piece, given, wrt in ((back, told, SMASHED), (front, {**batch, PULL: pull}, None)):
        start = piece.init()
        ask = Step(start.copy(), FRESH, given, PLAIN, lambda _, piece=piece: piece, wrt)
        plain = Trainer(piece).step(ask)
        private = PrivateGradients(1e6, 0.0, 9.0, KEY)
        found = Trainer(piece).step(replace(ask, params=start.copy(), gradients=private))
        torch.testing.assert_close(found.params.flat, plain.params.flat, atol=1e-5, rtol=1e-4)
        assert found.loss is None
        if wrt is not None:
            torch.testing.assert_close(found.gradient, plain.gradient, atol=1e-6, rtol=1e-4)


def test_batches_are_drawn_by_chance_and_may_be_empty(tmp_path, monkeypatch):
    """One sample is expected: a third of the batches are empty, and come all the same."""
    plain, sizes = ServerSession._accept, []

    def hears(self, served, message, done, like):
        sealed = plain(self, served, message, done, like)
        if list(sealed.trees.get("labels", {}) and sealed.trees["labels"].total) != ["examples"]:
            sizes.append(len(unpack(sealed.trees["smashed"].total)))
        return sealed

    monkeypatch.setattr(ServerSession, "_accept", hears)
    people = two_people(False)
    samples = sum(len(splits.train) for splits in people.people.values())
    local = replace(PLAIN, batch=1, lr=0.01)
    outcome = run(tmp_path, SplitFed(local=local), people, rounds=1, privacy=solver())
    assert len(sizes) == samples
    assert 0.2 < sizes.count(0) / samples < 0.55
    assert max(sizes) > 1
    assert bool(torch.isfinite(whole(outcome.server)).all())


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


@pytest.mark.slow
def test_engines_agree_and_secrets_do_not(tmp_path, request):
    two = run(tmp_path / "other", SplitFed(local=LOCAL), privacy=solver(noise=1.0)).fingerprint
    request.getfixturevalue("same_secret")
    one = run(tmp_path / "one", SplitFed(local=LOCAL), privacy=solver(noise=1.0)).fingerprint
    for name, how in {"bytes": {"engine": "bytes"}, "two": {"workers": 2}}.items():
        plan = {"privacy": solver(noise=1.0), **how}
        assert run(tmp_path / name, SplitFed(local=LOCAL), **plan).fingerprint == one
    assert two != one


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_is_spent_is_what_was_promised(method, tmp_path):
    """Two rounds of 2 epochs: of every client as many steps as without, at rate batch / n."""
    method, policy = method(local=LOCAL), DpSgd(epsilon=4.0, delta=1e-3)
    plan = Plan(rounds=2, workers=1, privacy=Privacy(solver=policy))
    (promise, *_) = protections(plan)[0].forecast(ProtectedRun(method, SMALL, PEOPLE, 2))
    assert "whoever sees trained layers and no smashed data" in promise.text
    assert "not from the main server" in promise.text
    run(tmp_path, method, privacy=plan.privacy)
    for client in PEOPLE.clients:
        book = ReleaseLog(tmp_path / "state" / FOLDER / f"seed0.client.{client}.csv")
        size = len(PEOPLE.people[client].train)
        assert [entry.steps for entry in book.entries] == [2 * -(-size // 16)] * 2
        assert book.ledger.epsilon(policy.delta) <= 4.0 * (1 + 1e-6)
    told = spent_block(plan, ProtectedRun(method, SMALL, PEOPLE, 2, tmp_path / "state"))["sample"]
    assert told["epsilon"] == pytest.approx(promise.guarantee.epsilon, rel=1e-3)
    assert "no smashed data" in told["against"]


def test_noise_on_the_clients_half_alone_promises_nothing(tmp_path, monkeypatch):
    """As the thesis prints it: the server's layers step as without noise, and no epsilon is given
    for a sample where there is a promise. One sample moves the front by the clip at most."""
    monkeypatch.setattr(private_step, "noised", mean_alone)
    method, people = SplitFed(local=PLAIN), [two_people(False), two_people(True)]
    one, other = (
        released(tmp_path / f"{at}", method, data, halves="client")
        for at, data in enumerate(people)
    )
    front, size = method.front(SMALL).init().layout.n, len(people[0].people["p00"].train)
    moved = (one - other) * size
    assert 0.01 < float(moved[:front].norm()) <= 0.05 * 1.01
    assert float(moved[front:].norm()) > 2 * 0.05

    plan = Plan(rounds=1, workers=1, privacy=solver(halves="client"))
    guard = protections(plan)[0]
    parts = ProtectedRun(method, SMALL, PEOPLE, 1, tmp_path / "0" / "state")
    promised = guard.forecast(parts)
    assert all(each.guarantee is None for each in promised)
    assert "clients' layers alone: this promises nothing" in promised[0].text
    assert any("this promises nothing" in each.text for each in guard.statements(parts))
    assert "promises nothing" in spent_block(plan, parts)["sample"]["only"]


def test_noise_on_half_of_a_network_that_is_not_cut_is_refused():
    with pytest.raises(ConfigError, match="fedavg trains a whole one; leave it out, or use"):
        check_privacy(FedAvg(local=LOCAL), SMALL, PEOPLE, Plan(privacy=solver(halves="client")))


def test_no_loss_is_told(tmp_path):
    run(tmp_path, SplitFed(local=LOCAL), privacy=solver(noise=1.0))
    assert "loss" not in (tmp_path / "turns.csv").read_text().partition("\n")[2]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (SplitFedU(local=LOCAL, cut="conv1", last="fc1"), "use split, splitfed or splitfed_v2"),
        (LocalLossSplit(local=LOCAL), "use split, splitfed or splitfed_v2"),
        (SmashedAverage(local=LOCAL), "use split, splitfed or splitfed_v2"),
        (SplitFed(local=LOCAL, number="int8"), "leave out `number`"),
    ],
)
def test_halves_that_step_in_other_ways_are_refused(method, said):
    with pytest.raises(ConfigError, match=said):
        compatibility_check.check(Plan(privacy=solver()), method, SMALL)


@pytest.mark.parametrize(
    "other",
    [
        {"cut": NoPeekCut(0.1)},
        {"split_guard": SplitGuardConfig()},
        {"output_range": OutputRange("p00")},
    ],
)
def test_what_mixes_samples_is_refused_beside_it(other):
    with pytest.raises(ConfigError, match=r"privacy\.solver"):
        agree(Plan(privacy=replace(solver(), **other)))


def test_a_deployment_is_refused():
    plan = Plan(rounds=1, privacy=solver())
    elsewhere = ProtectedRun(SplitFed(local=LOCAL), SMALL, PEOPLE, 1, here=False)
    with pytest.raises(ConfigError, match="a deployment's server has no secret"):
        protections(plan)[0].forecast(elsewhere)


@pytest.mark.parametrize("method", [*METHODS, SplitFedU, LocalLossSplit])
def test_each_half_is_pruned_by_itself(method, tmp_path):
    """Of every layer half of the weights: as `pruning` with scope local does to a whole network."""
    pruning = Gradual(0.5, layers="both")
    options = {"cut": "conv1", "last": "fc1"} if method is SplitFedU else {}
    outcome = run(tmp_path, method(local=LOCAL, **options), pruning=pruning)
    server = outcome.server
    parts = [server.front, server.tail, *([server.end] if hasattr(server, "end") else [])]
    for part in parts:
        for name, values in ((n, part[n]) for n in part if n.endswith("weight")):
            if name in dict(SMALL.module().named_parameters()):
                zeros = int((values.abs() < 1e-7).sum())
                assert zeros == round(0.5 * values.numel()), name


def test_pruning_of_a_cut_network_is_fedavgs(tmp_path):
    """Before the averages: both prune the same entries, and train what is left alike."""
    pruning = Gradual(0.5, layers="both")
    split = run(tmp_path / "split", SplitFed(local=LOCAL), pruning=pruning)
    fed = run(tmp_path / "fed", FedAvg(local=LOCAL, weights="equal"), pruning=pruning)
    torch.testing.assert_close(whole(split.server), fed.server.model.flat, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{"scope": "global"}, {"structured": True}])
def test_pruning_across_the_cut_is_refused(options):
    plan = Plan(pruning=Gradual(0.5, **options))
    with pytest.raises(ConfigError, match="each of which prunes its own layers"):
        compatibility_check.check(plan, SplitFed(local=LOCAL), SMALL)


def test_all_four_defences_train_together(tmp_path):
    """DP-SGD, Laplace noise, sums among three aggregators, pruning: the thesis's whole defence."""
    privacy = Privacy(
        solver=DpSgd(noise=1.0, delta=1e-3),
        cut=PixelCut(0.2),
        aggregation=SecureAggregationConfig(
            "additive", aggregators=("one", "two", "three"), min_contributors=3
        ),
    )
    plan = {"privacy": privacy, "pruning": Gradual(0.5, layers="both")}
    method = SplitFed(local=LOCAL, cut="conv1")
    check_privacy(method, SMALL, PEOPLE, Plan(rounds=2, **plan))
    outcome = run(tmp_path, method, **plan)
    where = ProtectedRun(method, SMALL, PEOPLE, 2, tmp_path / "state")
    kinds = spent_block(Plan(rounds=2, **plan), where)
    assert {"sample", "pixel"} <= kinds.keys()
    assert 0 < kinds["sample"]["epsilon"] < 20
    zeros = float((whole(outcome.server).abs() < 1e-7).float().mean())
    assert 0.4 < zeros < 0.6
    assert Params.join(outcome.server.front, outcome.server.tail)
