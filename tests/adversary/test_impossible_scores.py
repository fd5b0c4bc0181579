"""What a client says that its model scores is a number under a metric's name, or left out.

The adversary is one client of five. The tables and results.json of the server hold what the other
four said.
"""

import csv
import json
import math

import pytest

from tests.adversary.lies import circle, method
from tests.engine.toys import STAMP
from vergence.core.local_training import LocalTraining
from vergence.core.serialization import unpack
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.deployment.remote_clients import remote_people
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment import checksums
from vergence.results import write as results
from vergence.results.read import read

GOOD = {"error": 1.0, "score": 0.5}
LIES = {
    "NaN": ({**GOOD, "error": math.nan}, "its error at P0 is nan"),
    "infinity": ({**GOOD, "score": -math.inf}, "its score at P0 is -inf"),
    "a number whose square is none": ({**GOOD, "error": 1.7e308}, "its error at P0 is 1.7e+308"),
    "NaN as a text": ({**GOOD, "error": "nan"}, "its error at P0 is nan"),
    "401 digits": ({**GOOD, "error": 10**400}, "OverflowError"),
    "a formula": ({**GOOD, "=cmd|' /C calc'!A0": 1.0}, "which is no metric"),
    "a formula with a plus": ({**GOOD, "+1": 1.0}, "which is no metric"),
    "a formula of an older kind": ({**GOOD, "@SUM(A1)": 1.0}, "which is no metric"),
    "two columns": ({**GOOD, 'a,"b': 1.0}, "which is no metric"),
    "two lines": ({**GOOD, "a\nb": 1.0}, "which is no metric"),
    "a long name": ({**GOOD, "a" * 41: 1.0}, "which is no metric"),
    "letters that look like others": ({**GOOD, "scor\u0435": 1.0}, "which is no metric"),
    "no name": ({**GOOD, "": 1.0}, "which is no metric"),
    "many metrics": ({f"m{i}": 1.0 for i in range(65)}, "65 metrics, and 64 are allowed"),
}


def ran(folder, lie):
    """Run two rounds in which p01 says this of itself; return the circle, the server's folder."""
    made = circle(
        method("fedavg", LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)),
        folder,
        5,
        rounds=2,
    )
    honest = made.ask

    def ask(client, request):
        answer = honest(client, request)
        if client != "p01" or unpack(request, ClientRequest).kind != "evaluate":
            return answer
        note, body = unframed(answer)
        return framed({**note, "measured": lie}, body)

    made.ask = ask
    made.run_rounds(rounds=2, evaluate_every=1)
    path = folder / "server"
    directory = RunDirectory(path, STAMP, elsewhere=True)
    directory.open()
    people = remote_people("toy", {c: len(s.train) for c, s in made.federation.people.items()})
    results.write_results(
        directory, "fedavg", made.method, made.task, people, made.plan, personal=None
    )
    checksums.seal(path)
    return made, path


def of_the_others(path):
    """True if the tables and results hold finite numbers of the task's metrics, of four people."""
    with (path / "people.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = json.loads((path / "results.json").read_text())["metrics"]
    (run,) = read(path).runs
    return (
        {row["person"] for row in rows} == {"p00", "p02", "p03", "p04"}
        and {row["metric"] for row in rows} == set(told) == {"error", "score"}
        and all(math.isfinite(about[key]) for about in told.values() for key in ("mean", "std"))
        and len(run.scores("error")) == 4
    )


@pytest.mark.ci
@pytest.mark.parametrize("name", LIES)
def test_who_says_what_cannot_be_is_left_out_and_named(name, tmp_path):
    lie, said = LIES[name]
    made, path = ran(tmp_path, {"P0": lie})
    assert of_the_others(path)
    assert made.told
    for event, client, line in made.told:
        assert (event, client) == ("unmeasured", "p01")
        assert line.startswith("'p01' is left out of an evaluation, quarantined: malformed: ")
        assert said in line
        assert line.isprintable()


def test_a_point_that_nobody_asked_for_is_not_in_the_tables(tmp_path):
    made, path = ran(tmp_path, {"P0": GOOD, "P2": {"error": 0.0}, "P1": {"zz": 1.0}})
    with (path / "people.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["person"] == "p01"]
    assert {row["evaluation"] for row in rows} == {"P0"}
    assert {row["metric"] for row in rows} == {"error", "score"}
    assert not made.told


def test_what_is_said_of_a_turn_is_looked_at_too(tmp_path):
    made = circle(method("fedavg", LocalTraining(optimizer="sgd")), tmp_path, 5, rounds=2)
    honest = made.ask

    def ask(client, request):
        answer = honest(client, request)
        if client != "p01" or unpack(request, ClientRequest).kind != "turn":
            return answer
        note, body = unframed(answer)
        return framed({**note, "measured": {"P1": {"error": math.nan}}}, body)

    made.ask = ask
    made.run_rounds(rounds=2, evaluate_every=1, points=("P0", "P1"))
    with (tmp_path / "server" / "turns.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == "p01"]
    assert any("malformed: ValueError: its error at P1 is nan" in row["status"] for row in rows)
