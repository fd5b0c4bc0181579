"""Networks as rows of stages: every cut gives the same outputs, parameters and gradients."""

import pytest
import torch
from torch import Tensor

from vergence.core.data import Batch
from vergence.core.params import Layout, Params
from vergence.core.stages import PULL, SMASHED, Piece, Staged, build_staged, pieces
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.models.glc.glc_vit import GlcVit
from vergence.models.lenet import LeNet
from vergence.models.linear import Linear
from vergence.models.resnet18 import ResNet18
from vergence.models.resnet_preact import ResNetPreact
from vergence.models.small_eye import SmallEye
from vergence.models.softmax import Softmax
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.images import Images

BLOCKS = tuple(f"block{i}" for i in range(8))
ROWS = {
    "lenet": (
        GazeAngle(LeNet((3, 4)), seed=3),
        (36, 60),
        ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2"),
    ),
    "small_eye": (
        GazeAngle(SmallEye(), seed=3),
        (9, 15),
        ("conv1", "conv2", "conv3", "fc1", "fc2"),
    ),
    "resnet_preact": (
        GazeAngle(ResNetPreact(4, 2), seed=3),
        (9, 15),
        ("conv", "stage1", "stage2", "stage3", "fc"),
    ),
    "resnet18": (GazeAngle(ResNet18(4, 2), seed=3), (36, 60), ("conv", *BLOCKS, "fc")),
    "softmax": (Images(Softmax((1, 4, 5), 3), seed=3), (4, 5), ("linear",)),
}
CUTS = [(name, stage) for name, (*_, stages) in ROWS.items() for stage in stages]
POSED = {
    "lenet": (LeNet, {"channels": (3, 4)}),
    "small_eye": (SmallEye, {}),
    "resnet_preact": (ResNetPreact, {"channels": 4, "groups": 2}),
    "resnet18": (ResNet18, {"channels": 4, "groups": 2}),
}


def samples(task: Task, size: tuple[int, int], count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(7)
    image = torch.randint(256, (count, 1, *size), generator=generator, dtype=torch.uint8)
    if isinstance(task, Images):
        return {"image": image, "label": torch.arange(count) % 3}
    gaze, pose = torch.rand(2, count, 2, generator=generator).unbind()
    return {"image": image, "gaze": gaze, "pose": pose}


def through(row: tuple[Piece, ...], batch: Batch) -> Tensor:
    """Send a batch through the pieces, each of which gets what the one before it gave."""
    for piece in row:
        output = piece.forward(piece.module(), batch)
        batch = {**batch, SMASHED: output}
    return batch[SMASHED]


@pytest.mark.parametrize("name", ROWS)
def test_stages_are_the_layers_and_own_every_parameter_once(name: str) -> None:
    task, _, stages = ROWS[name]
    network = build_staged(task.network)
    assert tuple(network.stages) == stages
    owned = [path for paths in network.stages.values() for path in paths]
    for parameter, _ in network.named_parameters():
        assert sum(parameter.startswith(f"{path}.") for path in owned) == 1
    assert network.reads == (frozenset() if name == "softmax" else {stages[-1]})


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_every_cut_gives_the_same_outputs_to_the_bit(name: str, cut: str) -> None:
    task, size, _ = ROWS[name]
    batch = samples(task, size)
    whole = task.forward(task.module(), batch)
    assert torch.equal(through(pieces(task, cut), batch), whole)


@pytest.mark.parametrize("name", ROWS)
def test_a_piece_per_stage_gives_the_same_outputs(name: str) -> None:
    task, size, stages = ROWS[name]
    batch, row = samples(task, size), pieces(task, *stages)
    assert len(row) == len(stages) + 1
    assert torch.equal(through(row, batch), task.forward(task.module(), batch))


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_every_cut_parts_the_initial_parameters(name: str, cut: str) -> None:
    """Names in the network's order, first piece first; values as the whole network starts."""
    task, *_ = ROWS[name]
    first, second = (piece.init() for piece in pieces(task, cut))
    whole = task.init()
    assert first.layout.names + second.layout.names == whole.layout.names
    assert torch.equal(torch.cat([first.flat, second.flat]), whole.flat)


@pytest.mark.parametrize("name", ROWS)
def test_a_cut_at_the_end_leaves_a_piece_without_parameters(name: str) -> None:
    task, size, stages = ROWS[name]
    batch = samples(task, size)
    first, empty = pieces(task, stages[-1])
    assert empty.init().layout == Layout((), ())
    assert first.init().layout == task.init().layout
    output = first.forward(first.module(), batch)
    found = empty.loss(empty.forward(empty.module(), {**batch, SMASHED: output}), batch)
    assert torch.equal(found, task.loss(task.forward(task.module(), batch), batch))


def test_names_that_are_no_stage_come_twice_or_in_another_order_are_refused() -> None:
    task = ROWS["lenet"][0]
    row = "in order: conv1, pool1, conv2, pool2, fc1, fc2; got "
    for names in (("pool3",), ("pool1", "pool1"), ("fc1", "conv1"), ("conv1", "fc3")):
        with pytest.raises(ConfigError, match=row + ", ".join(names)):
            pieces(task, *names)


@pytest.mark.parametrize("model", [GlcVit(), Linear(3)])
def test_models_that_are_no_row_of_stages_are_refused(model: object) -> None:
    name = type(model).__module__.rpartition(".")[2]
    with pytest.raises(ConfigError, match=f"model '{name}' is not a row of stages .* lenet"):
        build_staged(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "cut"), [("lenet", "pool1"), *CUTS[6:]])
def test_gradients_through_the_cut_are_the_whole_networks_to_the_bit(name: str, cut: str) -> None:
    """The second piece gives d loss / d smashed, the first multiplies it by what it sent."""
    task, size, _ = ROWS[name]
    batch, module = samples(task, size), task.module()
    task.loss(task.forward(module, batch), batch).backward()
    wanted = {n: p.grad for n, p in module.named_parameters()}

    (front, back), found = pieces(task, cut), {}
    first, second = front.module(), back.module()
    with torch.no_grad():
        smashed = front.forward(first, batch)
    smashed.requires_grad_()
    sent = {**{n: batch[n] for n in (*task.labels, *task.side_inputs)}, SMASHED: smashed}
    back.loss(back.forward(second, sent), sent).backward()
    assert smashed.grad is not None
    front.loss(front.forward(first, batch), {**batch, PULL: smashed.grad}).backward()
    for part in (first, second):
        found |= {n: p.grad for n, p in part.named_parameters()}
    assert found.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        assert gradient.any()
        assert torch.equal(found[parameter], gradient), parameter


@pytest.mark.parametrize("name", POSED)
def test_without_pose_the_last_layer_has_four_weights_fewer(name: str) -> None:
    """All other parameters have the same shapes, and the pose given does not matter."""
    build, options = POSED[name]
    size = ROWS[name][1]
    posed, bare = (GazeAngle(build(**options, pose=pose)) for pose in (True, False))
    counts = [task.init().layout.n for task in (posed, bare)]
    assert counts[0] - counts[1] == 4
    network = bare.module()
    assert isinstance(network, Staged)
    assert network.reads == frozenset()
    batch = samples(bare, size)
    turned = {**batch, "pose": batch["pose"] + 1}
    assert torch.equal(bare.forward(network, batch), bare.forward(network, turned))
    assert not torch.equal(*(posed.forward(posed.module(), b) for b in (batch, turned)))
    first, last = pieces(bare, list(network.stages)[-2])
    sent = {SMASHED: first.forward(first.module(), batch)}
    assert torch.equal(last.forward(last.module(), sent), bare.forward(network, batch))


def test_lenet_is_cut_where_the_thesis_cuts_it_the_others_after_their_first_layer() -> None:
    """520 of 2,922,106 parameters are the client's."""
    assert [pieces(ROWS[n][0], "")[0].network.of for n in ROWS] == [  # type: ignore[attr-defined]
        ("conv1", "pool1"),
        ("conv1",),
        ("conv",),
        ("conv",),
        ("linear",),
    ]
    front, back = pieces(GazeAngle(LeNet((20, 80))), "")
    assert (front.init().layout.n, back.init().layout.n) == (520, 2_921_586)


def test_the_seed_of_the_task_decides_the_pieces() -> None:
    a, b = (Params.of(pieces(GazeAngle(SmallEye(), seed=s), "conv2")[0].module()) for s in (0, 1))
    assert not torch.equal(a.flat, b.flat)


def test_a_hook_under_its_former_name_is_called_with_a_warning():
    with pytest.warns(FutureWarning, match=r"Older\.told is called prediction now"):

        class Older(Images):
            def told(self, output):
                return output + 1

    assert Older(Linear()).prediction(torch.zeros(1)).item() == 1
