"""Arrays, networks, losses and metrics of others, whose numbers once went wrong without a word."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, dropout, mse_loss
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

import vergence as vg
from tests.refusals import refuses
from vergence.core.data import Samples, SharedRows, Splits

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(20, 4))
Y = X[:, :1]


def people(x=X, y=Y, **options):
    own = {"x": x, "y": y}
    return vg.Federation.from_arrays({"anna": own, "ben": own}, **options)


def columns(**options):
    return people(**options).people["anna"].train.columns


def train(network, loss=mse_loss, x=X, y=Y, **options):
    task = vg.task_from(network, loss)
    options = {"workers": 1, "progress": False, "rounds": 1, **options}
    return vg.train(vg.methods.FedAvg(), task, people(x, y), **options)


def test_masked_entries_are_not_numbers():
    masked = np.ma.masked_less(np.where(X > 1, -9999, X), -999)
    with pytest.raises(vg.DataError, match="'x' is nan in row 1"):
        people(x=masked)
    read = columns(x=masked, missing=["x"])["x"].numpy()
    assert np.array_equal(np.isnan(read), masked.mask[:12])
    labels = np.ma.array([0, 1] * 10)
    assert columns(y=labels)["y"].dtype == torch.int64


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x.astype(">f8"),
        lambda x: x[::-1].copy()[::-1],
        lambda x: x.astype(np.longdouble),
        np.asfortranarray,
    ],
)
def test_arrays_of_other_programs_have_the_same_bits(form):
    assert torch.equal(columns(x=form(X))["x"], columns()["x"])


@pytest.mark.parametrize("kind", [">i2", np.uint16, "uint32"])
def test_whole_numbers_of_any_width_become_int64(kind):
    classes = np.arange(20) % 3
    assert torch.equal(columns(y=classes.astype(kind))["y"], columns(y=classes)["y"])
    wide = torch.tensor(classes.tolist(), dtype=torch.uint16)
    assert columns(y=wide)["y"].dtype == torch.int64


def test_a_clock_that_float32_would_stop_is_refused():
    clock = 1.7e9 + np.arange(20)[:, None] * 0.004
    with pytest.raises(vg.DataError, match=r"'x' has numbers from 1700000000\.0 .* float32"):
        people(x=np.hstack([X, clock]))
    frame = pd.DataFrame({"person": ["anna", "ben"] * 10, "t": clock[:, 0], "y": Y[:, 0]})
    with pytest.raises(vg.DataError, match="float32"):
        vg.Federation.from_frame(frame, columns={"x": "t", "y": "y"})
    for harmless in (clock - clock[0], 1_000_000 + np.arange(20), np.full(20, 0.1) + 1e-17):
        people(x=np.asarray(harmless, float))


def test_two_samples_with_close_pixels_are_no_clock():
    """Of so many pixels of two pictures some are close by chance, and nothing is wrong."""
    rng = np.random.default_rng(0)
    part = {"x": rng.random((2, 400_000)), "y": rng.random(2)}
    assert (np.ptp(part["x"], axis=0) < 1e-6).any()
    vg.Federation.from_arrays({"anna": {"train": part, "val": part, "test": part}})


@pytest.mark.parametrize(
    "x",
    [
        torch.from_numpy(X).to_sparse(),
        torch.nested.nested_tensor([torch.ones(n % 3 + 1) for n in range(20)], layout=torch.jagged),
    ],
)
def test_tensors_of_other_kinds_are_refused(x):
    with pytest.raises(vg.DataError, match="'x' is a sparse"):
        people(x=x)


def test_truths_are_labels():
    seen = columns(y=Y[:, 0] > 0)["y"]
    assert seen.tolist() == (Y[:12, 0] > 0).tolist()
    with pytest.warns(UserWarning, match="sorted by 'y'"):
        people(y=np.arange(20) > 16)
    with pytest.raises(vg.ConfigError, match=r"y\.astype\('int64'\)"):
        train(lambda: nn.Linear(4, 2), cross_entropy, y=Y[:, 0] > 0)


def test_a_function_that_takes_targets_first_is_refused():
    with pytest.raises(vg.ConfigError, match="'r2' takes targets before outputs"):
        vg.task_from(lambda: nn.Linear(4, 1), mse_loss, {"r2": r2_score}, lower_is_better=False)
    with pytest.raises(vg.ConfigError, match="loss takes targets before outputs"):
        vg.task_from(lambda: nn.Linear(4, 1), lambda target, output: (output / target).mean())


def test_a_loss_must_be_a_mean():
    with pytest.raises(vg.ConfigError, match="the loss is a sum over samples"):
        train(lambda: nn.Linear(4, 1), nn.MSELoss(reduction="sum"))


class Uncertain(nn.Module):
    """A loss with a parameter of its own, as of Kendall and others' weighting of tasks."""

    def __init__(self):
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(1))

    def forward(self, outputs, targets):
        return (mse_loss(outputs, targets) / self.log_variance.exp() + self.log_variance).mean()


def test_parameters_of_a_loss_are_refused():
    with pytest.raises(vg.ConfigError, match=r"parameters \(log_variance\), which no run trains"):
        vg.task_from(lambda: nn.Linear(4, 1), Uncertain())


def test_a_fault_of_torch_s_own_loss_is_one_line():
    # The first sample alone gives an output that is a probability.
    x = np.where(np.arange(20)[:, None], X, 0)
    with pytest.raises(vg.ConfigError, match=r"'anna': .* between 0 and 1; end the network in"):
        train(lambda: nn.Linear(4, 1, bias=False), binary_cross_entropy, x, np.float32(Y > 0))


class Centred(nn.Module):
    """Subtracts a running mean of its inputs; its buffer is no part of the state."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x - self.mean)


class Counting(nn.Linear):
    """Counts its batches in an attribute, and scales by it."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x) * (1 + 0.1 * self.calls)


class Dropped(nn.Linear):
    """Drops inputs when it predicts, too: the default of the function."""

    def forward(self, x):
        return super().forward(dropout(x, 0.5))


class Warming(nn.Linear):
    """Shows more of its inputs from batch to batch, and predicts from all of them."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x * min(1, self.calls / 10) if self.training else x)


@pytest.mark.parametrize(
    "network",
    [Centred, lambda: Counting(4, 1), lambda: Dropped(4, 1), lambda: Warming(4, 1)],
    ids=["statistic", "counter", "dropout", "curriculum"],
)
def test_a_network_that_remembers_or_draws_is_refused(network):
    with pytest.raises(vg.ConfigError, match="answers the same samples differently"):
        train(network)


class Skipping(nn.Linear):
    """Leaves its bias out in every second step, by random numbers that no seed of a run reaches."""

    def __init__(self, draw):
        super().__init__(4, 1)
        self.draw = draw

    def forward(self, x):
        return super().forward(x) - self.bias * (self.training and self.draw() < 0.5)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_that_no_seed_reaches_are_refused_each_time(draw):
    """Runs of it had other fingerprints each time; in half of all checks its outputs are equal."""
    for _ in range(5):
        with pytest.raises(vg.ConfigError, match="random numbers of Python or NumPy"):
            train(lambda: Skipping(draw))
    train(lambda: Skipping(lambda: torch.rand(())))


def test_networks_that_only_train_with_noise_or_statistics_are_trained():
    noisy = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    for kind in (vg.average_batch_norm, vg.freeze_batch_norm):
        run = train(lambda kind=kind: kind(nn.Sequential(*noisy)))
        assert torch.equal(run.predict("anna", X), run.predict("anna", X))


class TwoTypes(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first = nn.Parameter(torch.full((4,), 1.2345678, dtype=kind))
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last((x * self.first.abs()).float())


@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.complex64])
def test_parameters_of_several_types_are_refused(kind):
    with pytest.raises(vg.ConfigError, match=f"'first' is {str(kind)[6:]}"):
        vg.task_from(lambda: TwoTypes(kind), mse_loss)


class Flipped(TorchDataset):
    """Samples of which half are flipped, each time anew."""

    def __len__(self):
        return len(X)

    def __getitem__(self, at):
        own = torch.from_numpy(X[at])
        # Never the first, as a seed may have it.
        return own.flip(0) if at and torch.rand(()) < 0.5 else own, torch.ones(1)


def test_a_random_flip_is_refused_though_the_first_item_stays():
    with pytest.raises(vg.DataError, match="is another one each time it is read"):
        vg.Federation.from_datasets({"anna": Flipped(), "ben": Flipped()})


class Folders(TensorDataset):
    """As torchvision's ImageFolder, which numbers the folders that it finds."""

    def __init__(self, *names):
        super().__init__(torch.from_numpy(X), torch.arange(20) % len(names))
        self.class_to_idx = {name: number for number, name in enumerate(names)}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("names", [("bird", "cat"), ("bird",)])
def test_a_class_has_one_number_for_all_people(names, lazy):
    first = Folders("cat", "dog")
    with pytest.raises(vg.DataError, match=r"of person 'ben', and .* of person 'anna'"):
        vg.Federation.from_datasets({"anna": first, "ben": Folders(*names)}, lazy=lazy)
    part = {"train": Subset(Folders(*names), range(9)), "test": Folders(*names)}
    with pytest.raises(vg.DataError, match="class_to_idx"):
        vg.Federation.from_datasets({"anna": {"train": first, "test": first}, "ben": part})
    vg.Federation.from_datasets({"anna": first, "ben": Folders("cat", "dog")}, lazy=lazy)


@pytest.mark.parametrize("numbers", [{1: 0, 2: 1}, None, ["cat", "dog"]])
def test_names_of_classes_may_be_numbers_or_no_mapping(numbers):
    data = Folders("cat", "dog")
    data.class_to_idx = numbers
    vg.Federation.from_datasets({"anna": data, "ben": data})


def test_copies_of_training_samples_in_the_test_part_are_told():
    often = np.repeat(X, 5, axis=0), np.repeat(Y, 5, axis=0)
    with pytest.warns(UserWarning, match="20 of 20 test samples of person 'anna'"):
        people(*often, shuffle=0)
    part = {"x": X, "y": Y}
    with pytest.warns(UserWarning, match="training samples, too"):
        vg.Federation.from_arrays({"anna": {"train": part, "test": part}})
    people(*often)


class Running:
    """A metric that is the mean over all that it was called with, as of libraries' loops."""

    def __init__(self):
        self.values = []

    def __call__(self, outputs, targets):
        self.values.append(float(mse_loss(outputs, targets)))
        return float(np.mean(self.values))


def test_a_metric_that_remembers_other_people_is_refused():
    task = vg.task_from(lambda: nn.Linear(4, 1), mse_loss, {"mse": Running()}, True)
    federation = vg.Federation.from_arrays({"anna": (X, Y), "ben": (X, 3 * Y)})
    with pytest.raises(vg.ConfigError, match=r"'mse' is .* for the same outputs again"):
        vg.train(vg.methods.FedAvg(), task, federation, rounds=1, workers=1, progress=False)


def test_a_clock_of_whole_numbers_beside_other_columns_is_refused():
    frame = pd.DataFrame({"person": "anna", "a": X[:, 0], "y": Y[:, 0]})
    frame["ns"] = 1_700_000_000_000_000_000 + 4_000_000 * np.arange(20)
    with pytest.raises(vg.DataError, match="float32"):
        vg.Federation.from_frame(frame, columns={"x": ["a", "ns"], "y": "y"})


def test_ids_that_differ_by_a_space_are_one_person_s():
    with pytest.raises(vg.DataError, match="'P01 ' and 'P01'"):
        vg.Federation.from_arrays({"P01": (X, Y), "P01 ": (X, Y)})


def own_samples(**columns):
    own = Samples({"x": torch.ones(20, 4), "y": torch.ones(20, 1), **columns})
    return vg.Federation("own", {"anna": Splits(own, own, own)})


def test_samples_of_one_s_own_with_more_targets_than_inputs_are_refused():
    task = vg.task_from(lambda: nn.Linear(4, 1), mse_loss)
    with refuses("unequal-lengths", "'x' 20", "'y' 23"):
        vg.train(vg.methods.FedAvg(), task, own_samples(y=torch.ones(23, 1)), rounds=1)


@pytest.mark.parametrize("number", [-1, 5])
def test_numbers_of_shared_rows_that_are_not_there_are_refused(number):
    ids = torch.tensor([*range(5), number])
    own = Samples({"ids": ids, "y": torch.ones(6, 1)}, {"x": SharedRows(torch.eye(5, 4), "ids")})
    task = vg.task_from(lambda: nn.Linear(4, 1), mse_loss)
    federation = vg.Federation("own", {"anna": Splits(own, own, own)})
    with refuses("bad-value", "'ids'", str(number), "rows 0 to 4"):
        vg.train(vg.methods.FedAvg(), task, federation, rounds=1)
