"""Random augmentation: new in every step, the same in every process, and what refuses it."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

import vergence as vg
from tests.experiment.made_up import arrays, network, trained
from vergence.api.augmentation import augmented
from vergence.errors import ConfigError

LOCAL = vg.LocalTraining(optimizer="sgd", epochs=2, batch=8)


def noise(x):
    """Draw from all three libraries."""
    return x + 0.1 * torch.randn(4) + 0.1 * random.random() + float(0.1 * np.random.rand())  # noqa: NPY002


def task(transform=noise, **options):
    return vg.task_from(network, mse_loss, **options).with_transform(transform)


def test_each_sample_has_an_augmentation_of_its_own():
    torch.manual_seed(0)
    (rows,) = augmented(noise, [torch.zeros(6, 4)])
    assert rows.shape == (6, 4)
    assert len({float(row[0]) for row in rows}) == 6


def test_random_numbers_of_whoever_calls_stay_as_they_were():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    augmented(noise, [torch.zeros(2, 4)])
    after = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert after == (random.random(), np.random.rand())  # noqa: NPY002


def test_it_is_called_for_every_training_sample_of_every_epoch_and_for_no_other(tmp_path):
    """Five people with 24 training samples, two rounds of two epochs."""

    def count(x):
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{float(x[0])!r}\n")
        return noise(x)

    local = vg.LocalTraining(optimizer="sgd", epochs=2, batch=8)
    trained(method=vg.methods.FedAvg(local=local), task=task(count), rounds=2, evaluate_every=1)
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) == 5 * 24 * 2 * 2
    train = {
        float(x)
        for splits in vg.Federation.from_arrays(arrays()).people.values()
        for x in splits.train.columns["x"][:, 0]
    }
    assert {float(call) for call in calls} == train


def test_bits_repeat_over_workers_and_after_an_interruption(tmp_path):
    def interrupt(report):
        if report.round == 2:
            raise KeyboardInterrupt

    method = vg.methods.FedAvg(local=LOCAL)
    one = trained(method=method, task=task())
    assert trained(method=method, task=task(), workers=2).fingerprint == one.fingerprint
    with pytest.raises(vg.PartialRun):
        trained(tmp_path / "run", method=method, task=task(), on_round=interrupt)
    again = trained(tmp_path / "run", method=method, task=task(), resume=True)
    assert again.fingerprint == one.fingerprint
    plain = trained(method=method, task=vg.task_from(network, mse_loss))
    assert plain.fingerprint != one.fingerprint
    assert trained(method=method, task=task(), seed=1).fingerprint != one.fingerprint


def test_a_transform_is_part_of_what_a_run_is(tmp_path):
    trained(tmp_path / "run", task=task())
    with pytest.raises(vg.StateError, match=r"task\.transform"):
        trained(tmp_path / "run", task=task(lambda x: x * 2), resume=True)


def test_several_inputs_are_given_together():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 1)

        def forward(self, x, z):
            return self.line(x) + z

    people = {p: {**a, "z": np.zeros((40, 1))} for p, a in arrays().items()}
    both = vg.task_from(Both, mse_loss, inputs=["x", "z"])
    both = both.with_transform(lambda x, z: (noise(x), z + torch.rand(1)))
    people = vg.Federation.from_arrays(people)
    run = trained(method=vg.methods.FedAvg(), task=both, people=people)
    assert run.fingerprint == trained(
        method=vg.methods.FedAvg(), task=both, people=people, workers=2
    ).fingerprint  # fmt: skip


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (3, "transform must be a function of one sample's input"),
        (lambda x: x[:2], r"transform: 1 input float32 \[4\] became float32 \[2\]; return"),
        (lambda x: x.double(), r"became float64 \[4\]"),
        (lambda x: x.numpy(), "became a ndarray"),
        (lambda x: (x, x), "return tensors of the same shapes and types, one for each input"),
    ],
)
def test_what_a_transform_may_not_be(transform, says):
    with pytest.raises(ConfigError, match=says):
        trained(task=task(transform))


def test_stacks_and_cut_networks_refuse_it_with_the_reason():
    with pytest.raises(ConfigError, match="the task augments samples at random, one by one"):
        trained(task=task(), plan=vg.Plan(solver="stacked"))
    with pytest.raises(ConfigError, match="the task's transform is applied before the whole"):
        vg.methods.SplitFed().check_inputs(task())


def test_dp_sgd_augments_sample_by_sample(tmp_path):
    """A transform that saw a batch could mix samples, whose gradients are bounded one by one."""

    def shaped(x):
        (tmp_path / str(tuple(x.shape))).touch()
        return noise(x)

    trained(
        method=vg.methods.FedAvg(local=vg.LocalTraining(optimizer="sgd", epochs=1, batch=8)),
        task=task(shaped),
        privacy={"solver": {"noise": 1.0, "clip": 1.0}},
        rounds=1,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["(4,)"]


class Random(Dataset):
    """Items with a random augmentation, as they are often written."""

    def __len__(self):
        return 40

    def __getitem__(self, at):
        return torch.full((4,), float(at)) + torch.rand(4), torch.tensor(1.0)


def test_a_data_set_that_augments_its_items_is_refused_with_the_mend():
    with pytest.raises(vg.DataError, match=r"item 0 of the Random is another one each time .*"):
        vg.Federation.from_datasets({"a": Random(), "b": Random()})
