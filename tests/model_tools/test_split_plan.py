"""`vergence model split-plan`: numbers by hand and as in a run, tables, files, bad input."""

import csv
import io

import pytest
import torch
from rich.console import Console

from vergence.core.data import Batch, Samples, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.stages import PULL, pieces
from vergence.errors import ConfigError
from vergence.experiment.run import start
from vergence.experiment.schema import Experiment, check
from vergence.methods.split.base import pack
from vergence.model_tools.split_cost import (
    BOTTLENECK,
    CUT,
    FEDAVG,
    NUMBERS,
    U_SHAPE,
    CutChoice,
    Load,
    choices,
    load_of,
    work,
)
from vergence.model_tools.split_plan import SplitPlan, own_cut_sentence, show, split_plan
from vergence.models.lenet import LeNet
from vergence.models.resnet_preact import ResNetPreact
from vergence.tasks.gaze_angle import GazeAngle

THESIS = Load(3000.0, 94.0, 32)
"""The thesis's 3,000 images of a person, one epoch of batches of 32."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))


def batch(count: int, size: tuple[int, int] = (36, 60), device: str = "meta") -> Batch:
    image = torch.zeros(count, 1, *size, dtype=torch.uint8, device=device)
    return {"image": image, **{n: torch.zeros(count, 2, device=device) for n in ("gaze", "pose")}}


def plan_of(task: GazeAngle, load: Load, size: tuple[int, int] = (36, 60)) -> SplitPlan:
    return SplitPlan(
        "lenet", "nobody", load, "pool1", tuple(choices(task, batch(1, size), load.size))
    )


@pytest.fixture(scope="module")
def model2() -> SplitPlan:
    return plan_of(GazeAngle(LeNet((20, 80))), THESIS)


def choice(plan: SplitPlan, kind: str, *after: str) -> CutChoice:
    return next(c for c in plan.choices if (c.kind, c.after) == (kind, after))


def experiment(**tables: object) -> Experiment:
    return check(
        {
            "task": {"name": "gaze_angle"},
            "model": {"name": "small_eye"},
            "federation": {
                "name": "eye_synthetic",
                "people": 2,
                "samples": 60,
                "size": "9x15",
                "days": [5, 6],
            },
            "method": {"name": "fedavg"},
            "local": {"optimizer": "sgd", "epochs": 2, "batch": 16},
            "run": {"rounds": 1, "workers": 1, "evaluate_every": 0},
            **tables,
        }
    )


def test_bytes_of_the_thesis(model2):
    """After pool1 20 x 16 x 28 = 8,960 floats, 35,840 B an image; 3,000 of them are 107.52 MB.

    Up go 16 B of labels and pose an image too, and 520 parameters both ways. FedAvg sends 2,922,106
    parameters, 11,688,424 B, each way: 107.57 + 107.52 MB are 9.2 times as much.
    """
    pool1, whole = choice(model2, CUT, "pool1"), model2.fedavg
    assert pool1.values == (8_960,)
    assert [pool1.sample(n) for n in ("float32", "float16", "int8")] == [35_840, 17_920, 8_960]
    assert pool1.label_bytes == 16
    assert pool1.down("float32", THESIS) == 107_520_000 + 2_080
    assert pool1.up("float32", THESIS) == 107_520_000 + 2_080 + 48_000
    assert whole.up("float32", THESIS) == whole.down("float32", THESIS) == 11_688_424
    assert model2.times(pool1) == pytest.approx(9.2, abs=0.01)
    assert "9.2 times what FedAvg sends: 215.1 MB against 23.4 MB" in own_cut_sentence(model2)
    assert (pool1.client.parameters, pool1.server.parameters) == (520, 2_921_586)


def test_numbers_of_a_tensor_are_those_that_travel(model2):
    """A batch of 32 in each format, its scale for int8."""
    pool1, one = choice(model2, CUT, "pool1"), Load(32.0, 1.0, 32)
    for number in NUMBERS:
        flat = pack(torch.zeros(32, 20, 16, 28), number).flat  # type: ignore[arg-type]
        without = pool1.down(number, one) - 4 * 520
        assert without == flat.numel() * flat.element_size()


def test_samples_up_to_which_a_cut_sends_less(model2):
    """(2,922,106 - 520) parameters * 8 B = samples * (2 * 35,840 + 16) B: 325.997."""
    pool1 = choice(model2, CUT, "pool1")
    assert model2.even(pool1) == pytest.approx(2_921_586 * 8 / 71_696)
    for samples, less in ((325.0, True), (326.0, False)):
        load = Load(samples, 1.0, 32)
        sent, whole = (c.both("float32", load) for c in (pool1, model2.fedavg))
        assert (sent < whole) is less


def test_flops_and_memory_by_hand(model2):
    """conv1: 20 * 25 products and sums for 32 * 56 places, 1,792,000 FLOPs; backward the same, as
    pictures need no gradient. Twice forward: 5,376,000.

    Kept of an image: itself (2,160 floats), conv1's output (35,840), where each maximum was
    (8,960 int64) and the gradient from the server (8,960 floats): 259,520 B.

    The rest, an image, in products: conv2 80 * 500 * 12 * 24, fc1 5,760 * 500, fc2 502 * 2. The
    server's backward pass is twice that: it owes the gradient of what came in, too.
    """
    front = choice(model2, CUT, "pool1").client
    assert (front.forward, front.backward) == (2 * 1_792_000, 1_792_000)
    assert choice(model2, CUT, "pool1").again == 1_792_000
    assert front.memory == 32 * 259_520
    rest = 2 * (80 * 500 * 12 * 24 + 5_760 * 500 + 502 * 2)
    server = choice(model2, CUT, "pool1").server
    assert (server.forward, server.backward) == (rest, 2 * rest)
    assert model2.fedavg.flops == 3 * rest + 2 * 1_792_000


def test_tensors_without_data_cost_what_tensors_with_data_do():
    task = GazeAngle(ResNetPreact(4, 2))
    front = pieces(task, "stage1")[0]
    found = []
    for device in ("cpu", "meta"):
        module, given = front.module().to(device), batch(3, (9, 15), device)
        pull = torch.zeros_like(front.forward(module, given).detach())
        found.append(work(front, module, {**given, PULL: pull}))
    assert found[0] == found[1]
    assert found[0].memory > 0
    assert found[0].forward > 0


def test_a_bottleneck_shrinks_what_travels_and_is_counted(model2):
    """20 channels to 2 and back: 20 * 2 + 2 and 2 * 20 + 20 more parameters, 896 floats an image.

    2 * 20 * 2 FLOPs for each of 16 * 28 places, on each side.
    """
    plain, slim = (choice(model2, kind, "pool1") for kind in (CUT, BOTTLENECK))
    assert slim.values == (896,)
    assert slim.client.parameters - plain.client.parameters == 42
    assert slim.server.parameters - plain.server.parameters == 60
    assert slim.again - plain.again == slim.server.forward - plain.server.forward == 35_840
    kinds = [c.after for c in model2.choices if c.kind == BOTTLENECK]
    assert kinds == [("conv1",), ("pool1",), ("conv2",), ("pool2",)]


def test_a_u_has_a_second_cut_before_the_last_stage(model2):
    """500 numbers come down before fc2, their gradient goes up; labels and pose do not.

    The client has fc2's 1,006 parameters too, and the server goes forward twice.
    """
    plain, bent = choice(model2, CUT, "pool1"), choice(model2, U_SHAPE, "pool1", "fc1")
    assert bent.values == (8_960, 500)
    assert bent.label_bytes == 0
    assert bent.up("int8", THESIS) == bent.down("int8", THESIS)
    assert bent.down("int8", THESIS) == 3000 * 9_460 + 94 * 8 + 4 * 1_526
    assert bent.client.parameters == 1_526
    assert bent.flops - plain.flops == 3 * 2 * 502 * 2
    middle = 2 * (80 * 500 * 12 * 24 + 5_760 * 500)
    assert (bent.server.forward, bent.server.backward) == (2 * middle, 2 * middle)
    assert [c.after[0] for c in model2.choices if c.kind == U_SHAPE] == [
        "conv1",
        "pool1",
        "conv2",
        "pool2",
    ]


def test_without_pose_only_the_label_goes_up():
    plan = plan_of(GazeAngle(LeNet((3, 4), pose=False)), Load(10.0, 1.0, 10))
    assert choice(plan, CUT, "pool1").label_bytes == 8


def test_the_load_is_what_a_fit_would_take():
    """7 and 12 samples in batches of 5: 2 + 3 batches an epoch; or three batches of each."""
    people = {str(n): Splits(*[Samples({"x": torch.zeros(n)})] * 3) for n in (7, 12)}
    federation = Federation("two", people)
    assert load_of(federation, LocalTraining(optimizer="sgd", epochs=2, batch=5)) == Load(
        19.0, 5.0, 5
    )
    assert load_of(federation, LocalTraining(optimizer="sgd", steps=3, batch=5)) == Load(
        12.0, 3.0, 5
    )
    assert load_of(federation, LocalTraining(optimizer="sgd", batch=50)) == Load(9.5, 1.0, 12)


@pytest.mark.parametrize(
    ("method", "number", "kind", "after"),
    [
        ("splitfed", "float32", CUT, ("conv2",)),
        ("splitfed", "int8", CUT, ("conv2",)),
        ("splitfed_u", "float16", U_SHAPE, ("conv2", "fc1")),
    ],
)
def test_a_run_sends_what_the_plan_says(tmp_path, method, number, kind, after):
    """But for its last, empty message: a count of 4 B, and a scale of 4 B with int8."""
    table = {"name": method, "cut": "conv2", "number": number}
    asked = experiment(method=table)
    start(asked, tmp_path / "out")
    with (tmp_path / "out" / "turns.csv").open() as file:
        rows = list(csv.DictReader(file))
    plan = split_plan(asked)
    found = choice(plan, kind, *after)
    for way, planned in (("bytes_up", found.up), ("bytes_down", found.down)):
        sent = sum(int(row[way]) for row in rows) / 2
        assert 0 <= sent - planned(number, plan.load) <= 8


def test_tables_picture_and_numbers(tmp_path):
    text, out = io.StringIO(), tmp_path / "deep" / "plan.png"
    show(experiment(), Console(file=text, width=200), out)
    printed = text.getvalue()
    for word in (
        "what travels",
        "what is computed",
        "conv1",
        "bottleneck",
        "U-shape",
        "FedAvg",
        "another network",
        "equal at",
        "The network's own cut, after conv1",
    ):
        assert word in printed
    assert out.read_bytes().startswith(b"\x89PNG")
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["kind"] for r in rows] == [FEDAVG] + [CUT] * 5 + [BOTTLENECK] * 3 + [U_SHAPE] * 3
    assert rows[0]["equal_at_samples"] == ""
    assert rows[1]["sample_bytes_float32"] == str(4 * 16 * 9 * 15)
    assert float(rows[1]["round_bytes_up_int8"]) == 80 * (2_160 + 16) + 6 * 4 + 4 * 160


def test_markdown(tmp_path):
    text = io.StringIO()
    show(experiment(), Console(file=text, width=80), markdown=True)
    lines = text.getvalue().splitlines()
    assert any(line.startswith("| cut after |  | values |") for line in lines)
    assert any(line.startswith("| conv1 | cut | 2,160 | 8,640 | 4,320 | 2,160 |") for line in lines)
    assert not list(tmp_path.glob("*.png"))


def test_bad_input_is_one_clear_error(tmp_path):
    toy = {"task": {"name": "toy"}, "model": {"name": "linear"}, "federation": {"name": "toy"}}
    with pytest.raises(ConfigError, match="model 'linear' is not a row of stages"):
        split_plan(experiment(**toy))
    with pytest.raises(ConfigError, match="lenet takes eye patches"):
        split_plan(experiment(model={"name": "lenet"}))
    with pytest.raises(ConfigError, match="'gif' is no format"):
        show(experiment(), Console(file=io.StringIO()), tmp_path / "plan.gif")


def test_a_cut_at_the_end_leaves_the_server_nothing_to_compute():
    """An empty last piece, as a cut at the end leaves it, has no FLOPs."""
    plan = plan_of(GazeAngle(LeNet((3, 4))), Load(4.0, 1.0, 4))
    end = choice(plan, CUT, "fc2")
    assert (end.server.parameters, end.server.forward, end.server.backward) == (0, 0, 0)
    assert end.client.parameters == plan.fedavg.client.parameters
