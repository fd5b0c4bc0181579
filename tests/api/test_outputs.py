"""Networks that return something else than a tensor, in every shape that libraries give."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vergence as vg
from vergence.core.objectives import loss_per_sample
from vergence.core.task import join_outputs, map_outputs

Pair = namedtuple("Pair", ["logits", "aux"])


class ModelOutput(OrderedDict):
    """A dict whose entries are attributes, too, as transformers return it."""

    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__.update(entries)

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.__dict__[name] = value

    def __getitem__(self, name):
        return super().__getitem__(name) if isinstance(name, str) else list(self.values())[name]


@dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    loss: None = None


class Slots:
    __slots__ = ("extra", "logits")

    def __init__(self, logits, extra):
        self.logits, self.extra = logits, extra


FORMS = {
    "tensor": lambda a, _: a,
    "dict": lambda a, b: {"logits": a, "aux": b},
    "one entry": lambda a, _: {"out": a, "note": "text"},
    "model output": lambda a, b: ModelOutput(loss=None, logits=a, aux=b),
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "named tuple": lambda a, b: Pair(a, b),
    "object": lambda a, b: SimpleNamespace(aux=b, logits=a, loss=None),
    "record": lambda a, _: Frozen(a),
    "slots": Slots,
}


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.a, self.b, self.form = nn.Linear(4, 3), nn.Linear(4, 2), FORMS[form]

    def forward(self, x):
        return self.form(self.a(x), self.b(x))


def accuracy(outputs, target):
    return (outputs.argmax(1) == target).float().mean()


def people(rows=400):
    """More test samples than one batch of evaluation has."""
    rng = np.random.default_rng(0)
    found = {}
    for person in "ab":
        x = rng.normal(size=(rows, 4))
        found[person] = {"x": x, "y": x[:, :3].argmax(1)}
    return vg.Federation.from_arrays(found)


def run(task, method=None, **options):
    method = vg.methods.FedAvg() if method is None else method
    options = {"rounds": 1, "workers": 1, "progress": False, **options}
    return vg.train(method, task, people(), **options)


def of(form, loss=cross_entropy, metric=accuracy, **options):
    return vg.task_from(lambda: Net(form), loss, {"accuracy": metric}, False, **options)


@pytest.mark.parametrize("form", FORMS)
def test_the_tensor_of_scores_is_found(form):
    plain, found = run(of("tensor")), run(of(form))
    assert found.scores.equals(plain.scores)
    assert torch.equal(found.model("a").a.weight, plain.model("a").a.weight)
    assert torch.equal(
        found.predict("a", people().people["a"].test), plain.predict("a", people().people["a"].test)
    )


@pytest.mark.parametrize("form", ["dict", "model output"])
@pytest.mark.parametrize("how", ["loss", "both"])
def test_a_loss_that_takes_all_of_it_is_given_it(form, how):
    """With the weight of the other part 0 the numbers are those of scores alone."""

    def loss(outputs, target):
        return cross_entropy(outputs["logits"], target) + 0 * outputs["aux"].sum()

    def metric(outputs, target):
        return accuracy(outputs["logits"], target)

    found = run(of(form, loss, metric if how == "both" else accuracy))
    assert found.scores.equals(run(of("tensor")).scores)
    said = found.predict("a", people().people["a"].test)
    assert said["aux"].shape == (80, 2)


@pytest.mark.parametrize(
    ("form", "name"), [("dict", "aux"), ("tuple", 1), ("tuple", -1), ("model output", "aux")]
)
def test_another_part_is_chosen_by_name_or_place(form, name):
    found = run(of(form, lambda o, t: cross_entropy(o, t % 2), outputs=name))
    assert found.predict("a", people().people["a"].test).shape == (80, 2)
    assert f"outputs = {name!r}".replace("'", '"') in (found.folder / "config.toml").read_text()


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (lambda _, __: None, {}, "the network returns None"),
        (lambda a, b: {"one": a, "two": b}, {}, r"a dict \(one, two\).*outputs='one'"),
        (lambda a, _: {"one": a}, {"outputs": "two"}, r"outputs='two' is no tensor"),
        (lambda a, b: (a, b), {"outputs": 2}, r"outputs=2 is no tensor"),
        (lambda _, __: "text", {}, "the network returns a str"),
    ],
)
def test_what_holds_no_tensor_to_compare_is_refused_in_words(monkeypatch, make, options, says):
    monkeypatch.setitem(FORMS, "odd", make)
    with pytest.raises(vg.ConfigError, match=says) as refused:
        run(of("odd", **options))
    assert "\n" not in str(refused.value)


def test_sample_by_sample_losses_of_dp_sgd():
    def loss(outputs, target):
        return cross_entropy(outputs["logits"], target)

    task, batch = of("dict", loss), people().people["a"].train.take(torch.arange(5))
    output = task.forward(task.module(), batch)
    wanted = cross_entropy(output["logits"], batch["y"], reduction="none")
    assert torch.allclose(loss_per_sample(task, output, batch), wanted)
    private = {"solver": {"name": "dp_sgd", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}}
    assert run(task, privacy=private).scores.accuracy.notna().all()


def test_outputs_of_batches_are_joined_entry_by_entry():
    def part(rows):
        return {
            "a": torch.ones(rows, 2),
            "b": (torch.zeros(rows).long(), None),
            "c": torch.tensor(1.0),
        }

    whole = join_outputs([part(3), part(2)])
    assert whole["a"].shape == (5, 2)
    assert whole["b"][0].dtype == torch.int64
    assert (whole["b"][1], whole["c"].tolist()) == (None, [1.0, 1.0])
    assert map_outputs(torch.neg, Pair(torch.ones(1), None)) == Pair(-torch.ones(1), None)
