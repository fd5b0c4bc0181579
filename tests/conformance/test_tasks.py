"""Every task of the package says which columns it reads, and data without one are told so."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.task import Task
from vergence.errors import ConfigError, DataError
from vergence.experiment.registry import find, names
from vergence.experiment.schema import load
from vergence.experiment.validation import prepare_data

GLANCES = '{ name = "eye_glances", people = 2, samples = 70 }'
MADE = {
    "auto_encoder": ('{ name = "cross_encoder" }', GLANCES),
    "cross_encoder": ('{ name = "cross_encoder" }', GLANCES),
    "gaze_angle": ('{ name = "lenet" }', '{ name = "eye_synthetic", people = 2, samples = 70 }'),
    "gaze_map": (
        '{ name = "glc_vit", preset = "tiny64" }',
        '{ name = "ego_synthetic", people = 1, clips = 10, fps = 12, seconds = 2 }',
    ),
    "gaze_zones": (
        '{ name = "mlp", inputs = 135, hidden = [4], classes = 9 }',
        '{ name = "gaze_zones", samples = 400 }',
    ),
    "images": ('{ name = "softmax", image = [1, 4, 4], classes = 3 }', '{ name = "toy" }'),
    "siamese": ('{ name = "siamese" }', GLANCES),
    "summary": ('{ name = "vslstm", features = 4, hidden = 4 }', '{ name = "clip_synthetic" }'),
    "toy": ('{ name = "linear", inputs = 4 }', '{ name = "toy", people = 2 }'),
    "zero_shot": (
        '{ name = "mlp", inputs = 64, hidden = [4], classes = 16 }',
        '{ name = "zsl_synthetic", images = 20 }',
    ),
}
"""Model and data of each task; `images` has pictures of this file, in place of the data named."""
MADE_BY_MODEL = {"auto_encoder", "cross_encoder", "siamese"}
"""Tasks whose models make the columns, and say by themselves what they are made of."""
TASKS = names("tasks", Task)


@cache
def made(name, folder):
    """The experiment, and its data."""
    model, data = MADE[name]
    text = f'task = {{ name = "{name}" }}\nmodel = {model}\nfederation = {data}\n'
    file = folder / f"{name}.toml"
    file.write_text(text + 'methods = ["fedavg"]\nrun = { rounds = 1 }\n')
    experiment = load(file)
    return experiment, pictures() if name == "images" else experiment.federation()


def pictures():
    shown = torch.arange(15 * 16, dtype=torch.uint8).reshape(15, 1, 4, 4)
    return Federation.from_arrays({"p": {"image": shown, "label": torch.arange(15) % 3}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


def without(federation, name, parts=("train", "val", "test")):
    """The data less a column, or less rows that samples share, in some parts."""

    def less(part):
        kept = {n: column for n, column in part.columns.items() if n != name}
        return Samples(kept, {n: bank for n, bank in part.banks.items() if n != name})

    people = {
        person: replace(splits, **{part: less(getattr(splits, part)) for part in parts})
        for person, splits in federation.people.items()
    }
    return replace(federation, people=people)


def check_bounds(task, metrics):
    """Metrics with bounds are inside them."""
    for name, (low, high) in {"score": (0, 1), **task.bounds}.items():
        value = metrics.get(name, low)
        assert math.isnan(value) or low <= value <= high


def used(experiment, federation):
    """Everything that a run asks a task of its data, on the first sample of each part."""
    task = experiment.task(0)
    ready = prepare_data(experiment, task, federation)
    for people in task.priors(ready).values():
        for metrics in people.values():
            check_bounds(task, metrics)
            assert {*task.bounds} <= {*metrics}
    task.personal_baseline(ready)
    for splits in ready.people.values():
        some = splits.test.subset(torch.arange(2))
        with torch.no_grad():
            outputs = task.forward(task.module().eval(), some.take(torch.arange(len(some))))
        check_bounds(task, task.metrics(outputs, some))
        task.weigh(some)
        if task.by_sample:
            task.per_sample(outputs, some)
        if task.classes:
            task.class_of(some.take(torch.arange(1)))


def held(federation):
    part = next(iter(federation.people.values())).train
    return [*part.columns, *part.banks]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_the_package_says_what_its_network_reads(name):
    """The default, (), stays for tasks of users alone: nobody else knows their columns."""
    task = find("tasks", name, Task)
    assert task.input_columns
    assert Task.input_columns == ()


@pytest.mark.parametrize("name", TASKS)
def test_a_column_that_is_missing_is_named_with_the_task_and_those_there_are(name, folder):
    experiment, federation = made(name, folder)
    task = experiment.task(0)
    used(experiment, federation)
    read = {*task.input_columns, *task.labels, *task.scored_columns}
    for column in read & {*held(federation)}:
        less = without(federation, column)
        with pytest.raises(ConfigError) as caught:
            prepare_data(experiment, task, less)
        said = str(caught.value)
        assert column in said
        assert ", ".join(sorted(held(less))) in said
        if name not in MADE_BY_MODEL:
            assert f"has no column '{column}'" in said
            assert f"task '{name}' reads" in said
    assert read & {*held(federation)}


@pytest.mark.parametrize("name", ["gaze_zones", "summary"])
def test_what_metrics_alone_look_at_may_be_missing_where_nothing_is_measured(name, folder):
    """Training samples need none of it; validation and test samples do, and the part is named."""
    experiment, federation = made(name, folder)
    task, less = experiment.task(0), federation
    banks = next(iter(federation.people.values())).train.banks
    scored = {*task.scored_columns} - {bank.by for bank in banks.values()}
    for column in scored:
        less = without(less, column, ("train",))
        for part in ("val", "test"):
            with pytest.raises(ConfigError, match=f"has no column '{column}' in {part} "):
                prepare_data(experiment, task, without(federation, column, (part,)))
    assert scored
    used(experiment, less)


@pytest.mark.parametrize("name", TASKS)
def test_no_other_column_is_read(name, folder):
    """Those that are not declared may all be missing, but for numbers of shared rows."""
    experiment, federation = made(name, folder)
    task = experiment.task(0)
    part = next(iter(federation.people.values())).train
    read = {*task.input_columns, *task.labels, *task.scored_columns}
    read |= {bank.by for bank in part.banks.values()}
    for column in {*held(federation)} - read:
        used(experiment, without(federation, column))


def test_ratings_in_a_column_are_refused_before_anything_is_trained(folder):
    """Metrics look them up by the steps of a clip, as rows that clips share."""
    experiment, federation = made("summary", folder)

    def flat(part):
        columns = {**part.columns, "ratings": part.take(slice(None))["ratings"]}
        return Samples(columns, {n: bank for n, bank in part.banks.items() if n != "ratings"})

    people = {
        person: Splits(*map(flat, vars(splits).values()))
        for person, splits in federation.people.items()
    }
    with pytest.raises(DataError, match=r"summary: 'ratings' of \w+ is a column; .*SharedRows"):
        prepare_data(experiment, experiment.task(0), replace(federation, people=people))
