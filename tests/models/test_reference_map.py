"""Networks that start as a map that learns nothing, and learn what it does not know."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.params import Layout
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.models import motion, pretrained
from vergence.models.glc.glc_causal import GlcCausal
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.glc.reference_map import Reference
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.tasks.gaze_map import GazeMap
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked

NETWORKS = pytest.mark.parametrize("model", [GlcCausal, GlcFeatures])


def moving_data(monkeypatch: pytest.MonkeyPatch, task: GazeMap, length: int = 5) -> Federation:
    """Clips, 20 frames of 32 x 48 pixels in all; one corner flickers."""

    def plain(frames: Tensor) -> Tensor:
        made = torch.Generator().manual_seed(3)
        return torch.randn(len(frames), 432, 2, 3, generator=made).half()

    monkeypatch.setattr(pretrained, "features", plain)
    drawn = torch.Generator().manual_seed(0)
    frames = torch.full((20, 32, 48, 3), 128, dtype=torch.uint8)
    frames[:, :16, :16] = torch.randint(0, 256, (20, 1, 1, 1), generator=drawn, dtype=torch.uint8)
    columns = {
        "ids": torch.arange(20).view(-1, length),
        "points": torch.rand(20 // length, length, 1, 2, generator=drawn),
        "scene": torch.full((20 // length,), -1),
    }
    part = Samples(columns, {"frames": SharedRows(frames, "ids")})
    return task.network.prepare(Federation("one", {"ann": Splits(part, part, part)}))


@NETWORKS
@pytest.mark.parametrize("kind", ["centre", "motion"])
def test_a_fresh_network_is_the_row_of_that_name(
    model: type[GlcCausal | GlcFeatures], kind: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = GazeMap(model(grid=(4, 6), reference=kind, standardise=False))
    ready = moving_data(monkeypatch, task)
    test = ready.people["ann"].test
    found = task.metrics(Solver(task).outputs(task.init(), test), test)["nss"]
    rows = {name: people["ann"]["nss"] for name, people in task.priors(ready).items()}
    assert found == pytest.approx(rows[kind], abs=1e-4)
    others = {"centre", "uniform", "motion"} & set(rows) - {kind}
    assert all(abs(found - rows[other]) > 0.01 for other in others)


@NETWORKS
def test_without_a_reference_nothing_changes(model: type[GlcCausal | GlcFeatures]) -> None:
    """The same parameters by name and by value; with one, one more, and a head of zeros."""
    torch.manual_seed(0)
    plain = model(grid=(4, 6)).build()
    torch.manual_seed(0)
    with_map = model(grid=(4, 6), reference="motion").build()
    before, after = dict(plain.named_parameters()), dict(with_map.named_parameters())
    assert set(after) - set(before) == {"reference.exponent"}
    for name, value in before.items():
        expected = torch.zeros_like(value) if name.startswith("head.") else value
        assert torch.equal(after[name], expected)


@NETWORKS
def test_pictures_can_teach_a_network_that_then_sees_motion(
    model: type[GlcCausal | GlcFeatures],
) -> None:
    """With a map of the middle it has the parameters that it has with motion: `model.start`."""
    layouts = [
        Layout.of(network.build())
        for network in (model(reference="centre"), model(reference="motion"))
    ]
    assert layouts[0] == layouts[1]


@NETWORKS
@pytest.mark.parametrize("seen", [False, True])
def test_the_product_is_learned_together(
    model: type[GlcCausal | GlcFeatures], seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are the network's own plus exponent * log(map); stacked clients end alike."""
    options = model(grid=(4, 6), width=8, heads=2, reference="motion", motion=seen)
    task = GazeMap(replace(options, standardise=False))
    train = moving_data(monkeypatch, task).people["ann"].train
    ask = Fit(task.init(), train, LocalTraining(optimizer="sgd", steps=6, batch=4, lr=0.5))
    stream = RandomStream("reference", 0)
    fitted = Solver(task).fit(ask, stream).params
    (stacked,) = Stacked(task).fit_all([ask], [stream])
    torch.testing.assert_close(stacked.params.flat, fitted.flat, rtol=1e-3, atol=1e-4)
    assert abs(float(fitted["reference.exponent"]) - 1) > 1e-3
    batch = train.take(slice(0, 4))
    before, after = (
        float(task.loss(Solver(task).outputs(params, train), batch))
        for params in (task.init(), fitted)
    )
    assert after < before - 0.01


def test_the_map_of_the_middle_asks_for_no_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[Reference, bool] = {"none": False, "centre": False, "motion": True}
    for kind, asked in expected.items():
        task = GazeMap(GlcFeatures(grid=(4, 6), reference=kind, standardise=False))
        banks = moving_data(monkeypatch, task).people["ann"].test.banks
        assert (motion.BANK in banks) is asked


def test_dp_sgd_tells_pictures_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of clipped gradients are those of one picture after the other."""
    options = GlcFeatures(grid=(4, 6), width=8, heads=2, reference="centre", standardise=False)
    task = GazeMap(options)
    part, module = moving_data(monkeypatch, task, 1).people["ann"].train, task.module()
    for parameter in module.get_submodule("head").parameters():
        torch.nn.init.normal_(parameter)
    parameters = dict(module.named_parameters())

    def loss(rows: slice) -> Tensor:
        batch = part.take(rows)
        return task.loss(task.forward(module, batch), batch)

    single = []
    for row in range(4):
        found = torch.autograd.grad(loss(slice(row, row + 1)), list(parameters.values()))
        single.append(dict(zip(parameters, found, strict=True)))
    lengths = [torch.stack([g.square().sum() for g in one.values()]).sum().sqrt() for one in single]
    clip = float(torch.stack(lengths).median())
    clipped = {name: torch.zeros_like(value) for name, value in parameters.items()}
    with Clipper(module, clip) as clipper:
        batch = part.take(slice(0, 4))
        output = task.forward(module, batch)
        each = torch.stack(
            [
                task.loss(output[row : row + 1], {"points": batch["points"][row : row + 1]})
                for row in range(4)
            ]
        )
        clipper.gradients(each, clipped)
    for name, gradient in clipped.items():
        expected = sum(
            one[name] * min(1.0, clip / float(n)) for one, n in zip(single, lengths, strict=True)
        )
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)
    assert float(clipped["reference.exponent"].abs()) > 1e-5
