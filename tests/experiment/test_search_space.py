"""Which settings a sweep tries, and every way to write them into an experiment."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.cli.commands import write
from tests.studies.test_sweep import SMALL, TOY
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.experiment.schema import load
from vergence.experiment.search_space import SearchRange, SweepSettings, edges, flat, grid
from vergence.studies.sweep import sweep, with_settings

RECORD = 'tuning={trials=1,search="grid",people=["a"],seed=0,space="x",chosen_on="validation"}'
LR = {"local.lr": (0.02, 0.1)}


# --- which points


def test_an_array_is_a_value_and_no_table():
    rates = np.array([1.0, 2.0])
    settings = flat({"local": {"lr": rates, "batch": {"low": 1}, "none": {}}})
    assert settings == {"local.lr": rates, "local.batch": {"low": 1}, "local.none": {}}


def test_a_grid_is_every_combination():
    space = {"local.lr": (1, 2), "method.limit": (3, 4, 5)}
    tried = [tuple(point.values()) for point in grid(space)]
    assert tried == list(itertools.product((1, 2), (3, 4, 5)))


def test_random_points_differ_repeat_and_are_shared_between_methods():
    """The same setting with the same values gets the same draws, so no method is luckier."""
    spaces = {
        "a": {"local.lr": SearchRange(1e-4, 1.0, True)},
        "b": {"local.lr": SearchRange(1e-4, 1.0, True), "method.k": SearchRange(1, 3)},
    }
    chosen = SweepSettings(search="random", trials=20, seed=3, spaces=spaces)
    points = chosen.points()
    assert points == chosen.points()
    assert points != replace(chosen, seed=4).points()
    assert [p["local.lr"] for p in points["a"]] == [p["local.lr"] for p in points["b"]]
    assert len({tuple(p.values()) for p in points["b"]}) == 20
    assert {p["method.k"] for p in points["b"]} == {1, 2, 3}


def test_a_logarithmic_range_is_even_over_orders_of_magnitude():
    """Of 3000 draws from [1e-3, 1] a third is below 0.01; standard deviation 26."""
    rng = RandomStream("test").numpy()
    drawn = [SearchRange(1e-3, 1.0, True).draw(rng) for _ in range(3000)]
    assert 1e-3 <= min(drawn) < max(drawn) <= 1
    assert abs(sum(d < 0.01 for d in drawn) - 1000) < 4 * 26


def test_as_many_points_as_a_small_space_has_are_all_of_it():
    chosen = SweepSettings(
        search="random", trials=6, spaces={"a": {"x": (1, 2), "y": SearchRange(1, 3)}}
    )
    tried = {tuple(p.values()) for p in chosen.points()["a"]}
    assert tried == set(itertools.product((1, 2), (1, 2, 3)))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (SweepSettings(spaces={"a": LR, "b": {**LR, "method.k": (1, 2)}}), "a 2, b 4 points"),
        (SweepSettings(trials=3, spaces={"a": LR, "b": LR}), "a 2, b 2 points, and trials is 3"),
        (
            SweepSettings(spaces={"a": {"local.lr": SearchRange(0.1, 1.0)}}),
            "local.lr of 'a' is a range",
        ),
        (SweepSettings(search="random", spaces={"a": LR}), "needs trials"),
        (SweepSettings(search="random", trials=3, spaces={"a": LR, "b": {}}), "a 2, b 1 points"),
        (SweepSettings(spaces={"a": {}}), "nothing to try"),
    ],
)
def test_unequal_budgets_are_refused(chosen, words):
    with pytest.raises(ConfigError, match=words):
        chosen.points()


def test_equal_grids_need_no_number_of_trials():
    points = SweepSettings(spaces={"a": LR, "b": {"method.k": (1, 2)}}).points()
    assert {label: len(tried) for label, tried in points.items()} == {"a": 2, "b": 2}


def test_people_are_a_seeded_share_a_number_or_names():
    clients = [f"p{i}" for i in range(10)]
    half = SweepSettings(people=0.5, seed=1).participants(clients)
    assert len(half) == 5
    assert half == sorted(half) == SweepSettings(people=5, seed=1).participants(clients)
    assert half != SweepSettings(people=0.5, seed=2).participants(clients)
    assert SweepSettings(people=("p7", "p2")).participants(clients) == ["p2", "p7"]
    assert SweepSettings().participants(clients) == clients
    with pytest.raises(ConfigError, match=r"nobody is 'p77' \(did you mean 'p7'"):
        SweepSettings(people=("p77",)).participants(clients)
    with pytest.raises(ConfigError, match="11 of 10 people"):
        SweepSettings(people=11).participants(clients)


def test_edges_are_the_ends_of_listed_numbers():
    space = {
        "a": (1, 2, 3),
        "b": (0.1, 0.2),
        "c": ("x", "y"),
        "d": (False, True),
        "e": (5,),
        "f": SearchRange(0.0, 1.0),
    }
    point = {"a": 2, "b": 0.2, "c": "x", "d": True, "e": 5, "f": 1.0}
    assert edges(space, point) == ["b = 0.2 is the largest value tried"]
    assert edges(space, {**point, "a": 1})[0] == "a = 1 is the smallest value tried"


# --- settings in an experiment file


def test_every_way_to_write_a_space(tmp_path):
    """Quoted, nested, short, and by --set; a method's own values win over the common ones."""
    path = write(tmp_path, SMALL)
    spaces = load(path).sweep.spaces
    assert spaces["fedcpf"] == {"local.lr": (0.02, 0.1), "method.limit": (0.2, 0.8)}
    nested = write(tmp_path, SMALL.replace('"local.lr" = [', "local.lr = ["), "nested.toml")
    assert load(nested).sweep.spaces == spaces
    brief = write(tmp_path, SMALL.replace("space  = {", "").replace("0.1] }", "0.1]"), "brief.toml")
    assert load(brief).sweep.spaces == spaces
    for written, key in ((path, "space.local.lr"), (nested, "space.local.lr"), (brief, "local.lr")):
        changed = load(written, [f"sweep.{key}={{low=1, high=5}}"])
        assert changed.sweep.spaces["local_only"]["local.lr"] == SearchRange(1, 5)
    with pytest.raises(ConfigError, match=r"local.lr is given twice"):
        load(brief, ["sweep.space.local.lr=[1]"])
    own = write(tmp_path, SMALL.replace("{ limit", '{ "local.lr" = [0.5], limit'), "own.toml")
    assert load(own).sweep.spaces["fedcpf"]["local.lr"] == (0.5,)


def test_a_point_goes_into_the_methods_entry_and_wins_over_what_is_there():
    entry = {
        "name": "m",
        "limit": 0.1,
        "local": {"optimizer": "sgd", "lr": 1.0, "batch": 8},
        "sweep": {"limit": [1]},
    }
    made = with_settings(entry, {"method.limit": 0.4, "local.lr": 0.2})
    assert made == {"name": "m", "limit": 0.4, "local": {"optimizer": "sgd", "lr": 0.2, "batch": 8}}
    assert entry["local"] == {"optimizer": "sgd", "lr": 1.0, "batch": 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("sweep=3", "sweep must be a table"),
        ("sweep.space=3", "sweep.space must be a table"),
        ("sweep.trails=3", "did you mean 'trials'"),
        ("sweep.trials=0", "trials must be >= 1"),
        ("sweep.search=bayes", "'grid' or 'random'"),
        ("sweep.people=1.5", "share in"),
        ("sweep.people=[]", "at least one"),
        ("sweep.seeds=[1, 1]", "different numbers"),
        ("sweep.space.run.rounds=[1, 2]", "'run.rounds' cannot be varied"),
        ("sweep.space.method.name=[1, 2]", "'method.name' cannot be varied"),
        ("sweep.space.local.lr=0.1", r"sweep.space: local.lr must be a list .* got 0.1"),
        ("sweep.space.local.lr=[]", "must be a list"),
        ("sweep.space.local.lr=[0.1, 0.1]", "must be different"),
        ("sweep.space.local.lr={low=1}", "'high' must be given"),
        ("sweep.space.local.lr={lo=1, high=2}", "did you mean 'low'"),
        ("sweep.space.local.lr={low=2, high=1}", "local.lr: low must be below high"),
        ("sweep.space.local.lr={low=0, high=1, log=true}", "must be > 0 where log"),
        ("sweep.spaces.a=1", "unknown key 'spaces'"),
        ('methods=[{name="fedavg", sweep=3}]', "sweep of 'fedavg' must be a table"),
        ("tuning=3", "tuning must be a table"),
        ("tuning.trials=3", "'search' must be given"),
        (RECORD.replace("trials=1", "trials=0"), "trials must be >= 1"),
        (RECORD.replace("validation", "test"), "'validation'"),
        (RECORD.replace('"a"', ""), "people must name"),
        (RECORD.replace("grid", "guess"), "'grid' or 'random'"),
        (RECORD.replace("seed", "sed"), "did you mean 'seed'"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        load(write(tmp_path, SMALL), [change])


def test_a_method_has_no_sweep_alone(tmp_path):
    path = write(tmp_path, TOY.partition("[sweep]")[0])
    with pytest.raises(ConfigError, match="'fedcpf' has a sweep, the experiment none"):
        load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "sweep.space.method.limit=[0.2]",
            r"'local_only' \(.*method.limit = 0.2.*\): .*unknown key",
        ),
        ("sweep.space.local.lr=[0.1, -1]", r"\(local.lr = -1, .*lr must be > 0"),
    ],
)
def test_points_that_are_no_experiment_are_named_before_anything_is_written(
    tmp_path, change, words
):
    with pytest.raises(ConfigError, match=words):
        sweep(load(write(tmp_path, SMALL), [change]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
