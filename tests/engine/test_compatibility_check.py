"""The matrix of methods and settings: each cell runs, or is refused in one sentence at load."""

import itertools
import random

import pytest

from tests.conftest import ROOT
from vergence.core.method import Method
from vergence.engine.compatibility import SETTINGS as ASKED
from vergence.engine.compatibility_check import METHODS as KINDS
from vergence.engine.compatibility_check import Combination
from vergence.engine.plan import Plan
from vergence.errors import ConfigError
from vergence.experiment.registry import find, names
from vergence.experiment.run import start
from vergence.experiment.schema import check, load, merge
from vergence.methods.fedavg import FedAvg
from vergence.methods.split.splitfed import SplitFed
from vergence.reports.compatibility_matrix import ROWS, SETTINGS, blocks, clashing, refused

TOY = {
    "task": {"name": "toy"},
    "model": {"name": "linear"},
    "federation": {"name": "toy", "people": 8},
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 4, "lr": 0.01},
    "run": {"rounds": 1, "workers": 1, "evaluate_every": 0, "solver": "sequential"},
}
EYES = {
    **TOY,
    "task": {"name": "gaze_angle"},
    "model": {"name": "small_eye"},
    "federation": {"name": "eye_synthetic", "people": 4, "size": "9x15", "samples": 40},
}
GROUPS = (
    ("pads", "shares"),
    ("DP people",),
    ("DP-SGD",),
    ("mask",),
    ("median", "Krum"),
    ("poison",),
    ("cut",),
    ("quorum", "deadline", "FedBuff", "FedAsync"),
    ("codec",),
    ("pruning",),
    ("guard",),
)
"""Settings of a group cannot be had side by side."""


def cells(seed, many):
    """Yield combinations of a method and up to four settings, drawn from the whole product."""
    rng = random.Random(seed)
    methods = [name for name in names("methods", Method) if name != "fedbn"]  # wants norm layers
    for _ in range(many):
        chosen = [rng.choice(group) for group in rng.sample(GROUPS, rng.randint(1, 4))]
        yield rng.choice(methods), tuple(sorted(chosen))


def experiment(method, settings):
    base = EYES if find("methods", method, Method).served else TOY
    table = merge(base, {"method": {"name": method}})
    for name in settings:
        table = merge(table, SETTINGS[name])
    if method in ("fedcpf", "fedselect"):  # of five entries
        table = merge(table, {"method": {"rate": 0.2}})
    return table


def told(table):
    """Return the sentence of a refusal at load, "" where there is none."""
    try:
        check(table)
    except ConfigError as error:
        return str(error)
    return ""


def holds(method, settings, tmp_path):
    """See a cell refused in one sentence, or run."""
    table = experiment(method, settings)
    why = told(table)
    if why:
        assert "\n" not in why
        assert len(why) < 320
        assert refused(table) in ROWS
        return False
    start(check(table), tmp_path / "-".join((method, *settings)).replace(" ", "_"))
    return True


@pytest.mark.slow
def test_each_setting_runs_or_is_refused_with_a_method_of_each_kind(tmp_path):
    ran = {
        (method, name): holds(method, (name,), tmp_path)
        for method in ("fedcpf", "scaffold", "splitfed_u")
        for name in SETTINGS
        if name != "DP-SGD"
    }
    alone = {name for (method, name), ok in ran.items() if ok and method == "splitfed_u"}
    assert alone == {"pads", "shares", "cut", "pruning", "early stopping"}
    no = {key for key, ok in ran.items() if not ok and key[0] != "splitfed_u"}
    assert no == {
        ("fedcpf", "pads"),
        ("fedcpf", "Krum"),
        ("scaffold", "median"),
        ("scaffold", "Krum"),
        ("scaffold", "FedBuff"),
        ("scaffold", "FedAsync"),
        ("fedcpf", "groups"),
        ("scaffold", "groups"),
        ("fedcpf", "cut"),
        ("scaffold", "cut"),
        ("scaffold", "mask"),
        ("fedcpf", "guard"),
        ("scaffold", "guard"),
    }


@pytest.mark.slow
def test_combinations_drawn_by_chance_run_or_are_refused(tmp_path):
    ran = [holds(*cell, tmp_path / str(number)) for number, cell in enumerate(cells(1, 16))]
    assert 0 < sum(ran) < len(ran)


@pytest.mark.nightly
def test_many_combinations_run_or_are_refused(tmp_path):
    for number, cell in enumerate(cells(2, 400)):
        holds(*cell, tmp_path / str(number))


@pytest.mark.nightly
def test_the_whole_matrix_loads_or_is_refused_in_one_sentence():
    """Every method with every choice of one setting, or none, out of four groups."""
    groups = [("", *GROUPS[i]) for i in (0, 1, 4, 6)]
    for method in names("methods", Method):
        for chosen in itertools.product(*groups):
            table = experiment(method, [name for name in chosen if name])
            if told(table):
                assert refused(table) in ROWS


def test_a_combination_is_refused_wherever_a_part_of_it_is():
    """More settings never make an unsound plan sound."""
    for method, settings in cells(3, 30):
        parts = [pair for pair in itertools.combinations(settings, 2) if len(settings) > 2]
        if any(told(experiment(method, part)) for part in parts):
            assert told(experiment(method, settings))


def test_every_word_of_the_table_is_known_and_every_sentence_can_be_said():
    for number, clash in enumerate(ROWS):
        assert clash.one in ASKED, number
        assert clash.other in ASKED | KINDS, number
        for method in (FedAvg(), SplitFed()):
            case = Combination(Plan(), method)
            known = {name: getattr(case, name) for name in dir(case) if name[0] != "_"}
            assert "\n" not in clash.why.format(**known)


def test_settings_that_exclude_each_other_are_not_paired():
    assert clashing(SETTINGS["pads"], SETTINGS["shares"])
    assert clashing(SETTINGS["quorum"], SETTINGS["FedBuff"])
    assert not clashing(SETTINGS["pads"], SETTINGS["DP-SGD"])


@pytest.mark.slow
def test_the_page_shows_the_matrix_as_it_is():
    page = (ROOT / "docs/reference/composition.md").read_text()
    for block in blocks(load(ROOT / "src" / "vergence" / "experiments" / "toy.toml").table):
        assert block.markdown() in page
