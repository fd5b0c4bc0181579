"""Defences at the cut as settings of a run: what leaves, what is spent, what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.engine.split.test_split import LOCAL, PEOPLE, SMALL, run, whole
from tests.engine.toys import STAMP, dying_in, table
from tests.lines import Line
from vergence.core.client import ClientContext
from vergence.core.local_training import FRESH, LocalTraining
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Forward, Step
from vergence.core.stages import PULL
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.deployment.client_node import ClientNode
from vergence.deployment.remote_clients import remote_people, remote_pool
from vergence.engine import compatibility_check, round_loop
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.plan import Plan
from vergence.engine.protections import split_defense
from vergence.engine.protections.setup import check_privacy, protections
from vergence.engine.protections.split_defense import DefendedTrainer, outlook, sweeps
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.privacy.spent import spent_block
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.base import unpack
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_u import SplitFedU
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.lenet import LeNet
from vergence.privacy.config import Privacy
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.release_log import FOLDER
from vergence.privacy.split.defense import BottleneckCut, NoPeekCut, PixelCut, gain
from vergence.privacy.split.nopeek import distance_correlation
from vergence.privacy.split.pixel_dp import sensitivity
from vergence.privacy.split.sent_images import Released, book_of
from vergence.tasks.gaze_angle import GazeAngle

METHODS = (SplitFed, SplitFedV2, SplitFedU, SplitLearning)
NARROW = Privacy(cut=BottleneckCut(epsilon=8.0))
DEFENCES = {
    "conv3": NARROW,
    "conv2": Privacy(cut=NoPeekCut(0.5)),
    "conv1": Privacy(cut=PixelCut(0.5)),
}


@pytest.fixture
def same_secret(monkeypatch):
    """Secrets from the system would make two runs differ, as they should."""
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


@pytest.fixture
def heard(monkeypatch):
    """Smashed data as they reach the server: (client, round, samples)."""
    plain, found = ServerSession._accept, []

    def hears(self, served, message, done, like):
        sealed = plain(self, served, message, done, like)
        if "smashed" in sealed.trees:
            found.append((served.task.client, self.round, unpack(sealed.trees["smashed"].total)))
        return sealed

    monkeypatch.setattr(ServerSession, "_accept", hears)
    return found


def guard(defence, method, tmp_path, task=SMALL, **plan):
    plan = Plan(**{"rounds": 1, "privacy": Privacy(cut=defence), **plan})
    return split_defense.defended_trainer(plan, method, task, PEOPLE, tmp_path)


def books(folder, defence=NARROW.cut):
    return {
        c: Released(folder / "state" / FOLDER / book_of(0, c), defence.cost) for c in PEOPLE.clients
    }


@pytest.mark.parametrize("method", METHODS)
def test_what_leaves_a_client_is_clipped_before_its_noise(method, tmp_path, heard):
    """With next to no noise: nobody's vector is longer than the bound, most have just that."""
    privacy = Privacy(cut=BottleneckCut(clip=0.05, noise=1e-6))
    run(tmp_path, method(local=LOCAL, cut="conv3"), privacy=privacy)
    norms = torch.cat([values.flatten(1).norm(dim=1) for _, _, values in heard if len(values)])
    assert len(norms) == 2 * 2 * sum(len(s.train) for s in PEOPLE.people.values())
    assert float(norms.max()) <= 0.05 * (1 + 1e-4)
    assert float((norms > 0.0499).float().mean()) > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_the_norm_of_the_first_layer_is_at_most_one_after_every_step(method, tmp_path, monkeypatch):
    plain, norms = DefendedTrainer.answer, []

    def measured(self, ask, turn, then):
        answer = plain(self, ask, turn, then)
        if ask.on(self.task) == self.front:
            weight = ask.params["conv1.weight"]
            conv = torch.nn.Conv2d(*weight.shape[1::-1], 3, padding=1)
            conv.weight.data = weight
            norms.append((isinstance(ask, Step), sensitivity(conv, 9, 15)))
        return answer

    monkeypatch.setattr(DefendedTrainer, "answer", measured)
    method = method(local=replace(LOCAL, lr=0.05), cut="conv1")
    run(tmp_path, method, privacy=DEFENCES["conv1"])
    assert len([1 for step, _ in norms if step]) > 10
    assert all(1 - 2e-5 < norm <= 1 for _, norm in norms)


@pytest.mark.slow
def test_the_term_of_nopeek_is_in_the_step(tmp_path):
    """One plain step: w - lr * d(<z, pull> + 3 dCor(x, z)) / dw, by the closed form."""
    local = LocalTraining(optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0)
    method = SplitFed(local=local, cut="conv2")
    found = guard(NoPeekCut(3.0), method, tmp_path)
    front, rows = method.front(SMALL), torch.arange(9)
    batch, start = PEOPLE.people["p00"].train.take(rows), front.init()
    pull = torch.randn(9, 6, 5, 8, generator=torch.Generator().manual_seed(0))
    module = front.module()
    z, x = front.forward(module, batch), SMALL.inputs(batch)[0]
    ((z * pull).sum() + 3 * distance_correlation(x, z)).backward()
    expected = start - gradient_of(module) * 0.1
    ask = Step(start.copy(), FRESH, {**batch, PULL: pull}, local, method.front)
    done = found.answer(ask, turn("p00"), nothing)
    torch.testing.assert_close(done.params.flat, expected.flat)
    sent = found.answer(Forward(start, batch, method.front, rows), turn("p00"), nothing)
    torch.testing.assert_close(sent, z.detach())  # nopeek adds no noise


def test_gradients_go_through_the_clip(tmp_path):
    local = LocalTraining(optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0)
    method = SplitFed(local=local, cut="conv3")
    found = guard(BottleneckCut(clip=0.05, noise=1.0), method, tmp_path)
    front = method.front(SMALL)
    batch, start = PEOPLE.people["p00"].train.take(torch.arange(4)), front.init()
    pull = torch.randn(4, 6, 3, 6, generator=torch.Generator().manual_seed(0))
    module = front.module()
    z = front.forward(module, batch)
    norm = z.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    (z * (0.05 / norm).clamp(max=1) * pull).sum().backward()
    expected = start - gradient_of(module) * 0.1
    ask = Step(start.copy(), FRESH, {**batch, PULL: pull}, local, method.front)
    torch.testing.assert_close(found.answer(ask, turn("p00"), nothing).params.flat, expected.flat)


def turn(client):
    data = PEOPLE.people[client]
    site = ClientContext(client, data.train, data.val, SMALL, 0, RandomStream("run", 0))
    return SimpleNamespace(site=site)


def nothing(_):
    raise AssertionError("what is asked of a client's own layers is answered at the cut")


def gradient_of(module):
    for parameter in module.parameters():
        parameter.data = parameter.grad
    return Params.of(module)


@pytest.mark.usefixtures("same_secret")
@pytest.mark.parametrize(
    ("cut_at", "method"),
    [
        ("conv3", SplitFed),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("conv2", SplitLearning), ("conv1", SplitFedU))
        ),
    ],
)
def test_workers_and_bytes_give_the_same_bits(method, cut_at, tmp_path):
    ways = {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}
    method = method(local=LOCAL, cut=cut_at)
    runs = [
        run(tmp_path / name, method, privacy=DEFENCES[cut_at], evaluate_every=1, **how)
        for name, how in ways.items()
    ]
    assert len({outcome.fingerprint for outcome in runs}) == 1
    told = [table(tmp_path / name, "people.csv") for name in ways]
    assert told[0] == told[1] == told[2]


@pytest.mark.usefixtures("same_secret")
def test_clients_elsewhere_have_guards_and_books_of_their_own(tmp_path):
    """A new home for every request; the bits are the simulator's where the secret is."""
    method, plan = SplitFedU(local=LOCAL, cut="conv3"), Plan(rounds=2, privacy=NARROW)
    expected = run(tmp_path / "one", method, privacy=NARROW)

    class Homes(Line):
        def ask(self, client, request):
            own, folder = PEOPLE.only((client,)), tmp_path / "homes" / client
            folder.mkdir(parents=True, exist_ok=True)
            guard = split_defense.defended_trainer(plan, method, SMALL, own, folder)
            worker = ClientExecutor(
                method,
                SMALL,
                LocalData(own, own),
                RandomStream("run", 0),
                hooks=() if guard is None else (guard,),
            )
            runner = ClientRunner(worker, ClientStateStore(folder, 0, worker.records))
            return ClientNode(runner, client, plan=plan).answer(request)

    server = RunDirectory(tmp_path / "server", STAMP, elsewhere=True)
    server.open()
    counts = {client: len(s.train) for client, s in PEOPLE.people.items()}
    plan = replace(plan, evaluate_every=0, solver="sequential")
    found = round_loop.run_rounds(
        method,
        SMALL,
        federation=remote_people("eyes", counts),
        plan=plan,
        folder=server,
        pool_factory=remote_pool(Homes()),
    )
    assert found.fingerprint == expected.fingerprint
    for client in PEOPLE.clients:
        books = list((tmp_path / "homes" / client / FOLDER).glob("seed0.cut.*.csv"))
        assert [book.name for book in books] == [book_of(0, client)]
    assert not (tmp_path / "server" / "state" / FOLDER).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut_at", "method"), [("conv3", SplitFedU), ("conv3", SplitLearning), ("conv1", SplitFedV2)]
)
def test_a_run_that_goes_on_draws_the_same_noise_and_releases_nothing_twice(
    cut_at, method, tmp_path
):
    """Killed after everything of round 2 was sent and before its checkpoint."""
    method, privacy = method(local=LOCAL, cut=cut_at), DEFENCES[cut_at]
    whole = run(tmp_path / "whole", method, privacy=privacy)
    part = tmp_path / "part" / "state" / FOLDER
    part.mkdir(parents=True)
    secret = (tmp_path / "whole" / "state" / FOLDER / "secret").read_bytes()
    (part / "secret").write_bytes(secret)
    (part / "secret").chmod(0o600)
    with dying_in(2):
        run(tmp_path / "part", method, privacy=privacy)
    before = {path.name: path.read_bytes() for path in part.iterdir()}
    assert run(tmp_path / "part", method, privacy=privacy).fingerprint == whole.fingerprint
    assert {path.name: path.read_bytes() for path in part.iterdir()} == before
    assert table(tmp_path / "part", "people.csv") == table(tmp_path / "whole", "people.csv")


@pytest.mark.slow
def test_another_run_has_another_noise_and_a_run_without_a_defence_none(tmp_path):
    method = SplitFed(local=LOCAL, cut="conv3")
    one, two = (run(tmp_path / n, method, privacy=NARROW).fingerprint for n in "ab")
    assert one != two
    plain = run(tmp_path / "c", method)
    assert plain.fingerprint == run(tmp_path / "d", method, privacy=Privacy()).fingerprint
    assert not (tmp_path / "c" / "state" / FOLDER).exists()


def test_every_epoch_is_a_release_and_the_book_adds_up_to_the_budget(tmp_path):
    """Two rounds of two epochs: four releases of a picture, which spend epsilon 8 together."""
    plan, method = Plan(rounds=2, privacy=NARROW), SplitFedU(local=LOCAL, cut="conv3")
    run(tmp_path, method, privacy=NARROW)
    noise = outlook(plan, method, SMALL, PEOPLE).noise_spec.multiple
    assert gaussian_epsilon(2 / noise, 1e-5) == pytest.approx(8, rel=1e-6)
    for book in books(tmp_path).values():
        assert book.most == pytest.approx(4 / noise**2)
        assert min(book.costs.values()) == book.most
    told = spent_block(plan, ProtectedRun(method, SMALL, PEOPLE, 2, tmp_path / "state"))["picture"]
    assert told["epsilon"] == pytest.approx(8, rel=1e-6)
    assert "updates of the clients' layers" in told["only"]


def test_frozen_layers_stand_still_and_a_picture_is_one_release(tmp_path, heard):
    frozen = BottleneckCut(epsilon=8.0, frozen=True)
    method = SplitFed(local=LOCAL, cut="conv3")
    outcome = run(tmp_path, method, privacy=Privacy(cut=frozen), rounds=3)
    assert torch.equal(outcome.server.front.flat, method.front(SMALL).init().flat)
    multiple = frozen.noise_spec(1, 1.0).multiple
    for client, book in books(tmp_path, frozen).items():
        assert book.most == pytest.approx(multiple**-2)
        assert len(book.costs) == len(PEOPLE.people[client].train)
    rounds = [
        torch.cat([v for c, r, v in heard if c == "p01" and r == at and len(v)]) for at in (0, 1, 2)
    ]
    size = len(rounds[0]) // 2
    firsts = [set(map(tuple, sent[:size].flatten(1).tolist())) for sent in rounds]
    assert firsts[0] == firsts[1] == firsts[2]  # every picture with its one noise


def test_pixel_noise_is_told_per_unit_of_change(tmp_path):
    """l = 0.5, four releases: epsilon 8 for a pixel; noise of 0.5 x 4, the task's gain."""
    plan, method = Plan(rounds=2, privacy=DEFENCES["conv1"]), SplitFed(local=LOCAL, cut="conv1")
    assert gain(SMALL, PEOPLE.people["p00"].train) == pytest.approx(4)
    assert outlook(plan, method, SMALL, PEOPLE).noise_spec.scale == pytest.approx(2)
    run(tmp_path, method, privacy=DEFENCES["conv1"])
    told = spent_block(plan, ProtectedRun(method, SMALL, PEOPLE, 2, tmp_path / "state"))
    assert told["pixel"]["epsilon"] == pytest.approx(8)


def test_a_picture_is_not_sent_beyond_its_budget(tmp_path, monkeypatch):
    """Foreseen before the run; and at the client, where the server asks for more than it said.

    Eight releases, each of noise 2 C against a move of 2 C: mu = sqrt(8), epsilon 15.5.
    """
    tight = Privacy(cut=BottleneckCut(noise=2.0, epsilon=8.0))
    method = SplitFed(local=LOCAL, cut="conv3")
    with pytest.raises(ConfigError, match=r"sent 8 times, .* spends epsilon 15.5, and 8 is allow"):
        check_privacy(method, SMALL, PEOPLE, Plan(rounds=4, privacy=tight))
    plain = split_defense.outlook
    monkeypatch.setattr(
        split_defense, "outlook", lambda *asked: plain(replace(asked[0], rounds=1), *asked[1:])
    )
    run(tmp_path, method, privacy=NARROW, rounds=2)
    status = [r["status"] for r in table(tmp_path, "turns.csv") if r["round"] == "2"]
    assert status
    assert all("quarantined: budget: a picture sent again would" in line for line in status)


def test_predictions_pass_the_cut(tmp_path):
    """Clipped to nothing and in no noise, every picture is predicted alike."""
    method = SplitFed(local=LOCAL, cut="conv3")
    found = guard(BottleneckCut(clip=1e-9, noise=1e-3), method, tmp_path)
    task = GazeAngle(replace(SMALL.network, pose=False))
    module = task.module().eval()
    found.attach(module)
    output = task.forward(module, PEOPLE.people["p00"].test.take(slice(0, 5)))
    torch.testing.assert_close(output, output[:1].expand(5, 2))


@pytest.mark.parametrize(
    ("local", "samples", "sent"),
    [
        (LocalTraining(optimizer="sgd", epochs=3), 100, 3),
        (LocalTraining(optimizer="sgd", steps=7, batch=32), 100, 2),
        (LocalTraining(optimizer="sgd", steps=8), 100, 2),
        (LocalTraining(optimizer="sgd", steps=9, batch=32), 100, 3),
    ],
)
def test_how_often_a_picture_is_sent_in_a_round(local, samples, sent):
    assert sweeps(local, samples) == sent


@pytest.mark.usefixtures("same_secret")
@pytest.mark.parametrize(("where", "defence"), [("conv3", NARROW.cut), ("conv1", PixelCut(0.5))])
def test_layers_that_never_learn_release_a_picture_once(where, defence, tmp_path):
    """Two rounds of two passes: the same vectors with the same noise, whoever works."""
    method = SmashedAverage(local=LOCAL, cut=where)
    ways = {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}
    runs = [
        run(tmp_path / name, method, privacy=Privacy(cut=defence), **how)
        for name, how in ways.items()
    ]
    assert len({r.fingerprint for r in runs}) == 1
    assert runs[0].fingerprint != run(tmp_path / "bare", method).fingerprint
    plan = Plan(rounds=2, privacy=Privacy(cut=defence))
    assert outlook(plan, method, SMALL, PEOPLE).releases == 1
    for client, book in books(tmp_path / "one", defence).items():
        assert set(book.sent) == set(list(book.sent)[:1]), client  # one state of the layers
        assert book.most == pytest.approx(
            defence.cost(outlook(plan, method, SMALL, PEOPLE).noise_spec.multiple)
        )


def checked(method, plan):
    compatibility_check.check(plan, method)
    check_privacy(method, SMALL, PEOPLE, plan)


def test_a_norm_of_each_filter_costs_as_many_times_as_there_are_filters(tmp_path):
    """Noise of the same size as with the whole norm; the network is weakened less."""
    cut = PixelCut(0.5, norm="filter")
    plan, method = Plan(rounds=2, privacy=Privacy(cut=cut)), SplitFed(local=LOCAL, cut="conv1")
    filters = len(method.front(SMALL).init()["conv1.weight"])
    spec = outlook(plan, method, SMALL, PEOPLE).noise_spec
    assert (spec.scale, spec.multiple) == (pytest.approx(2), pytest.approx(0.5 / filters))
    result = run(tmp_path, method, privacy=plan.privacy)
    each = whole(result.server)[: filters * 9].view(filters, 9).abs().sum(1)
    # The mean of several clients' filters, each of norm 1, is a little shorter.
    assert 0.99 < float(each.min()) <= float(each.max()) <= 1
    parts = ProtectedRun(method, SMALL, PEOPLE, 2, tmp_path / "state")
    assert spent_block(plan, parts)["pixel"]["epsilon"] == pytest.approx(8 * filters)
    (promise,) = protections(plan)[0].forecast(parts)
    assert f"epsilon {2 * filters:g} per unit of L1 change" in promise.text


@pytest.mark.parametrize(
    ("method", "table", "said"),
    [
        (FedAvg(), {"cut": {"name": "nopeek", "weight": 1}}, "stands where a network is cut, and"),
        (SmashedAverage(), {"cut": {"name": "nopeek", "weight": 1}}, "stay as they were drawn"),
        (LocalLossSplit(), {"cut": {"name": "bottleneck", "noise": 1}}, "gradient that comes back"),
        (
            SplitFed(cut="conv2"),
            {"cut": {"name": "pixel_dp", "level": 1}},
            "norm of one convolution, and here clients have conv1, conv2",
        ),
        (FedAvg(), {"output_range": {"root": "p00"}}, "the server of 'fedavg' sees none"),
        (SplitFed(), {"output_range": {"root": "p99"}}, "no client 'p99'"),
    ],
)
def test_what_a_defence_cannot_stand_at_is_refused(method, table, said):
    with pytest.raises(ConfigError, match=said) as error:
        checked(method, Plan(privacy=build_privacy(table)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"cut": "nopeek"}, "privacy.cut must be a table"),
        ({"cut": {"name": "bottlenek", "epsilon": 1}}, "did you mean 'bottleneck'"),
        ({"cut": {"name": "bottleneck"}}, "privacy.cut needs epsilon"),
        ({"cut": {"name": "bottleneck", "epsilon": -1}}, "epsilon must be >= 0.001"),
        ({"cut": {"name": "nopeek"}}, "'weight' must be given"),
        ({"cut": {"name": "pixel_dp", "level": 0}}, "level must be > 0"),
        ({"cut": {"name": "pixel_dp", "level": 1, "norm": "l1"}}, "norm must be"),
        ({"cut": {"name": "pixel_dp", "epsilon": 1}}, "unknown key 'epsilon'"),
        ({"output_range": {}}, "'root' must be given"),
        ({"output_range": {"root": "a", "widen": -1}}, "widen must be >= 0"),
    ],
)
def test_the_tables_are_checked(table, said):
    with pytest.raises(ConfigError, match=said):
        build_privacy(table)


def test_pooling_behind_the_convolution_is_let_through():
    """Pixels of 0 to 1 enter the network as -2 to 2."""
    task, people = GazeAngle(LeNet((3, 4))), EyeSynthetic(people=1, samples=40).load()
    seen = outlook(Plan(rounds=1, privacy=DEFENCES["conv1"]), SplitFed(), task, people)
    assert seen.noise_spec.scale == pytest.approx(0.5 * 4)
