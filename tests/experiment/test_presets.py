"""The experiments of the SplitFed gaze thesis: its models, where they are cut, how they train."""

import pytest

from tests.cli.commands import vergence
from tests.conftest import ROOT
from tests.data.images.test_fashion_mnist import fill
from vergence.core.randomness import RandomStream
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.data.images.fashion_mnist import FashionMnist
from vergence.data.images.partition import TABLE_3_1
from vergence.experiment.run import start
from vergence.experiment.schema import load, merge
from vergence.methods.split.base import BatchwiseSplit
from vergence.results.write import person_means
from vergence.wire.codecs import Compression
from vergence_papers.data_sets import GROUNDS

MODELS = {
    "1": (520, 1_826_556),
    "2": (520, 2_921_586),
    "3": (74_688, 11_094_022),
    "3a": (704, 11_168_006),
    "3b": (148_672, 11_020_038),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def preset(number):
    return ROOT / "experiments" / f"splitfed_model_{number}.toml"


def counts(number, *sets):
    """Return the parameters of clients and server."""
    experiment = load(preset(number), sets)
    method = experiment.methods["splitfed"]
    assert isinstance(method, BatchwiseSplit)
    assert method.cut
    return tuple(piece.init().layout.n for piece in method.parts(experiment.task(0)))


@pytest.mark.parametrize("number", MODELS)
def test_the_cut_leaves_each_side_its_parameters(number):
    """LeNet: conv1 has 20 * 25 + 20 = 520; the whole 1,827,076, or 2,922,106 with 80 filters.

    ResNet-18, 11,168,710: the stem has 64 * 9 + 2 * 64 = 704, each of the first two blocks
    2 * 64 * 64 * 9 + 4 * 64 = 73,984. So Model 3 is 704 + 73,984, 3a the stem, 3b one block more.
    """
    assert counts(number) == MODELS[number]


@pytest.mark.parametrize("number", MODELS)
def test_it_is_what_the_papers_tables_take(number):
    """Network, optimiser and cut; Model 1 has no place among the cuts: it is LeNet's own."""
    ground = GROUNDS["mpiigaze"]
    experiment, network = load(preset(number)), ground.values["networks"][number[0]]
    assert experiment.table["model"] == network["model"]
    cut = ground.values["cuts"].get(number, "pool1")
    assert experiment.table["method"] == {"name": "splitfed", "cut": cut}
    trained = experiment.methods["splitfed"].local
    below = dict(ground.table["local"]) if number == "1" else {}
    for key, value in merge(below, network["local"]).items():
        assert getattr(trained, key) == value, key


def test_its_switches_work():
    """No pose: the last layer has two inputs fewer for each of two angles. MPIIGaze takes over."""
    assert counts("2", "model.pose=false") == (520, 2_921_582)
    table = 'federation={name="mpiigaze",root="there"}'
    experiment = load(preset("3b"), ["method.number=int8", table])
    assert experiment.methods["splitfed"].number == "int8"  # type: ignore[attr-defined]
    assert isinstance(experiment.dataset, Mpiigaze)
    assert experiment.plan.wire == Compression()


@pytest.mark.slow
def test_the_commands_take_it():
    """Those of ResNet-18 too, but working out all its cuts takes ten seconds."""
    for number in ("2", "3b"):
        said = vergence("explain", preset(number))
        assert said.code == 0, said.err
        assert "stays with the server: tail" in said.out
    small = ["--set", "federation.people=1", "--set", "federation.samples=60"]
    said = vergence("model", "split-plan", preset("2"), *small)
    assert said.code == 0, said.err
    assert "2,921,586" in said.out


def test_it_trains(tmp_path):
    sets = ["federation.people=2", "federation.samples=60", "run.rounds=1", "run.workers=1"]
    start(load(preset("1"), sets), tmp_path / "out")
    found = person_means(tmp_path / "out")["angle_error_deg"]
    assert set(found) == {"p00", "p01"}


@pytest.mark.slow
def test_images_score_alike_with_fedavg_and_with_splitfed(tmp_path):
    """The file's own methods, on 400 made-up pictures for 20 people."""
    fill(tmp_path)
    sets = [f"federation.root={tmp_path}", "run.rounds=1", "local.steps=2", "run.workers=1"]
    experiment = load(ROOT / "experiments" / "splitfed_images.toml", sets)
    start(experiment, tmp_path / "out")
    found = {label: person_means(tmp_path / "out" / label) for label in experiment.methods}
    assert len(found["fedavg"]["log_loss"]) == 20
    assert found["splitfed"] == found["fedavg"]
    for other in ("local_only", "centralised", "splitfed_v2", "split", "splitfed_int8"):
        assert found[other]["log_loss"] != found["fedavg"]["log_loss"], other


def test_who_drops_out_has_two_classes_alone_and_is_there_at_the_end():
    experiment = load(ROOT / "experiments" / "images_dropout.toml", [])
    presence, clients = experiment.plan.presence, [f"p{i:03d}" for i in range(10)]
    presence.check(clients)
    asked = presence.ask(clients, experiment.plan.rounds - 1, RandomStream("run", 0))
    assert asked == presence.ask(clients, 0, RandomStream("run", 0)) == [*clients[:8], "p009"]
    assert presence.returned(clients, experiment.plan.rounds) == clients
    assert isinstance(experiment.dataset, FashionMnist)
    others = {kind for row in [*TABLE_3_1[:8], TABLE_3_1[9]] for kind in row}
    assert not others & set(experiment.dataset.table[8])
