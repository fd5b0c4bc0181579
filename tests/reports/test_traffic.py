"""Bytes that `explain` foretells are those that a run counts."""

import csv
import io
import tomllib
from collections import defaultdict

import pytest
from rich.console import Console

from tests.engine.test_compatibility_check import experiment
from vergence.engine.plan import Plan
from vergence.experiment.run import start
from vergence.experiment.schema import check, merge
from vergence.experiment.validation import validate
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedridge import FedRidge
from vergence.models.kernel_eye import KernelEye
from vergence.models.small_eye import SmallEye
from vergence.privacy.config import Privacy
from vergence.reports.explain import explain, flow, learns
from vergence.reports.traffic import carried, totals
from vergence.tasks.gaze_angle import GazeAngle


def counted(folder, people):
    """Return bytes up and down of the first round, means over people."""
    told = defaultdict(float)
    with (folder / "turns.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["round"] == "1":
                told["up"] += int(row["bytes_up"]) / people
                told["down"] += int(row["bytes_down"]) / people
    return told["up"], told["down"]


@pytest.mark.parametrize(
    ("method", "settings", "beside"),
    [
        ("fedavg", (), 16),  # a weight and a loss of 8 bytes, which no table counts
        ("scaffold", (), 16),
        ("fedavg", ("codec",), 16),
        ("fedavg", ("pads",), 0),
        ("fedcpf", ("shares",), 0),
        ("splitfed", (), 12),  # two weights; the last reply holds a number of 4 bytes
        ("splitfed_u", (), 32),
    ],
)
def test_what_is_foretold_is_what_is_counted(method, settings, beside, tmp_path):
    made = check(experiment(method, settings))
    ready = validate(made).ready
    rows = carried(made.plan, made.methods[method], made.task(0), ready)
    up, down = totals(rows)
    start(made, tmp_path / "run")
    found = counted(tmp_path / "run", len(ready.people))
    assert up - beside == pytest.approx(found[0], abs=1)
    assert down == pytest.approx(found[1], abs=1)


def test_masks_send_at_most_what_is_foretold(tmp_path):
    """Whatever is personal does not travel: 20 bytes of 5 entries, and a byte of mask."""
    made = check(merge(experiment("fedcpf", ()), {"run": {"rounds": 3}}))
    rows = carried(made.plan, made.methods["fedcpf"], made.task(0), None)
    assert [(row.bytes, row.most) for row in rows if row.up] == [(20, True), (1, True), (16, False)]
    start(made, tmp_path / "run")
    with (tmp_path / "run" / "turns.csv").open(newline="") as file:
        assert all(int(row["bytes_up"]) <= 21 for row in csv.DictReader(file))


LABS = {"a": ["p00", "p01", "p02"], "b": ["p03", "p04"], "c": ["p05", "p06", "p07"]}


@pytest.mark.parametrize(
    ("method", "entries", "said"),
    [
        ("fedcpf", 5, "how many people of the lab share each entry"),
        ("ifca", 15, "how much each entry counts, added up over the lab's people"),
    ],
)
def test_a_lab_sends_a_number_with_each_entry(method, entries, said, tmp_path):
    """What its people share differs, so that a mask would not do: 4 bytes of each entry, too."""
    made = check(merge(experiment(method, ()), {"run": {"rounds": 3}, "silos": LABS}))
    rows = carried(made.plan, made.methods[method], made.task(0), None)
    (weights,) = (row for row in rows if row.what == said)
    assert (weights.bytes, weights.most) == (4 * entries + -(-entries // 8), True)
    assert not [row.what for row in rows if "the person" in row.what]
    start(made, tmp_path / "run")
    with (tmp_path / "run" / "turns.csv").open(newline="") as file:
        sent = [int(row["bytes_up"]) for row in csv.DictReader(file)]
    without = 4 * entries + -(-entries // 8)
    assert method == "ifca" or max(sent) > without
    assert max(sent) <= without + 4 * entries
    console = Console(record=True, width=400, file=io.StringIO())
    explain(made, console)
    text = console.export_text()
    assert f"at most, {said}, metrics" in text
    assert "mask when it changed" not in text


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("fedavg", (), "though its method needs the sum alone"),
        ("fedcpf", ("shares",), "random numbers, unless all of them collude"),
        ("fedavg", ("DP people",), "cut to length 1, noise comes later"),
        ("fedavg", ("DP-SGD",), "made by noised training"),
        ("splitfed_u", (), "it tells of gaze"),
        ("centralised", (), "everybody's recordings and labels"),
        ("fedpac", (), "as far as they are known"),
        ("smashed_average", ("pads",), "as much as a batch is [smash]"),
        ("fedcpf", ("DP people", "pads"), "update of model, a share of the noise"),
        ("fedcpf", ("DP people", "pads"), "everybody counts once"),
        ("splitfed", ("pads",), "of weights their sum"),
    ],
)
def test_explain_says_who_sees_which_bytes(method, settings, said):
    console = Console(width=400)
    with console.capture() as found:
        explain(check(experiment(method, settings)), console)
    assert said in found.get()
    assert "bytes up" in found.get()


def test_a_reply_without_trees_and_metrics_is_nothing():
    """FedRidge sends no loss with its products, and nothing at all of the own part."""
    method, task = FedRidge(), GazeAngle(KernelEye(features=4, own_centres=3))
    drawn = flow(method, task, Privacy())
    assert "server <-- products, weight --- client" in drawn
    assert "server <-- nothing --- client" in drawn
    table = learns(method, task, Plan(), [])
    cells = dict(zip(*(column.cells for column in table.columns), strict=True))
    assert cells["server (tune)"] == "nothing"
    assert cells["server (train)"].startswith("the weighted sum over people of products; one")
    with_loss = flow(FedAvg(), GazeAngle(SmallEye()), Privacy())
    assert ", weight, metrics --- client" in with_loss


EYES = """
recipe = "eyes"
model = { features = 20, own_centres = 30, side = false }
federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", 'wire = { codec = "fp16" }', "[privacy]\naggregation = {}"])
def test_products_are_foretold(more, tmp_path):
    """20 features and 1: 231 entries on and above the diagonal, and 21 times pitch and yaw."""
    made = check(merge(tomllib.loads(EYES), tomllib.loads(more)))
    (method,) = made.methods.values()
    rows = carried(made.plan, method, made.task(0), None)
    up, down = totals(rows)
    if not more:
        assert up == 4 * (231 + 42) + 8
        assert down == 2 * 4 * 42
    start(made, tmp_path / "run")
    beside = 0 if "privacy" in more else 8  # a weight, which no table counts
    assert up - beside == pytest.approx(counted(tmp_path / "run", 3)[0], abs=1)
    text = explained(made)
    assert "not known yet" not in text
    assert "as far as they are known" not in text


def explained(made):
    console = Console(record=True, width=400, file=io.StringIO())
    explain(made, console)
    return console.export_text()


@pytest.mark.parametrize(
    ("own", "inside"), [("own_centres = 30", True), ("own_centres = 0", False)]
)
def test_explain_says_that_personal_models_contain_pictures(own, inside):
    """A run's folder has everybody's model, so that "nobody else" is true of deployments alone."""
    text = explained(check(tomllib.loads(EYES.replace("own_centres = 30", own))))
    assert ("of eye images the pixels without brightness and contrast" in text) == inside
    assert ("nobody else, in a deployment" in text) == inside
    if inside:
        alone = check(merge(tomllib.loads(EYES), {"method": {"own_part": False}}))
        assert "of eye images the pixels" not in explained(alone)


@pytest.mark.parametrize(("people", "announced"), [(4, False), (5, True)])
def test_residuals_are_announced_where_they_are_written(people, announced):
    made = check(tomllib.loads(EYES.replace("people = 3", f"people = {people}")))
    assert ("residuals.json" in explained(made)) == announced
