"""The audit of a run with a teacher: who was in, by teacher and student, and copies of it."""

import csv
import tomllib

import pytest
from vergence_papers.sgzsl.protocol import blind

from tests.cli.commands import run, vergence
from vergence.audit.teacher_membership import with_rounds
from vergence.experiment.schema import check
from vergence.methods.generative.provider import Taught

PAGE = """
task       = { name = "zero_shot" }
model      = { name = "mlp", inputs = 64, hidden = [64, 32], classes = 16 }
federation = { name = "zsl_synthetic", images = 20 }
methods    = [{ name = "sg_zsl", semantics = "words", knows = "all", generator_rounds = 2, samples = 20, batch = 160, hidden = 32 }]
local      = { epochs = 80, batch = 32, optimizer = "adam", lr = 0.003 }
run        = { rounds = 5, seeds = [0], evaluate_every = 0, workers = 1 }
"""  # noqa: E501


@pytest.mark.parametrize(("rounds", "making"), [(2, 1), (3, 1), (4, 2), (5, 2), (9, 2)])
def test_fewer_rounds_are_shared_between_generator_and_student(rounds, making):
    experiment = with_rounds(check(tomllib.loads(PAGE)), rounds)
    (method,) = experiment.methods.values()
    assert isinstance(method, Taught)
    assert (experiment.plan.rounds, method.generator_rounds) == (min(rounds, 5), making)


@pytest.mark.slow
def test_a_teacher_that_learned_by_heart_tells_who_was_in_and_is_copied(tmp_path):
    folder = run(tmp_path, PAGE)
    said = vergence("privacy", "audit", folder / "sg_zsl", "--quick")
    assert said.code == 0, said.err
    with (folder / "sg_zsl" / "audit" / "people.csv").open(newline="") as file:
        lines = {row["finds"]: row for row in csv.DictReader(file)}
    by = {
        who: lines[f"was this sample in, by the {who}; as in the run: TPR at 1% FPR"]
        for who in ("teacher", "student")
    }
    assert float(by["teacher"]["low"]) > 0.02 > float(by["student"]["low"])
    assert int(by["teacher"]["members"]) == 6 * 224 // 2
    copied = [
        float(
            lines[f"a copy of the teacher, by {n} answers to random samples: says the same"][
                "value"
            ]
        )
        for n in ("100", "10,000")
    ]
    assert 1 / 16 < copied[0] < copied[1] < 1


def test_where_there_is_nothing_to_find_the_attack_finds_less_than_its_false_alarms():
    assert 0.4 < blind(0) < 0.9
