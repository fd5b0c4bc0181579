"""Hooks of protections on requests made up here: what they pass on, change, charge and refuse."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

from vergence.core.client import ClientContext
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, Reply
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, Forward, Mean, Step, StepResult
from vergence.core.stages import PULL
from vergence.engine.plan import Plan
from vergence.engine.protections import dp_sgd, split_guard
from vergence.engine.protections.built_in import BudgetedProtection, Spending, owner
from vergence.engine.protections.dp_sgd import DpSgdHooks, DpSgdProtection, refuse_overlap
from vergence.engine.protections.dp_split import SplitDpHooks
from vergence.engine.protections.private_masks import MaskProtection
from vergence.engine.protections.split_defense import (
    DefendedTrainer,
    DefenseForecast,
    SplitDefenseProtection,
)
from vergence.engine.protections.split_guard import SplitGuardHooks, SplitGuardProtection
from vergence.errors import ConfigError, StateError
from vergence.methods.split.base import ClientFront
from vergence.models.linear import Linear
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.dp_sgd import poisson
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent, TrainingPass
from vergence.privacy.dp.mask_budget import MaskBudget
from vergence.privacy.dp.private_step import mark
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, Release, ReleaseLog
from vergence.privacy.secure_aggregation.masking import SEED
from vergence.privacy.split.bottleneck import version
from vergence.privacy.split.defense import BottleneckCut, PixelCut
from vergence.privacy.split.sent_images import Released
from vergence.privacy.split.split_guard import FOUND, NOT_FOUND, SplitGuardConfig
from vergence.tasks.toy import ToyTask

pytestmark = pytest.mark.usefixtures("folder")
TASK = ToyTask(Linear(inputs=2))
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=4)
KEY = NoiseKey(bytes(SEED))
START = TASK.init()


@pytest.fixture
def folder(tmp_path):
    """The folder of release logs inside the folder of states."""
    (tmp_path / FOLDER).mkdir()
    return tmp_path / FOLDER


def samples(n):
    x = torch.arange(2.0 * n).reshape(n, 2)
    return Samples({"x": x, "y": x.sum(1)})


SITE = ClientContext("ann", samples(10), samples(4), TASK, 5, RandomStream("run", 0))


def whole(task):
    """The network that is not cut."""
    return task


STEP = Step(START, "state", {"x": torch.ones(3, 2)}, LOCAL, whole)


def turn(site=SITE, **more):
    message = Message("train", {}, round=5)
    return SimpleNamespace(
        site=site, message=message, batches=lambda: "batches", progress=0.5, **more
    )


@dataclass
class Solver:
    """Stands in for the solver of DP-SGD, and notes what it is asked."""

    secret: NoiseKey = KEY
    asked: list = field(default_factory=list)

    def mean(self, *given):
        self.asked.append(("mean", *given))
        return "mean"

    def train(self, *given):
        self.asked.append(("train", *given))
        return "trained"

    def noise(self, samples):
        return samples / 100

    def spend(self, *given):
        self.asked.append(("spend", *given))


POLICY = DpSgd(clip=3.0, noise=2.0)


def plain(ask):
    return "plain", ask


def test_dp_sgd_trains_and_averages_with_noise_and_looks_at_validation_samples_without():
    hooks, now = DpSgdHooks(POLICY, Solver()), turn()
    mean, fit = Mean(torch.ones(2, 2), 1.0), Fit(START, SITE.train, LOCAL)
    assert hooks.answer(mean, now, plain) == "mean"
    assert hooks.answer(fit, now, plain) == "trained"
    assert hooks.solver.asked == [("mean", SITE, mean), ("train", SITE, fit, "batches", 0.5)]
    look = Compute(START, SITE.val, "loss")
    assert hooks.answer(look, now, plain) == ("plain", look)
    for ask in (Compute(START, SITE.train, "loss"), STEP):
        with pytest.raises(ConfigError, match="'train' of this method also uses"):
            hooks.answer(ask, now, plain)
    # On a deployment's server nothing is trained.
    elsewhere = DpSgdHooks(POLICY, None)
    assert elsewhere.answer(fit, now, plain) == ("plain", fit)
    sent = Reply({"model": START}, 2.0, {"loss": 1.0})
    for each in (hooks, elsewhere, SplitDpHooks(POLICY, Solver(), None, {})):
        assert each.outgoing(sent, now) == POLICY.leaving(sent) != sent


def split_hooks(samples=10):
    method = SimpleNamespace(local=LOCAL)
    return SplitDpHooks(POLICY, Solver(), method, {"ann": samples, "bob": 20})


def test_a_step_of_both_halves_is_private_and_a_round_is_charged_once():
    """10 samples in batches of 4: rate .4, 2 x 3 steps; noise .1 and .2 are the stand-in's."""
    hooks = split_hooks()
    said, front = hooks.answer(STEP, turn(), plain)
    assert said == "plain"
    hooks.answer(STEP, turn(), plain)
    (charged,) = hooks.solver.asked
    assert charged == ("spend", "ann", Release("round 5", "round 5", 0.1, 0.4, 6), 10)
    assert hooks.entered == {("ann", 5)}
    tail = hooks.serving(STEP, "bob")
    for half, ask, client, deviation in (("front", front, "ann", 0.3), ("tail", tail, "bob", 0.6)):
        made = ask.gradients
        assert made.clip == pytest.approx(3 / math.sqrt(2))
        assert made.deviation == pytest.approx(deviation)
        assert made.expected == pytest.approx(4.0)
        own = KEY.child(half, client, mark(STEP))
        assert made.key.words(2).tolist() == own.words(2).tolist()
        assert ask.params is START
    other = Forward(START, {}, whole)
    assert hooks.serving(other, "bob") is other
    look = Compute(START, SITE.val, "loss")
    assert hooks.answer(look, turn(), plain) == ("plain", look)
    for ask in (Compute(START, SITE.train, "loss"), other):
        with pytest.raises(ConfigError, match="'train' of this method also uses"):
            hooks.answer(ask, turn(), plain)


def test_batches_of_a_cut_network_are_drawn_until_the_round_is_over():
    site = split_hooks().context(SITE)
    for at in range(6):
        key = KEY.child("batch", "ann", 5, at)
        assert site.draw(at).tolist() == poisson(10, 0.4, key.draws()).tolist()
    assert site.draw(6) is None
    assert len({tuple(site.draw(at).tolist()) for at in range(6)}) > 3


def test_windows_that_overlap_are_refused_by_the_persons_name(monkeypatch):
    people = {"ann": samples(3), "bob": samples(4)}
    parts = {n: Splits(s, s, s) for n, s in people.items()}
    refuse_overlap(Federation("f", parts))
    found = {id(people["ann"]): 1, id(people["bob"]): 2}
    monkeypatch.setattr(Samples, "overlap", lambda self: found[id(self)])
    with pytest.raises(ConfigError, match="one frame of 'bob' is in 2 of them"):
        refuse_overlap(Federation("f", parts))


# --- SplitGuard


class Watch:
    """Notes what the client's side of SplitGuard is asked; batch 3 gets false labels."""

    def __init__(self):
        self.asked = []

    def observe(self, *given):
        self.asked.append(given)

    def lies(self, client, round, number, of):
        return number == 3

    def leaving(self, *given):
        return given


def test_answers_are_matched_to_the_batches_that_wait_longest():
    """7 batches were sent, 4 and then 5 wait: the answers are to batches 3 and 2 (from 0)."""
    watch = Watch()
    hooks = SplitGuardHooks(watch, LOCAL)
    pull = torch.ones(3)
    ask = Step(START, "state", {PULL: pull}, LOCAL, whole)
    for waiting in (4, 5):
        before = ClientFront(waiting=(pull,) * waiting, batches_sent=7)
        done = hooks.answer(ask, turn(before=before), plain)
        if waiting == 4:
            assert done == StepResult(START, "state", 0.0)
            assert done.params is START
        else:
            assert done == ("plain", ask)
    assert [given[:4] for given in watch.asked] == [("ann", 5, 3, 6), ("ann", 5, 2, 6)]
    assert all(given[4] is pull for given in watch.asked)
    sent = Reply({}, 1.0, {})
    after = ClientFront(batches_sent=7)
    assert hooks.outgoing(sent, turn(after=after)) == ("ann", 5, 6, 6, sent)


def test_what_is_no_answer_to_a_batch_is_left_alone():
    hooks = SplitGuardHooks(Watch(), LOCAL)
    pulled = Step(START, "state", {PULL: torch.ones(1)}, LOCAL, whole)
    front = ClientFront(batches_sent=1)
    for ask, before in ((STEP, front), (pulled, None), (Forward(START, {PULL: 0}, whole), front)):
        assert hooks.answer(ask, turn(before=before), plain) == ("plain", ask)
    assert hooks.watch.asked == []
    sent = Reply({}, 1.0, {})
    assert hooks.outgoing(sent, turn(after="other")) is sent


def protected(state, federation=None):
    one = Splits(samples(10), samples(4), samples(3))
    federation = federation or Federation("one", {"ann": one})
    return ProtectedRun(SimpleNamespace(served=False), TASK, federation, 4, state)


def test_verdicts_of_clients_on_their_server_are_read_from_their_logs(tmp_path):
    """Blocks of 3: two that are not found accuse, two that are found trust."""
    policy = SplitGuardConfig(every=3, expected=0.9, missed=0.2, accused=0.2, act="stop")
    guard = SplitGuardProtection(Plan(), policy)
    assert guard.spent(protected(tmp_path)) == {}
    blocks = {"seed0.guard.ann": NOT_FOUND, "seed1.guard.b.o": NOT_FOUND, "seed0.guard.eve": FOUND}
    found = {}
    for name, result in blocks.items():
        book = ReleaseLog(tmp_path / FOLDER / f"{name}.csv")
        steps = []
        while policy.read(iter(steps))[0] == "open":
            steps.append(result)
            book.enter(Release("d", f"m{len(steps)}", 1.0, 1.0, result))
        found[name] = policy.read(iter(steps))[1]
    ReleaseLog(tmp_path / FOLDER / "seed0.guard.joe.csv").enter(Release("d", "m", 1.0, 1.0, FOUND))
    (told,) = guard.spent(protected(tmp_path)).values()
    accused = {
        "ann, seed0": 3 * found["seed0.guard.ann"],
        "b.o, seed1": 3 * found["seed1.guard.b.o"],
    }
    assert told["accused"] == accused
    opened = policy.read(iter([FOUND]))[0] == "open"
    assert (told["trusted"], told["open"]) == (2 - opened, int(opened))
    assert told["act"] == "stop"
    batches = accused["ann, seed0"]
    assert split_guard.verdicts(told).startswith(f"accused by ann, seed0 (after {batches} batches)")
    nobody = {"accused": {}, "trusted": 4, "open": 2}
    assert split_guard.verdicts(nobody) == ("accused by nobody; trusted by 4; 2 cannot tell yet")


# --- the defence at the cut


def defended(tmp_path, releases=2, noise=4.0, **limit):
    defence = BottleneckCut(noise=noise, **limit)
    books = {}
    return SimpleNamespace(
        defence=defence,
        outlook=DefenseForecast(releases, None),
        task=TASK,
        folder=tmp_path / FOLDER,
        books=books,
    )


def test_a_picture_is_sent_as_often_as_was_forecast_and_not_once_more(tmp_path):
    """Twice through other layers; again through the same costs nothing; others still may."""
    here = defended(tmp_path, epsilon=0.5)

    def spend(images, layers, multiple=4.0):
        DefendedTrainer._spend(here, "ann", images, layers, multiple)

    spend([1, 2], "one")
    spend([1, 2], "two")
    spend([2, 1], "two")
    book = here.books["ann"]
    assert [entry.draw for entry in book.book.entries] == ["1 2", "1 2"]
    limit = here.defence.epsilon_of(2 * here.defence.cost(4.0))
    assert limit > 0.5
    spend([3], "three")
    with pytest.raises(DpSgdBudgetSpent, match=r"would make epsilon .*, and 0.5 is allowed"):
        spend([3, 2], "four")
    assert [entry.draw for entry in book.book.entries] == ["1 2", "1 2", "3"]
    # Another process wrote to the log: it is read again.
    other = Released(book.book.path, here.defence.cost)
    other.enter([3], "five", 4.0)
    with pytest.raises(DpSgdBudgetSpent):
        spend([3], "six")
    assert here.books["ann"] is not book
    loose = defended(tmp_path, epsilon=50.0)
    for layers in ("one", "two", "three"):
        DefendedTrainer._spend(loose, "bob", [1], layers, 4.0)
    assert len(loose.books["bob"].book.entries) == 3


def test_results_name_the_picture_that_cost_most(tmp_path):
    defence = BottleneckCut(noise=4.0, delta=1e-4)
    cut = SplitDefenseProtection(Plan(), defence)
    assert cut.unit == "picture"
    assert cut.spent(protected(tmp_path)) == {}
    for client, times in (("ann", 1), ("bob", 3), ("eve", 2)):
        book = Released(tmp_path / FOLDER / f"seed0.cut.{client}.csv", defence.cost)
        for layers in range(times):
            book.enter([1, layers + 5], f"layers {layers}", 4.0)
    told = cut.spent(protected(tmp_path))["picture"]
    assert told["epsilon"] == pytest.approx(defence.epsilon_of(3 * defence.cost(4.0)))
    assert told["check"] is None


# --- budgets in logs


class Mine(BudgetedProtection):
    kind, unit = "mine", "thing"


def logged(folder, name, *entries):
    book = ReleaseLog(folder / name)
    for number, entry in enumerate(entries):
        book.enter(Release(f"draw {number}", f"{name} {number}", *entry))


def test_budgets_of_a_seed_are_read_from_the_logs_of_its_clients(tmp_path):
    made = Mine(Plan(), SimpleNamespace(delta=1e-3))
    logged(tmp_path, "seed1.mine.b.csv", (2.0, 0.5, 3))
    logged(tmp_path, "seed1.mine.a.x.csv", (2.0, 1.0, 1), (3.0, 1.0, 2), (2.0, 1.0, 4))
    logged(tmp_path, "seed10.mine.c.csv", (2.0, 1.0, 1))
    logged(tmp_path, "seed1.other.d.csv", (2.0, 1.0, 1))
    names = ["seed1.mine.a.x.csv", "seed1.mine.b.csv"]
    assert [path.name for path in made.logs_of(tmp_path, 1)] == names
    assert [path.name for path in made.logs(tmp_path)] == [*names, "seed10.mine.c.csv"]
    assert [owner(path) for path in made.logs(tmp_path)] == ["a.x", "b", "c"]
    found = made.spendings(tmp_path, 1)
    assert found == [
        Spending("thing", "a.x", ((2.0, 1.0, 5), (3.0, 1.0, 2))),
        Spending("thing", "b", ((2.0, 0.5, 3),)),
    ]
    assert made.delta == 1e-3
    assert Mine(Plan(), object()).delta == 0.0
    # 5 / 2^2 + 2 / 3^2 of squared signal to noise, whichever way the entries are split.
    mu = math.sqrt(5 / 4 + 2 / 9)
    for charges in (found[0].charges, ((2.0, 1.0, 2), (3.0, 1.0, 2), (2.0, 1.0, 3))):
        assert made.epsilon(charges) == pytest.approx(gaussian_epsilon(mu, 1e-3))


def test_results_of_dp_sgd_are_of_the_logs_of_all_clients(tmp_path, folder, monkeypatch):
    steps = lambda ledgers, _: {"epsilon": [one.charges[0].steps for one in ledgers]}  # noqa: E731
    monkeypatch.setattr(dp_sgd, "largest_epsilon", steps)
    solver = DpSgdProtection(Plan(), DpSgd(clip=3.0, noise=2.0, delta=1e-3, epsilon=90.0))
    assert solver.spent(protected(tmp_path)) == {}
    for client, steps in (("ann", 1), ("bob", 9), ("eve", 4)):
        logged(folder, f"seed0.client.{client}.csv", (2.0, 1.0, steps))
    told = solver.spent(protected(tmp_path))["sample"]
    assert told["epsilon"] == [1, 9, 4]
    assert (told["clip"], told["delta"], told["allowed"]) == (3.0, 1e-3, 90.0)
    assert told["against"] == "whoever sees what the client sends, the server too"
    assert told["kind"] == "sample"


def test_results_name_the_person_whose_masks_cost_most(tmp_path, folder):
    policy = MaskBudget(8.0, delta=1e-4, of="entry")
    masks = MaskProtection(Plan(), policy)
    assert masks.spent(protected(tmp_path)) == {}
    for client, draws in (("ann", 1), ("bob", 3), ("eve", 2)):
        logged(folder, f"seed0.mask.{client}.csv", (0.5, 1.0, draws))
    told = masks.spent(protected(tmp_path))["mask"]
    assert told["epsilon"] == pytest.approx(policy.epsilon_of([(0.5, 3)]))
    assert (told["of"], told["delta"], told["allowed"]) == ("entry", 1e-4, 8.0)
    assert masks.epsilon(((0.5, 1.0, 1), (0.25, 1.0, 2))) == pytest.approx(
        policy.epsilon_of([(0.5, 1), (0.25, 2)])
    )


@pytest.mark.parametrize(
    ("defence", "terms"),
    [
        (BottleneckCut(noise=4.0, clip=0.5, delta=1e-4, epsilon=3.0), (0.5, 1e-4, 3.0)),
        (PixelCut(0.7), (None, 0.0, None)),
    ],
)
def test_terms_of_a_defence_at_the_cut(defence, terms, folder):
    cut = SplitDefenseProtection(Plan(), defence)
    told = cut._terms()
    assert (told.get("clip"), told["delta"], told["allowed"]) == terms
    assert told.get("level") == getattr(defence, "level", None)
    for client, times in (("ann", 1), ("bob", 3)):
        book = Released(folder / f"seed4.cut.{client}.csv", defence.cost)
        for layers in range(times):
            book.enter([1], f"layers {layers}", 4.0)
    one = defence.cost(4.0)
    found = cut.spendings(folder, 4)
    assert [(each.unit, each.who) for each in found] == [(cut.unit, "ann"), (cut.unit, "bob")]
    for each, times in zip(found, (1, 3), strict=True):
        ((cost, rate, steps),) = each.charges
        assert (cost, rate, steps) == (pytest.approx(times * one), 1.0, 1)
    assert cut.spendings(folder, 5) == []
    charges = [each.charges[0] for each in found]
    assert cut.epsilon(charges) == pytest.approx(defence.epsilon_of(4 * one))


@pytest.mark.parametrize("frozen", [True, False])
def test_layers_that_learn_are_named_among_what_is_not_hidden(frozen, monkeypatch):
    monkeypatch.setattr(BottleneckCut, "freezes_layers", frozen)
    told = SplitDefenseProtection(Plan(), BottleneckCut(noise=4.0))._terms()
    assert ("updates of the clients' layers" in told["only"]) != frozen
    assert "labels and whatever else is sent" in told["only"]


@pytest.mark.parametrize("act", ["stop", "report"])
def test_reports_say_how_many_batches_have_false_labels(act):
    policy = SplitGuardConfig(every=7, accused=0.125, act=act)
    (promise,) = SplitGuardProtection(Plan(), policy).forecast(None)
    assert "one batch in 7 of every client has false ones" in promise.text
    assert "accused with chance 0.125 at most" in promise.text
    assert ("takes no further turn" in promise.text) == (act == "stop")
    assert ("goes on, and results.json says so" in promise.text) == (act == "report")


@pytest.mark.parametrize(("batch", "every", "fits"), [(4, 6, True), (4, 7, False), (5, 5, False)])
def test_a_round_of_whoever_has_least_samples_holds_a_block(batch, every, fits, tmp_path):
    """10 samples, 2 epochs: 6 batches of 4 or 4 batches of 5; bob has more."""
    people = {"bob": samples(90), "ann": samples(10)}
    federation = Federation("f", {n: Splits(s, s, s) for n, s in people.items()})
    run = protected(tmp_path, federation)
    run.method.local = LocalTraining(optimizer="sgd", epochs=2, batch=batch)
    guard = SplitGuardProtection(Plan(), SplitGuardConfig(every=every))
    if fits:
        guard.check(run)
        return
    batches = {4: 6, 5: 4}[batch]
    with pytest.raises(ConfigError, match=f"a block is of {every} batches .* has {batches}; take"):
        guard.check(run)


def test_labels_that_are_classes_are_refused(tmp_path):
    data = Samples({"x": torch.zeros(10, 2), "y": torch.zeros(10, dtype=torch.int64)})
    run = protected(tmp_path, Federation("f", {"ann": Splits(data, data, data)}))
    run.method.local = LOCAL
    with pytest.raises(ConfigError, match="here they are classes"):
        SplitGuardProtection(Plan(), SplitGuardConfig(every=3)).check(run)


def noted(bounds):
    """Return a defended trainer that notes what it spends, with noise of known terms."""
    spec = SimpleNamespace(multiple=4.0, bound=lambda *given: given, fresh=lambda *given: given)
    trainer = SimpleNamespace(forward=lambda ask: ("smashed", ask.params))
    spent = []
    here = SimpleNamespace(
        trainer=trainer,
        outlook=DefenseForecast(1, spec if bounds else None),
        secret=KEY if bounds else None,
        draws="draws" if bounds else None,
        _spend=lambda *given: spent.append(given),
    )
    return here, spent


def test_smashed_data_are_charged_before_they_leave_with_noise_of_their_pictures():
    ask = Forward(START, {}, whole, torch.tensor([7, 2]))
    here, spent = noted(True)
    smashed, images, key = DefendedTrainer._release(here, ask, SITE)
    assert (smashed, images) == (("smashed", START), [7, 2])
    assert spent == [("ann", [7, 2], version(START), 4.0)]
    assert key.words(2).tolist() == KEY.child("ann", version(START)).words(2).tolist()
    with pytest.raises(StateError, match="'ann' does not say which pictures"):
        DefendedTrainer._release(here, Forward(START, {}, whole), SITE)
    here.draws = "old"
    DefendedTrainer.measuring(here, "ann", 3)
    again = KEY.child("predictions", "ann", 3).draws()
    assert here.draws.words(2).tolist() == again.words(2).tolist()
    assert DefendedTrainer._noisy(here, "smashed")[0] == "smashed"
    plain_, spent = noted(False)
    assert DefendedTrainer._release(plain_, ask, SITE) == ("smashed", START)
    assert DefendedTrainer._noisy(plain_, "smashed") == "smashed"
    DefendedTrainer.measuring(plain_, "ann", 3)
    assert (plain_.draws, spent) == (None, [])


def test_networks_are_probed_for_mixing_once_on_the_most_samples(monkeypatch):
    """The batch is that of the largest training; another seed of a task is the same task."""
    asked = []
    monkeypatch.setattr(dp_sgd, "PROBED", [])
    monkeypatch.setattr(dp_sgd, "refuse_mixing", lambda *given: asked.append(given))
    few, many = samples(3), samples(9)
    people = Federation("f", {n: Splits(s, s, s) for n, s in {"a": few, "b": many}.items()})
    passes = [
        TrainingPass(LocalTraining(optimizer="sgd", batch=5), 1.0, 1),
        TrainingPass(None, 1.0, 1),
        TrainingPass(LocalTraining(optimizer="sgd", batch=7), 1.0, 1),
    ]
    dp_sgd.refuse_mixed(TASK, people, passes)
    assert [(task, data is many, batch) for task, data, batch in asked] == [(TASK, True, 7)]
    dp_sgd.refuse_mixed(replace(TASK, seed=5), people, passes)
    assert len(asked) == 1
    dp_sgd.refuse_mixed(ToyTask(Linear(inputs=3)), people, [])
    assert asked[1][2] == 1
    none = samples(0)
    dp_sgd.refuse_mixed(TASK, Federation("f", {"a": Splits(none, none, none)}), passes)
    assert len(asked) == 2
    alone = Federation("f", {"a": Splits(few, few, few)})
    dp_sgd.refuse_mixed(TASK, alone, passes)
    assert asked[2][1] is few


@pytest.mark.parametrize("means", [0, 4])
def test_reports_of_dp_sgd_name_the_smallest_and_the_largest_client(means, monkeypatch, tmp_path):
    """Of 3, 5 and 9 samples; epsilon is that of whoever spends most."""
    whole_of = lambda _, size: SimpleNamespace(  # noqa: E731
        steps=size * 10,
        rate=1 / size,
        means=means,
        noise=lambda _: size / 2,
        mean_noise=lambda _: size / 4,
        ledger=lambda _: SimpleNamespace(epsilon=lambda delta: 100.0 / size + delta),
    )
    monkeypatch.setattr(dp_sgd, "training_schedule", whole_of)
    monkeypatch.setattr(dp_sgd, "check_solver", lambda *_: ())
    people = {name: samples(size) for name, size in (("a", 5), ("b", 9), ("c", 3))}
    federation = Federation("f", {n: Splits(s, s, s) for n, s in people.items()})
    policy = DpSgd(clip=3.0, noise=2.0, delta=1e-3)
    first, last = DpSgdProtection(Plan(), policy).forecast(protected(tmp_path, federation))
    assert first.guarantee.epsilon == pytest.approx(100 / 3 + 1e-3)
    for promise, size in ((first, 3), (last, 9)):
        mean = f", 4 mean of its samples with noise {size / 4:.4g}" if means else ""
        assert promise.text == (
            f"samples: a client with {size} trains {size * 10} steps at sampling rate "
            f"{1 / size:.3g}, gradients cut to 3, noise {size / 2:.4g}{mean}: epsilon "
            f"{100 / size + 1e-3:.3g} at delta 0.001 for one sample, not for the person"
        )
