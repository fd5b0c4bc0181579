"""Three labs of five people each as processes on this machine, over TLS with node keys."""

import json
import math
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

from tests.cli.commands import vergence
from tests.drills.deployment import TABLE, deployed, simulated
from vergence.deployment.folder_setup import init
from vergence.deployment.server_run import ServerRun, compare_with_constant
from vergence.errors import ConfigError
from vergence.experiment.schema import check
from vergence.privacy.dp.accounting import gaussian_epsilon

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
LABS = {
    "labA": ["p00", "p01", "p02", "p03", "p04"],
    "labB": ["p05", "p06", "p07", "p08", "p09"],
    "labC": ["p10", "p11", "p12", "p13", "p14"],
}
SILOS = {
    **TABLE,
    "federation": {**TABLE["federation"], "people": 15, "samples": 40},
    "silos": LABS,
}


def ran(table, tmp_path):
    """Deploy an experiment among the labs; return its fingerprints, and those of the simulator."""
    with deployed(tmp_path, table, clients=tuple(LABS)) as made:
        served = made.serve()
        joined = [made.join(name) for name in LABS]
        here = simulated(table, tmp_path / "here")
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert not made.leftovers()
        return made.fingerprints(), here


@pytest.mark.parametrize(("table", "who"), [(SILOS, "labs"), (TABLE, "people")])
def test_a_result_says_whether_it_is_of_labs_or_people(table, who, tmp_path):
    rows = [f"0,{client},P0,angle_error_deg,{n}.0" for n, client in enumerate(LABS, 1)]
    (tmp_path / "people.csv").write_text(
        "\n".join(["seed,person,evaluation,metric,value", *rows]) + "\n"
    )
    said = []
    tell = lambda line, *_, **__: said.append(line)  # noqa: E731
    server: Any = SimpleNamespace(experiment=check(table), tell=tell, guesses={})
    ServerRun.tell_result(server, "fedavg", tmp_path)
    assert said == [f"fedavg: angle_error_deg 2.000, mean of 3 {who} and 1 seed"]


@pytest.mark.parametrize(
    ("mean", "lower", "end"),
    [
        (9.0, True, "has 9.200"),
        (9.3, True, "has 9.200: WORSE THAN A CONSTANT, this model is of no use"),
        (9.3, False, "has 9.200"),
        (9.2, False, "has 9.200: WORSE THAN A CONSTANT, this model is of no use"),
    ],
)
def test_a_result_stands_beside_everybodys_own_constant(mean, lower, end):
    assert compare_with_constant(mean, [9.0, 9.4], lower).endswith(end)
    assert compare_with_constant(mean, [9.0, math.nan], lower) == ""


def test_init_says_that_so_much_noise_destroys_the_model(tmp_path):
    table = {**SILOS, "methods": ["fedavg"], "privacy": {"user": {"epsilon": 8.0, "unit": "lab"}}}
    (tmp_path / "exp.toml").write_text(tomli_w.dumps(table))
    made = ("--clients", ",".join(LABS), "--address", "127.0.0.1:9", "--out", tmp_path / "out")
    told = vergence("deploy", "init", tmp_path / "exp.toml", *made)
    assert told.code == 0, told.err
    assert "fedavg: The noise in the average of a round is" in told.err
    assert "all 3 labs together may say" in told.err
    assert "makes the model useless" in told.err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_labs_over_flower_give_the_simulators_fingerprints(tmp_path):
    there, here = ran(SILOS, tmp_path)
    assert there == here
    assert set(here) == {"fedavg", "fedcpf"}


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_secure_sums_over_labs_give_the_simulators_fingerprints(tmp_path):
    table = {**SILOS, "methods": ["fedavg"], "privacy": {"aggregation": "secure"}}
    there, here = ran(table, tmp_path)
    assert there == here


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_noise_in_the_labs_shares_over_flower_tells_both_epsilons(tmp_path):
    """Secrets of noise lie with the labs, so no bits are compared; a lab's people have other names.

    Two rounds, noise 4 x clip: mu = sqrt(2) / 4 of a lab, a fifth of it of a person.
    """
    user = {"clip": 1.0, "noise": 4.0, "unit": "lab"}
    table = {**SILOS, "methods": ["fedavg"], "privacy": {"aggregation": "secure", "user": user}}
    with deployed(tmp_path, table, clients=tuple(LABS)) as made:
        served = made.serve()
        joined = [made.join(name) for name in ("labA", "labB")]
        others = ",".join(LABS["labA"])  # of these data, as if labC called its people so
        joined.append(made.run("join", made.client("labC"), "--people", others))
        assert served.wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert {row["status"] for row in made.table("turns.csv")} == {"ok"}
        (file,) = (made.server / "run").rglob("fedavg/results.json")
        told = json.loads(file.read_text())["privacy"]
        # Noise that destroys a model is said where it is met, and the printed folder is a study.
        assert "makes the model useless" in made.events()
        assert "WORSE THAN A CONSTANT, this model is of no use" in made.events()
        compared = vergence("compare", made.server / "run")
        assert compared.code == 0, compared.err
        assert "own constant" in compared.out
    for unit, mu in {"lab": math.sqrt(2) / 4, "person": math.sqrt(2) / 20}.items():
        assert told[unit]["epsilon"] == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


def test_clients_that_are_no_labs_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be the labs of the experiment's silos, labA, labB"):
        init(check(SILOS), ["labA", "p05"], "127.0.0.1:9", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("site1:anna", "reads as the name of Python code"),
        ("anna.py", "reads as the name of Python code"),
        ("all", "join --people all"),
        ("anna, bob", "has a comma"),
        (" anna", "begins or ends with a blank"),
    ],
)
def test_names_that_join_could_not_call_are_refused_by_name(name, said, tmp_path):
    """Before anything is written, and before code of such a name is looked for."""
    labs = {**LABS, "labA": [name, *LABS["labA"][1:]]}
    with pytest.raises(ConfigError, match=rf"silos\.labA: the person's name '{name}' .*{said}"):
        init(check({**SILOS, "silos": labs}), list(LABS), "127.0.0.1:9", tmp_path / "out")
    text = f"[silos]\nlabA = [{json.dumps(name)}]\n"
    (tmp_path / "exp.toml").write_text(text)
    made = ("--clients", "labA", "--address", "127.0.0.1:9", "--out", tmp_path / "out")
    told = vergence("deploy", "init", tmp_path / "exp.toml", *made)
    assert told.code == 2
    assert said in told.err
    assert not (tmp_path / "out").exists()
