"""The public names are exactly these, all of them lazy, and a run started from Python is a run."""

import ast
import copy
import dataclasses
import os
import pickle
import re
import subprocess
import sys

import pytest

import vergence
from tests.conftest import ROOT
from vergence.experiment.registry import find, names

NAMES = """
    Aggregate BuiltInPython ClientContext ClientId Comparison ConfigError Conversation DataError
    Dataset EarlyStopping Experiment Exposure Federation Global KernelHead Layers LocalTraining Mask
    Message Method Model NoState Objective OptimizerState Params PartialRun Participation Plan
    Privacy Reply RoundReport Run Samples Share SharedRows Splits StateError Task Tree UntrustedCode
    VergenceError __version__ aggregate attacks average_batch_norm collect compare compute data
    explain fit freeze_batch_norm group_norm load_experiment methods metrics models open_run
    personalize_batch_norm privacy recipe reply run_experiment task_from tasks train train_all
"""
SECONDS = 0.3
"""Processor time that `import vergence` and `vergence --help` may take."""


def test_public_names():
    assert sorted(vergence.__all__) == sorted(NAMES.split())
    assert dir(vergence) == sorted(vergence.__all__)
    for name in vergence.__all__:
        assert getattr(vergence, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        vergence.nonsense  # noqa: B018


def test_packages_offer_their_classes_under_the_names_of_the_field():
    from vergence.data.saliency.osie import Osie
    from vergence.methods.fedper import FedPer
    from vergence.models.glc.glc_features import GlcFeatures
    from vergence.privacy.robust.krum import Krum

    assert vergence.methods.FedPer is FedPer
    assert vergence.data.OSIE is Osie
    assert vergence.models.GLCFeatures is GlcFeatures
    assert vergence.privacy.Krum is Krum, "of a package inside the package"
    assert {"FedCPF", "FedAvg", "FedPer", "Ditto", "SplitFed"} <= set(dir(vergence.methods))
    assert {"OSIE", "Toy", "MPIIGaze"} <= set(dir(vergence.data))
    assert "Osie" not in dir(vergence.data)
    assert {"nss", "auc_judd"} <= set(dir(vergence.metrics))


def test_every_name_that_a_package_shows_is_there():
    for package in (
        vergence.methods,
        vergence.tasks,
        vergence.models,
        vergence.data,
        vergence.metrics,
        vergence.attacks,
    ):
        for name in dir(package):
            assert getattr(package, name).__module__.startswith(package.__name__), name


@pytest.mark.parametrize(
    ("package", "base"),
    [
        (vergence.methods, vergence.Method),
        (vergence.data, vergence.Dataset),
        (vergence.tasks, vergence.Task),
        (vergence.models, vergence.Model),
    ],
    ids=["methods", "data", "tasks", "models"],
)
def test_packages_show_what_an_experiment_can_name_and_nothing_else(package, base):
    kind = package.__name__.rpartition(".")[2]
    named = {find(kind, name, base) for name in names(kind, base)}
    assert {getattr(package, name) for name in dir(package)} == named
    assert package.__all__ == dir(package)


def test_what_stands_beside_them_is_found_by_its_name():
    from vergence.methods.scaffold import ControlVariate

    assert vergence.methods.ControlVariate is ControlVariate
    assert "ControlVariate" not in dir(vergence.methods)
    space: dict = {}
    exec("from vergence.methods import *", space)
    assert "FedPer" in space
    assert "ControlVariate" not in space


def test_a_name_that_no_module_has_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'FedNothing'"):
        vergence.methods.FedNothing  # noqa: B018


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (lambda: vergence.methods.FedPerr, "no attribute 'FedPerr' (did you mean 'FedPer'?)"),
        (lambda: vergence.Federations, "no attribute 'Federations' (did you mean 'Federation'?)"),
        (lambda: vergence.methods.FedProx(mue=0.1), "argument 'mue' (did you mean 'mu'?)"),
        (lambda: vergence.Plan(roundz=3), "argument 'roundz' (did you mean 'rounds'?)"),
        (
            lambda: vergence.LocalTraining(optimizer="sgd", learning=1),
            "argument 'learning'; known: batch, clip, ep",
        ),
        (lambda: vergence.Participation(cohorts=1), "argument 'cohorts' (did you mean 'cohort'?)"),
        (lambda: vergence.Privacy(users=1), "argument 'users' (did you mean 'user'?)"),
        (lambda: vergence.data.Toy(peoples=1), "argument 'peoples' (did you mean 'people'?)"),
        (lambda: vergence.train(None, None, None, round=5), "'round' (did you mean 'rounds'?)"),
    ],
)
def test_a_name_that_was_mistyped_is_answered_with_the_nearest(typed, says):
    with pytest.raises((AttributeError, TypeError)) as refused:
        typed()
    assert says in str(refused.value)


def test_options_are_copied_and_sent_as_before():
    method = vergence.methods.FedProx(mu=0.2)
    assert pickle.loads(pickle.dumps(method)) == method
    assert copy.deepcopy(method) == dataclasses.replace(method, mu=0.2)


def test_modules_of_a_package_are_still_imported_by_name():
    from vergence.methods import fedper
    from vergence.metrics import fairness

    assert fairness.fairness
    assert fedper.FedPer is vergence.methods.FedPer


def test_run_from_python(tmp_path):
    experiment = vergence.load_experiment(
        ROOT / "src" / "vergence" / "experiments" / "toy.toml", ["run.rounds=2", "run.workers=1"]
    )
    runs = vergence.run_experiment(experiment, tmp_path / "out")
    assert (tmp_path / "out" / "fedcpf" / "results.json").exists()
    assert list(runs) == list(experiment.methods)
    assert runs["fedcpf"].people == ["p00", "p01", "p02"]


def lean(code):
    """The processor seconds of code in a fresh process, which must not import torch or pandas."""
    whole = (
        f"import sys\n{code}\nassert not {{'torch', 'pandas', 'matplotlib'}} & set(sys.modules)\n"
        "import time; print(time.process_time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", whole],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    return float(done.stdout.split()[-1])


HELP = """
import vergence.cli.main as c
sys.argv = ['vergence', '--help']
try:
    c.main()
except SystemExit:
    pass
"""
NAMED = """
import vergence as vg
for package in (vg, vg.methods, vg.tasks, vg.models, vg.data, vg.metrics, vg.privacy, vg.attacks):
    assert len(dir(package)) > 5
"""


def test_names_are_told_without_importing_torch():
    assert lean("import vergence") < SECONDS
    assert lean(NAMED) < 2 * SECONDS


def test_help_needs_neither_torch_nor_the_parser_of_arguments():
    assert lean(f"{HELP}\nassert not {{'cyclopts', 'rich'}} & set(sys.modules)") < SECONDS


def test_type_checkers_find_the_types():
    assert (ROOT / "src" / "vergence" / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text()


def deprecations(source: str) -> list[str]:
    """Texts of `@deprecated(...)` in a module."""
    return [
        decorator.args[0].value
        for node in ast.walk(ast.parse(source))
        for decorator in getattr(node, "decorator_list", ())
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "deprecated"
    ]


def test_deprecated_names_say_since_when_what_to_use_and_until_when():
    form = re.compile(r"since \d+\.\d+\.\d+: use [\w.]+; goes in \d+\.\d+\.\d+")
    page = re.search(r"```python\n(.*?)\n```", (ROOT / "RELEASE.md").read_text(), re.DOTALL)
    (printed,) = deprecations(page[1])
    assert form.fullmatch(printed)
    assert not form.fullmatch(*deprecations("@deprecated('use another')\ndef old(): ..."))
    for path in (ROOT / "src").rglob("*.py"):
        for text in deprecations(path.read_text(encoding="utf-8")):
            assert form.fullmatch(text), f"{path.name}: {text}"
