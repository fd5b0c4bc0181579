"""Tasks and models: the learning problem, and the network that solves it.

Used in most packages.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vergence.core.data import Batch, Samples, Splits
from vergence.core.federation import Federation
from vergence.core.layers.batch_norm import (
    AveragedBatchNorm,
    FrozenBatchNorm,
    TrackedBatchNorm,
    statistics_of,
)
from vergence.core.naming import registry_name
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.errors import ConfigError

Names = tuple[str, ...]
LOGITS = "logits"
"""Name of the class scores in the outputs of networks of other libraries (transformers)."""
# Layers draw their first weights, and dropout its zeros, from torch's one global generator: two
# threads that used it at once would mix their numbers.
GLOBAL_GENERATOR = threading.RLock()
NORMS = (nn.GroupNorm, nn.LayerNorm, FrozenBatchNorm, TrackedBatchNorm)
"""Normalisation layers that a network may have; `Layout.of` refuses torch's BatchNorm."""


@dataclass(frozen=True)
class StartingModel:
    """The shared model of an earlier run, from which a network starts.

    Attributes:
        run: the folder of that run, as the experiment names it.
        sha: the SHA-256 of the parameters.
        data: the name of the data that the model was trained on.
        people: the ids of the people who took part in that run.
        params: the parameters.
        split: the seed of the split that the model was trained on; None: the data have one split.
        before: data names and people of still earlier runs, if that run itself started from a
            model.
    """

    run: str
    sha: str
    data: str
    people: tuple[str, ...]
    params: Params = field(compare=False, repr=False)
    split: int | None = None
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def learned_from(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The names of the data on which the parameters were trained, each with its people."""
        return ((self.data, self.people), *self.before)

    def fill(self, module: nn.Module) -> nn.Module:
        """Copy the trained parameters into a network, and return it; frozen ones stay as they are.

        Raises:
            ConfigError: names or shapes of the network's parameters differ; the message names the
                first such parameter.
        """
        shapes_of_run = dict(zip(self.params.layout.names, self.params.layout.shapes, strict=True))
        # Frozen parameters are the network's own, and no run trains or keeps them.
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        shapes = {name: tuple(value.shape) for name, value in trained.items()}
        if shapes != shapes_of_run:
            different = [n for n in shapes_of_run | shapes if shapes.get(n) != shapes_of_run.get(n)]
            differences = "; ".join(
                f"{name} is {list(shapes_of_run.get(name, ())) or 'not there'} in the run, "
                f"{list(shapes.get(name, ())) or 'not there'} here"
                for name in different[:3]
            )
            raise ConfigError(
                f"model.start: {self.run} holds another network ({differences}); take the model of "
                "that run, or leave start out"
            )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(self.params[name])
        return module


@dataclass(frozen=True)
class Model(NamedOptions, ABC):
    """Options of one network. An experiment names a network by the name of its module.

    `head` holds patterns (such as `decoder.*`) of the names of the head's parameters: the head
    turns features into the output. Methods that treat body and head differently read it; default:
    the last layer with parameters. `start` replaces the random initial parameters by a trained
    model's.
    """

    start: StartingModel | None = field(default=None, kw_only=True, repr=False)

    head: ClassVar[tuple[str, ...]] = ()

    def initial(self) -> nn.Module:
        """Return a new network with its initial parameters.

        Raises:
            ConfigError: the option `start` names a trained model whose parameters have other names
                or shapes than this network's.
        """
        module = self.build()
        return module if self.start is None else self.start.fill(module)

    @abstractmethod
    def build(self) -> nn.Module:
        """Return a new network, initialised from torch's current global generator."""

    def prepare(self, federation: Federation) -> Federation:
        """Return the data in the form that this network needs, such as features of images.

        A run calls this once before training, and then `Task.prepare`.
        """
        return federation


@dataclass(frozen=True)
class Task(NamedOptions, ABC):
    """A learning problem: a network, a loss, and metrics.

    One metric is the `score`, from 0 to 1, higher is better. `seed` fixes the initial parameters,
    so that every method of a run starts from the same model.
    """

    network: Model
    seed: int = 0

    renamed_hooks: ClassVar[Mapping[str, str]] = {
        "told": "prediction",
        "heard": "output_of",
        "predicted": "predicted_class",
        "beside": "side_inputs",
        "lent": "prepare_for",
        "own_choice": "tunes_prior",
        "suited": "tune_prior",
        "among": "restrict_to_known",
        "stays": "never_sent",
        "chooses": "uses_validation",
        "own_guess": "personal_baseline",
    }

    classes: ClassVar[int] = 0
    """Number of classes that `class_of` distinguishes; 0: the task has no classes."""
    unseen_classes: ClassVar[tuple[int, ...]] = ()
    """Numbers of the classes that the task defines as unseen: no client has samples of them."""
    input_columns: ClassVar[tuple[str, ...]] = ()
    """The columns that the network reads; empty: `x`."""
    labels: ClassVar[tuple[str, ...]] = ()
    """The columns that the loss reads."""
    scored_columns: ClassVar[tuple[str, ...]] = ()
    """The columns and banks that only metrics read."""
    side_inputs: ClassVar[tuple[str, ...]] = ()
    """The columns that enter the network at a later stage than its main input."""
    public: ClassVar[tuple[str, ...]] = ()
    """Those `side_inputs` that reveal nothing about a person.

    An example is the column that names each row's owner, if all rows belong to one person.
    """
    never_sent: ClassVar[tuple[str, ...]] = ()
    """The columns that no method may send, such as pictures that also serve as labels."""
    headline: ClassVar[str]
    """The main metric of tables and plots."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Names of the metrics whose lower values are better; for all others higher is better."""
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Smallest and largest possible value of every metric that has both; intervals stay inside.

    The score is in [0, 1] in any case, and `pooled_X` has the bounds of X.
    """
    chooses_by_loss: ClassVar[bool] = False
    """True: adaptation chooses by the loss of single samples, as metrics may need many samples."""
    exported: ClassVar[str] = ""
    """Meaning of the output in an ONNX file, for tasks that `model_tools` does not know."""
    pools: ClassVar[bool] = False
    """True: models are also scored on the pooled test samples of all people."""

    def prepare(self, federation: Federation) -> Federation:
        """Return the data in the form that this task needs; default: unchanged.

        The engine calls this after `network.prepare`. A prior is a value that is computed from a
        person's data and on which outputs depend; it goes into that person's samples only.
        """
        return federation

    @property
    def augments(self) -> bool:
        """Whether training samples are augmented at random, by Python code; default: False."""
        return False

    @property
    def own_prior(self) -> bool:
        """True if outputs depend on a prior: a value computed by `prepare` from a person's data."""
        return False

    def prepare_for(self, samples: Samples, owner: Splits | None) -> Samples:
        """Return samples prepared in the same way as their owner's data; default: unchanged.

        For example, the owner's prior (see `own_prior`) is added to them. Predictions by the models
        of a finished run call this.

        Args:
            samples: samples that `prepare` has not seen.
            owner: the owner's prepared data; None: a person whose data nobody trained on.
        """
        return samples

    @property
    def tunes_prior(self) -> bool:
        """True if `tune_prior` chooses a person's prior on the person's validation data."""
        return False

    def tune_prior(self, splits: Splits, outputs: Callable[[Samples], Tensor]) -> Splits:
        """Return a person's prepared data with the prior that is best for a model.

        The prior (see `own_prior`) with the best result on the person's validation data is chosen.
        `outputs` computes the model's outputs for samples. The engine calls this before a model
        predicts, never in training. Default: the data unchanged.
        """
        return splits

    def module(self) -> nn.Module:
        """Return a new network with the initial parameters of this task's seed."""
        with isolated_randomness():
            # torch.manual_seed would look for every kind of GPU: longer than a small network takes.
            torch.default_generator.manual_seed(self.seed)
            return self.network.initial()

    def init(self) -> Params:
        """Return the initial parameters of this task's seed."""
        return Params.of(self.module())

    def parts(self, *head: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parameters of the network's body and of its head.

        The head is `Model.head`; if patterns are given as `head`, it is the parameters whose names
        match them.

        Raises:
            ConfigError: a pattern matches no parameter, or a part is empty.
        """
        names, default, *_ = _parts(self.network)
        for glob in head:
            if not any(fnmatch(name, glob) for name in names):
                raise ConfigError(f"no parameter is named like '{glob}': {', '.join(names)}")
        top = tuple(n for n in names if any(fnmatch(n, g) for g in head)) if head else default
        body = tuple(n for n in names if n not in top)
        if not body or not top:
            raise ConfigError(
                f"{type(self.network).__name__} cannot be split: its {'head' if body else 'body'} "
                f"would be empty; name the head's parameters with head = [...] among "
                f"{', '.join(names)}, or use another model"
            )
        return body, top

    def head_layer(self) -> str:
        """Return the name of the first layer of the head; "" if the network is this layer."""
        return _parts(self.network)[3]

    def linear_head(self) -> str:
        """Return the name of the linear layer that is the head; "" if the network is this layer.

        Raises:
            ConfigError: the head is not one linear layer.
        """
        return _linear_head(self.network)

    def norms(self) -> tuple[str, ...]:
        """Return the names of the parameters of the network's normalisation layers."""
        return _parts(self.network)[2]

    def statistics(self) -> tuple[str, ...]:
        """Return the names of the network's parameters that are BatchNorm's running statistics."""
        return _parts(self.network)[4]

    def averaged_statistics(self) -> tuple[str, ...]:
        """Return the names of those running statistics that are averaged over clients."""
        return _parts(self.network)[5]

    @abstractmethod
    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output on a batch."""

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the input of the network's first stage, and the side inputs of later stages.

        Raises:
            ConfigError: this task does not define the input of a first stage.
        """
        raise ConfigError(
            f"task '{registry_name(self)}' does not say what enters its network's first stage"
        )

    def features(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the network's output, and the features `[batch, d]` that enter its head.

        If the head reads features of several frames or of several positions of a map, their mean
        is returned.
        """
        owner = module.get_submodule(_parts(self.network)[3])
        head_inputs: list[Tensor] = []
        # A network's forward returns only its output. The hook also sees a head that is applied to
        # one frame after the other.
        hook = owner.register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0]))
        try:
            output = self.forward(module, batch)
        finally:
            hook.remove()
        # A convolution has its channels second; the features of a place must come last.
        if isinstance(owner, nn.Conv2d):
            head_inputs = [inputs.movedim(1, -1) for inputs in head_inputs]
        n, d = len(next(iter(batch.values()))), head_inputs[0].shape[-1]
        return output, torch.cat([g.reshape(n, -1, d) for g in head_inputs], 1).mean(1)

    def class_of(self, batch: Batch) -> Tensor:
        """Return the class of every sample, int64 `[batch]`, for methods that need classes.

        Raises:
            ConfigError: this task has no classes.
        """
        raise ConfigError(f"task '{registry_name(self)}' has no classes, which this method needs")

    def targets(self, batch: Batch, outputs: int) -> Tensor:
        """Return what least squares fits the outputs to, `[batch, outputs]`.

        The method `FedRidge` calls this. `outputs` is the length of the network's output.

        Raises:
            ConfigError: this task has no such targets.
        """
        raise ConfigError(
            f"task '{registry_name(self)}' has no targets for least squares, which this method "
            "needs"
        )

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes that `class_of` distinguishes, in their order.

        Raises:
            ConfigError: this task names no classes.
        """
        raise ConfigError(f"task '{registry_name(self)}' names no classes, which this method needs")

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return the label columns (`labels`) for generated samples of the given classes.

        Args:
            classes: the class of each sample, int64 `[batch]`.
            noise: position of each label within its class, `[batch, 2 or more]` with values in
                [0, 1); None: the middle of the class.

        Raises:
            ConfigError: this task has no labels for classes.
        """
        raise ConfigError(
            f"task '{registry_name(self)}' has no label for a class, which this method needs"
        )

    def imitation(self, output: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the distillation loss (scalar) of an output against a teacher's output.

        The loss is the mean over the batch. Default: the mean squared error. `temperature` divides
        the scores of classifiers.
        """
        return (output - teacher.reshape(output.shape)).square().mean()

    def prediction(self, output: Tensor) -> Tensor:
        """Return the output in the form that users see: a classifier's probabilities.

        Default: the output unchanged.
        """
        return output

    def output_of(self, prediction: Tensor) -> Tensor:
        """Undo `prediction`: return an output that gives this prediction; default: unchanged."""
        return prediction

    def predicted_class(self, output: Tensor) -> Tensor:
        """Return the class that every output predicts, int64 `[batch]`; for classifiers."""
        return self.class_of({self.labels[0]: output})

    def restrict_to_known(self, output: Tensor, known: Tensor) -> Tensor:
        """Return an output restricted to the classes for which `known` `[classes]` is 1.

        Default: the output unchanged, for outputs that are not scores of classes.
        """
        return output

    def per_class(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return the accuracy for every class of the samples, by name; default: empty."""
        return {}

    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the shape of a sample's input, and its smallest and largest possible value.

        Raises:
            ConfigError: neither task nor network states them.
        """
        raise ConfigError(
            f"model '{registry_name(self.network)}' does not say what it takes in, which this "
            "method needs"
        )

    def sequences(self, samples: Samples) -> list[Tensor]:
        """Return every sample as a sequence `[frames, d]`.

        A method's client half asks for them (`Compute`) to compare people.

        Raises:
            ConfigError: samples of this task are not sequences.
        """
        raise ConfigError(f"task '{registry_name(self)}' has no sequences, which this method needs")

    def proxies(self, count: int) -> list[Tensor]:
        """Return `count` synthetic sequences `[frames, d]`.

        Methods compare each person's own sequences to these.

        Raises:
            ConfigError: this task has no such sequences.
        """
        raise ConfigError(
            f"task '{registry_name(self)}' has no sequences of nobody's, which this method needs"
        )

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the batch (scalar)."""

    def weigh(self, samples: Samples) -> float:
        """Return the weight of samples in a weighted average; default: their number."""
        return float(len(samples))

    def per_sample(self, outputs: Tensor, samples: Samples) -> Tensor:
        """Return the headline metric of every sample as numerator and denominator, `[samples, 2]`.

        Raises:
            ConfigError: the headline of this task is not a mean over samples.
        """
        raise ConfigError(f"the headline of task '{registry_name(self)}' is no mean over samples")

    @property
    def by_sample(self) -> bool:
        """True if the headline is a mean over samples and `per_sample` returns its parts."""
        return type(self).per_sample is not Task.per_sample

    @abstractmethod
    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return metrics of outputs (`[samples, ...]`, in sample order), by name.

        Among them are `score`, from 0 to 1 with higher being better, and the metric named by
        `headline`.
        """

    def pooled(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return metrics of outputs on the pooled test samples of all people, by name.

        All samples have the same weight. Default: `metrics` without `score`, with `pooled_` put
        before each name.
        """
        metrics = self.metrics(outputs, samples).items()
        return {f"pooled_{name}": value for name, value in metrics if name != "score"}

    def evaluate(
        self, outputs: Tensor, samples: Samples, val_outputs: Tensor, val_samples: Samples
    ) -> dict[str, float]:
        """Return metrics of test outputs, by name.

        A task may choose parameters of a metric, such as a threshold, on the validation data.
        Default: `metrics` of the test outputs.
        """
        return self.metrics(outputs, samples)

    @property
    def uses_validation(self) -> bool:
        """True if the task overrides `evaluate`.

        Then the engine computes outputs for validation samples too, and passes them to `evaluate`.
        """
        return type(self).evaluate is not Task.evaluate

    def score(self, outputs: Tensor, samples: Samples) -> float:
        """Return the score on which methods may base decisions; default: `metrics()["score"]`."""
        return self.metrics(outputs, samples)["score"]

    def check(self, federation: Federation) -> None:
        """Refuse data that cannot be scored, before training begins; default: accept all.

        Raises:
            DataError: a part of a person's data cannot be scored; the message names both.
        """
        return

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Return the metrics of baselines that need no learning, by baseline and person.

        A run writes them to `priors.csv`. Default: no baselines.
        """
        return {}

    def personal_baseline(self, federation: Federation) -> tuple[str, Mapping[str, Tensor]]:
        """Return the baseline that predicts from each person's own data without learning.

        Returns:
            The baseline's name, which is a key of the result of the method `priors`; and its
            outputs for the test samples, by person. Default: an empty name and no outputs.
        """
        return "", {}


@contextmanager
def isolated_randomness() -> Iterator[None]:
    """Let the block seed torch's global generator, and restore the generator's state at the end."""
    # Threads share this generator: one block at a time may use it.
    with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        yield


# `features` asks for every batch, and building a network takes longer than a small batch.
@lru_cache(maxsize=16)
def _parts(network: Model) -> tuple[Names, Names, Names, str, Names, Names]:
    """Return the names of a network's parameters by role.

    The names are those of all parameters, of the head, of normalisation layers, of the head's first
    module, of running statistics, and of those that are averaged, in this order.
    """
    with isolated_randomness():
        module = network.build()
    names = tuple(name for name, _ in module.named_parameters())
    owners = {name: name.rpartition(".")[0] for name in names}
    layers = dict(module.named_modules())
    norms = tuple(n for n in names if isinstance(layers[owners[n]], NORMS))
    if network.head:
        head = tuple(n for n in names if any(fnmatch(n, glob) for glob in network.head))
    else:
        # Registration is the only order of layers that every network has.
        order = list(layers)
        last = max(owners.values(), key=order.index, default="")
        head = tuple(n for n in names if owners[n] == last)
    entry = next((owners[n] for n in head if owners[n]), "")
    averaged = statistics_of(module, AveragedBatchNorm)
    return names, head, norms, entry, statistics_of(module), averaged


@lru_cache(maxsize=16)
def _linear_head(network: Model) -> str:
    _, head, _, entry, *_ = _parts(network)
    with isolated_randomness():
        layer = network.build().get_submodule(entry)
    if not isinstance(layer, nn.Linear) or {n.rpartition(".")[0] for n in head} != {entry}:
        raise ConfigError(
            f"the head of {type(network).__name__} ({', '.join(head)}) is not one linear layer, "
            "which this method needs; use another model"
        )
    return entry


def map_outputs(change: Callable[..., Tensor], *outputs: object) -> Any:
    """Apply `change` to the corresponding tensors of outputs that have the same structure.

    Return an output of this structure. Entries that are no tensors are copied from the first
    output.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return change(*outputs)
    parts = [output_entries(each) for each in outputs]
    made = {name: map_outputs(change, *(part[name] for part in parts)) for name in parts[0]}
    if isinstance(first, tuple | list):
        kind: Callable[..., object] = type(first)
        return kind(*made.values()) if hasattr(first, "_fields") else kind(made.values())
    # A copy, since nothing is known of how to construct another library's output.
    whole = copy.copy(first)
    for name, part in made.items():
        if isinstance(whole, dict):
            whole[name] = part
        else:
            # Works for frozen dataclasses, too.
            object.__setattr__(whole, str(name), part)
    return whole


def join_outputs(parts: Sequence[Any]) -> Any:
    """Concatenate the outputs of batches; outputs that are single tensors become float32."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part.float() for part in parts])
    # torch concatenates no scalars, such as a loss that a network returns beside its scores.
    return map_outputs(lambda *each: torch.cat([torch.atleast_1d(part) for part in each]), *parts)


def tensor_in(output: object, name: str | int | None) -> Tensor:
    """Return the tensor of a network's output that losses and metrics compare with targets.

    Tasks made of a user's network and loss call this.

    Args:
        output: the output: a mapping, a tuple or an object that holds tensors.
        name: name or index of the tensor. None: `logits`; without `logits`, the first tensor of a
            tuple, or the only tensor.

    Raises:
        ConfigError: there is no such tensor; the message lists the entries, and says how to choose
            one.
    """
    values = output_entries(output)
    tensors = {each: value for each, value in values.items() if isinstance(value, Tensor)}
    if name is None:
        # Without logits, one is obvious in a tuple, or where there is no other.
        one_is_obvious = isinstance(output, tuple | list) or len(tensors) == 1
        wanted = [LOGITS] if LOGITS in tensors else list(tensors)[: int(one_is_obvious)]
    else:
        wanted = list(values)[name:][:1] if isinstance(name, int) and name not in values else [name]
    if wanted and wanted[0] in tensors:
        return tensors[wanted[0]]
    wrong = "" if name is None else f", where outputs={name!r} is no tensor"
    raise ConfigError(
        f"the network returns {describe_output(output)}{wrong}: "
        + (
            f"say which loss and metrics take, task_from(..., outputs={next(iter(tensors))!r})"
            if tensors
            else "its forward must return a tensor, or a dict, a tuple or an object with one in it"
        )
    )


def describe_output(output: object) -> str:
    """Return a text with an output's type and the names of its entries, for an error message."""
    names = ", ".join(map(str, output_entries(output)))
    return "None" if output is None else f"a {type(output).__name__}{names and f' ({names})'}"


def output_entries(output: object) -> dict[object, object]:
    """Return the entries of a dict, a tuple or an object, by name or index."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    names = (*getattr(output, "__dict__", ()), *getattr(output, "__slots__", ()))
    return {name: getattr(output, name) for name in names}
