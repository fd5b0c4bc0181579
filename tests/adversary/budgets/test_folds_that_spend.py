"""Folds of leave-one-out are private runs on the same people: what they spend adds up, and is said.

The merged run told the epsilon of one fold, and so did its page for an ethics board.
"""

import json
import math

import pytest

from tests.cli.commands import TOY, vergence, write
from vergence.privacy.dp.accounting import gaussian_epsilon

PEOPLE, ROUNDS, SEEDS, DELTA = 4, 2, 2, 1e-5
EXPERIMENT = f"""
{TOY.replace("METHODS", 'methods = ["fedavg"]').replace("people = 3", f"people = {PEOPLE}")}
privacy = {{ PRIVACY }}
""".replace("rounds = 3", f"rounds = {ROUNDS}, seeds = [0, 1]")


@pytest.mark.parametrize("protocol", ["leave-one-out", "late"])
def test_what_folds_spend_on_people_adds_up(tmp_path, protocol):
    """By hand: 4 folds of 2 seeds and 2 rounds with noise 4 are a Gaussian of mu = sqrt(16) / 4."""
    file = write(tmp_path, EXPERIMENT.replace("PRIVACY", "user = { clip = 1.0, noise = 4.0 }"))
    said = vergence("study", "evaluate", protocol, file, "--out", tmp_path / "o")
    assert said.code == 0, said.err
    whole = gaussian_epsilon(math.sqrt(PEOPLE * SEEDS * ROUNDS) / 4.0, DELTA)
    merged = tmp_path / "o" / protocol
    told = json.loads((merged / "fedavg" / "results.json").read_text())["privacy"]["person"]
    assert told["epsilon"] == pytest.approx(whole)
    assert told["seeds_together"] == pytest.approx(whole)
    assert f"spend epsilon {whole:.3g} together" in said.out
    assert vergence("privacy", "ethics", merged).code == 0
    plan = json.loads((merged / "ethics.json").read_text())["plan"]
    assert plan["budget"]["person"]["epsilon"] == pytest.approx(whole)


def test_of_masks_it_is_that_of_the_person_who_spent_most(tmp_path):
    """Each is in three folds of two seeds, with a budget of 1 in each."""
    text = EXPERIMENT.replace('"fedavg"', '{ name = "fedcpf", rate = 0.4 }')
    file = write(tmp_path, text.replace("PRIVACY", 'mask = { epsilon = 1.0, of = "entry" }'))
    said = vergence("study", "evaluate", "leave-one-out", file, "--out", tmp_path / "o")
    assert said.code == 0, said.err
    folder = tmp_path / "o" / "leave-one-out"
    path = folder / "fedcpf" / "results.json"
    one = folder / "folds" / "p00" / "fedcpf" / "results.json"
    told, fold = (json.loads(p.read_text())["privacy"]["mask"] for p in (path, one))
    assert fold["epsilon"] < told["epsilon"] <= 6.01 * fold["epsilon"]
