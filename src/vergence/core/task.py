"""Task and model specifications: what is learned, with which network."""

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
from vergence.core.layers.batch_norm import FrozenBatchNorm, PersonalBatchNorm, statistics_of
from vergence.core.naming import called
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.errors import ConfigError

Names = tuple[str, ...]
LOGITS = "logits"
"""Entry that holds the scores by the convention of transformers, torchvision and others."""
BUILDING = threading.RLock()
NORMS = (nn.GroupNorm, nn.LayerNorm, FrozenBatchNorm, PersonalBatchNorm)
"""Layers that normalise; those with running statistics are not averaged (see `Layout.of`)."""


@dataclass(frozen=True)
class StartingModel:
    """The common model of another run, from which a network starts.

    Attributes:
        run: the folder of that run, as the experiment names it.
        sha: the SHA-256 of the parameters.
        data: the name of the data that it was trained on.
        people: those who took part.
        params: the parameters.
        split: the seed of the split that it was trained on; None: the data has one split.
        before: data and people of the runs that this one in turn began with.
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
        """Names of data, and the people of each that the parameters have learned from."""
        return ((self.data, self.people), *self.before)

    def fill(self, module: nn.Module) -> nn.Module:
        """Give a network these parameters.

        Raises:
            ConfigError: it is another network; names the first tensors that differ.
        """
        there = dict(zip(self.params.layout.names, self.params.layout.shapes, strict=True))
        here = {name: tuple(value.shape) for name, value in module.named_parameters()}
        if here != there:
            odd = [name for name in {**there, **here} if here.get(name) != there.get(name)]
            told = "; ".join(
                f"{name} is {list(there.get(name, ())) or 'not there'} in the run, "
                f"{list(here.get(name, ())) or 'not there'} here"
                for name in odd[:3]
            )
            raise ConfigError(
                f"model.start: {self.run} holds another network ({told}); take the model of that "
                "run, or leave start out"
            )
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(self.params[name])
        return module


@dataclass(frozen=True)
class Model(NamedOptions, ABC):
    """Options of one network. Its module's name is its name.

    `head` names the parameters (patterns, `decoder.*`) that turn features into the output, for
    methods that split a network there; none given: the last layer that has parameters. `start` is
    the model that it starts from, in place of random parameters.
    """

    start: StartingModel | None = field(default=None, kw_only=True, repr=False)

    head: ClassVar[tuple[str, ...]] = ()

    def initial(self) -> nn.Module:
        """A fresh module with the parameters that it starts from.

        Raises:
            ConfigError: `start` is of another network.
        """
        module = self.build()
        return module if self.start is None else self.start.fill(module)

    @abstractmethod
    def build(self) -> nn.Module:
        """Return a fresh module, initialised from torch's current global generator."""

    def prepare(self, federation: Federation) -> Federation:
        """Return the data as this network wants it (frozen features, say); default: as it is."""
        return federation


@dataclass(frozen=True)
class Task(NamedOptions, ABC):
    """A learning problem: a network, a loss, metrics with one higher-is-better `score` in [0, 1].

    `seed` fixes the initial parameters, so that every method of a run starts from the same ones.
    """

    network: Model
    seed: int = 0

    renamed_hooks: ClassVar[Mapping[str, str]] = {
        "told": "prediction",
        "heard": "output_of",
        "predicted": "predicted_class",
        "beside": "side_inputs",
    }

    classes: ClassVar[int] = 0
    """How many classes `class_of` tells apart; 0: it tells none."""
    unseen_classes: ClassVar[tuple[int, ...]] = ()
    """The numbers of classes that nobody is said to have samples of."""
    input_columns: ClassVar[tuple[str, ...]] = ()
    """The columns that the network reads; (): this task does not say, and `x` is meant."""
    labels: ClassVar[tuple[str, ...]] = ()
    """The columns that the loss looks at."""
    scored_columns: ClassVar[tuple[str, ...]] = ()
    """The columns, and shared rows, that only metrics look at."""
    side_inputs: ClassVar[tuple[str, ...]] = ()
    """The columns that enter the network at a later stage than its main input."""
    public: ClassVar[tuple[str, ...]] = ()
    """Those of `side_inputs` that say nothing of a person: the owner of a row, where all rows are
    one person's."""
    stays: ClassVar[tuple[str, ...]] = ()
    """The columns that no method may send: pictures that are their own labels."""
    headline: ClassVar[str]
    """The metric tables and plots put first."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Metrics where less is better; in all others more is better."""
    pools: ClassVar[bool] = False
    """Whether models are scored on everybody's test samples put together, too."""

    def prepare(self, federation: Federation) -> Federation:
        """Return the data as this task wants them, after `network.prepare`; default: as they are.

        What is made of a person's data (a prior) goes into that person's samples and nowhere else.
        """
        return federation

    @property
    def own_prior(self) -> bool:
        """True if `prepare` makes something of a person's training data that outputs depend on."""
        return False

    def lent(self, samples: Samples, owner: Splits | None) -> Samples:
        """Return prepared samples with what `prepare` made of their owner's data; None: nobody's.

        Default: as they are.
        """
        return samples

    @property
    def own_choice(self) -> bool:
        """True if a person's held-out data choose how `prepare`'s work is used, by `suited`."""
        return False

    def suited(self, splits: Splits, outputs: Callable[[Samples], Tensor]) -> Splits:
        """A person's prepared data, with what their validation data choose for a model.

        `outputs` is what the model says of samples. Whoever predicts with a model asks for this
        first; training never does. Default: the data as they are.
        """
        return splits

    def module(self) -> nn.Module:
        """Return a fresh network with the initial parameters theta^0 of this seed."""
        with own_randomness():
            # torch.manual_seed would look for every kind of GPU: longer than a small network takes.
            torch.default_generator.manual_seed(self.seed)
            return self.network.initial()

    def init(self) -> Params:
        """Return theta^0."""
        return Params.of(self.module())

    def parts(self, *head: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parameters of the network's body and of its head.

        The head is what `Model.head` says, or the parameters named here (patterns).

        Raises:
            ConfigError: a pattern names nothing, or one part is empty.
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

    def linear_head(self) -> str:
        """Return the name of the linear layer that is the network's head, "" for all of it.

        Raises:
            ConfigError: the head is something else.
        """
        return _linear_head(self.network)

    def norms(self) -> tuple[str, ...]:
        """Return the names of the parameters of the network's normalisation layers."""
        return _parts(self.network)[2]

    def statistics(self) -> tuple[str, ...]:
        """Names of the parameters that are running statistics, which stay with each client."""
        return _parts(self.network)[4]

    @abstractmethod
    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's output on a batch."""

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the input of the network's first stage, and the side inputs of later ones.

        Raises:
            ConfigError: networks of this task are not cut into stages.
        """
        raise ConfigError(
            f"task '{called(self)}' does not say what enters its network's first stage"
        )

    def features(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the output, and the features that enter the head as `[batch, d]`.

        Features of several places (frames, positions of a map) are averaged over them, also where
        the head takes them one after the other.
        """
        owner = module.get_submodule(_parts(self.network)[3])
        caught: list[Tensor] = []
        hook = owner.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            output = self.forward(module, batch)
        finally:
            hook.remove()
        if isinstance(owner, nn.Conv2d):
            caught = [given.movedim(1, -1) for given in caught]
        n, d = len(next(iter(batch.values()))), caught[0].shape[-1]
        return output, torch.cat([g.reshape(n, -1, d) for g in caught], 1).mean(1)

    def class_of(self, batch: Batch) -> Tensor:
        """Return the class of every sample, int64 `[batch]`, for methods that need classes.

        Raises:
            ConfigError: this task tells no classes apart.
        """
        raise ConfigError(f"task '{called(self)}' has no classes, which this method needs")

    def class_names(self) -> tuple[str, ...]:
        """Names of the classes that `class_of` tells apart, in their order.

        Raises:
            ConfigError: this task names no classes.
        """
        raise ConfigError(f"task '{called(self)}' names no classes, which this method needs")

    def labelled(self, classes: Tensor, noise: Tensor | None = None) -> Batch:
        """Return the columns `labels` of made-up samples of these classes, int64 `[batch]`.

        Where a class holds many labels it is the middle one, or `noise` `[batch, 2 or more]` in
        [0, 1) says which.

        Raises:
            ConfigError: no label of this task stands for a class.
        """
        raise ConfigError(
            f"task '{called(self)}' has no label for a class, which this method needs"
        )

    def imitation(self, output: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
        """Loss of an output against a teacher's, a mean over the batch (scalar).

        Default: the mean squared error. `temperature` divides the scores of classifiers.
        """
        return (output - teacher.reshape(output.shape)).square().mean()

    def prediction(self, output: Tensor) -> Tensor:
        """Return what others may see of an output: the probabilities, where it is a classifier's.

        Default: the output itself.
        """
        return output

    def output_of(self, prediction: Tensor) -> Tensor:
        """Return an output whose `prediction` is this one; default: the prediction itself."""
        return prediction

    def predicted_class(self, output: Tensor) -> Tensor:
        """Return the class that every output predicts, int64 `[batch]`; for classifiers."""
        return self.class_of({self.labels[0]: output})

    def among(self, output: Tensor, known: Tensor) -> Tensor:
        """Return an output as of a model that knows these classes alone, 0 or 1 `[classes]`.

        Default: as it is, where an output is no score per class.
        """
        return output

    def per_class(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return the accuracy of every class that samples have, by name; default: none is told."""
        return {}

    def input_range(self) -> tuple[tuple[int, ...], float, float]:
        """Return the shape of what enters the network for a sample, its least and largest value.

        Raises:
            ConfigError: neither task nor network says so.
        """
        raise ConfigError(
            f"model '{called(self.network)}' does not say what it takes in, which this method needs"
        )

    def sequences(self, samples: Samples) -> list[Tensor]:
        """Return every sample as frames in their order, `[frames, d]`, to compare people by.

        Raises:
            ConfigError: samples of this task are no sequences.
        """
        raise ConfigError(f"task '{called(self)}' has no sequences, which this method needs")

    def proxies(self, count: int) -> list[Tensor]:
        """Return sequences `[frames, d]` of nobody's that people may be compared with.

        Raises:
            ConfigError: this task has none.
        """
        raise ConfigError(
            f"task '{called(self)}' has no sequences of nobody's, which this method needs"
        )

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the batch (scalar)."""

    def weigh(self, samples: Samples) -> float:
        """Weight of these samples in a weighted average; default: their number."""
        return float(len(samples))

    def per_sample(self, outputs: Tensor, samples: Samples) -> Tensor:
        """Sums of the headline over parts of each sample, and numbers of these, `[samples, 2]`.

        Raises:
            ConfigError: the headline of this task is no mean over samples.
        """
        raise ConfigError(f"the headline of task '{called(self)}' is no mean over samples")

    @property
    def by_sample(self) -> bool:
        """True if the headline is a mean over samples, which `per_sample` gives."""
        return type(self).per_sample is not Task.per_sample

    @abstractmethod
    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Score outputs (`[samples, ...]`, in sample order) against the samples.

        The result holds `score` in [0, 1], higher is better, and `headline`.
        """

    def pooled(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Score outputs on everybody's test samples put together, every sample alike.

        Default: `metrics` without the score, each name with `pooled_` before it.
        """
        found = self.metrics(outputs, samples)
        return {f"pooled_{name}": value for name, value in found.items() if name != "score"}

    def evaluate(
        self, outputs: Tensor, samples: Samples, val_outputs: Tensor, val_samples: Samples
    ) -> dict[str, float]:
        """Score test outputs; what must be chosen (a threshold) is chosen on validation data.

        Default: nothing to choose, `metrics` of the test outputs.
        """
        return self.metrics(outputs, samples)

    @property
    def chooses(self) -> bool:
        """True if `evaluate` is the task's own, and so looks at validation data."""
        return type(self).evaluate is not Task.evaluate

    def score(self, outputs: Tensor, samples: Samples) -> float:
        """Return the one validation score a method may steer by; default `metrics()["score"]`."""
        return self.metrics(outputs, samples)["score"]

    def check(self, federation: Federation) -> None:
        """Refuse data that cannot be scored, before anything is trained; default: take all.

        Raises:
            DataError: names the person and the part.
        """
        return

    def priors(self, federation: Federation) -> Mapping[str, Mapping[str, dict[str, float]]]:
        """Score predictors that need no learning: prior name -> person -> metrics."""
        return {}

    def own_guess(self, federation: Federation) -> tuple[str, Mapping[str, Tensor]]:
        """Name of the prior of a person's own training data, and its outputs on test samples.

        The name is one of `priors`, outputs are by person; default: no prior is one's own.
        """
        return "", {}


@contextmanager
def own_randomness() -> Iterator[None]:
    """Let one thread at a time seed torch's generator, of which there is one for all of them.

    It is as before when the block ends.
    """
    with BUILDING, torch.random.fork_rng(devices=[]):
        yield


@lru_cache(maxsize=16)
def _parts(network: Model) -> tuple[Names, Names, Names, str, Names]:
    """Names of all parameters, the head's, the norms', where the head begins, and statistics."""
    with own_randomness():
        module = network.build()
    names = tuple(name for name, _ in module.named_parameters())
    owners = {name: name.rpartition(".")[0] for name in names}
    layers = dict(module.named_modules())
    norms = tuple(n for n in names if isinstance(layers[owners[n]], NORMS))
    if network.head:
        head = tuple(n for n in names if any(fnmatch(n, glob) for glob in network.head))
    else:
        order = list(layers)
        last = max(owners.values(), key=order.index, default="")
        head = tuple(n for n in names if owners[n] == last)
    entry = next((owners[n] for n in head if owners[n]), "")
    return names, head, norms, entry, statistics_of(module)


@lru_cache(maxsize=16)
def _linear_head(network: Model) -> str:
    _, head, _, entry, _ = _parts(network)
    with own_randomness():
        layer = network.build().get_submodule(entry)
    if not isinstance(layer, nn.Linear) or {n.rpartition(".")[0] for n in head} != {entry}:
        raise ConfigError(
            f"the head of {type(network).__name__} ({', '.join(head)}) is not one linear layer, "
            "which this method needs; use another model"
        )
    return entry


def mapped(change: Callable[..., Tensor], *outputs: Any) -> Any:
    """Return an output of the same form, made of `change` of the tensors at the same place.

    Entries that hold no tensor (a number, None) are those of the first output.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return change(*outputs)
    parts = [entries(each) for each in outputs]
    made = {name: mapped(change, *(part[name] for part in parts)) for name in parts[0]}
    if isinstance(first, tuple | list):
        kind: Any = type(first)
        return kind(*made.values()) if hasattr(first, "_fields") else kind(made.values())
    whole = copy.copy(first)
    for name, part in made.items():
        if isinstance(whole, dict):
            whole[name] = part
        else:
            object.__setattr__(whole, name, part)  # a frozen record's, too
    return whole


def joined(parts: Sequence[Any]) -> Any:
    """Return the outputs of batches as one; a tensor is float32."""
    if isinstance(parts[0], Tensor):
        return torch.cat([part.float() for part in parts])
    return mapped(lambda *each: torch.cat([torch.atleast_1d(part) for part in each]), *parts)


def tensor_in(output: Any, name: str | int | None) -> Tensor:
    """Return the tensor of an output that losses and metrics compare with targets.

    Args:
        output: what a network returned, no tensor itself.
        name: of the entry, or its place; None: `logits`, else the first of a tuple, else the only
            tensor there is.

    Raises:
        ConfigError: there is none; says what there is, and how to choose.
    """
    there = entries(output)
    tensors = [each for each, value in there.items() if isinstance(value, Tensor)]
    if name is None:
        # Without logits, one is obvious in a tuple, or where there is no other.
        alone = isinstance(output, tuple | list) or len(tensors) == 1
        wanted = [LOGITS] if LOGITS in tensors else tensors[: int(alone)]
    else:
        wanted = list(there)[name:][:1] if isinstance(name, int) and name not in there else [name]
    if wanted and wanted[0] in tensors:
        return there[wanted[0]]
    wrong = "" if name is None else f", where outputs={name!r} is no tensor"
    raise ConfigError(
        f"the network returns {shown(output)}{wrong}: "
        + (
            f"say which loss and metrics take, task_from(..., outputs={tensors[0]!r})"
            if tensors
            else "its forward must return a tensor, or a dict, a tuple or an object with one in it"
        )
    )


def shown(output: Any) -> str:
    """Return an output in words: its type, and the names of its entries."""
    names = ", ".join(map(str, entries(output)))
    return "None" if output is None else f"a {type(output).__name__}{names and f' ({names})'}"


def entries(output: Any) -> dict[Any, Any]:
    """Name the entries of a dict, a tuple or an object: name or place -> entry."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    names = (*getattr(output, "__dict__", ()), *getattr(output, "__slots__", ()))
    return {name: getattr(output, name) for name in names}
