"""Networks as sequences of stages, and the pieces into which split learning cuts them.

Used in most packages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.naming import registry_name
from vergence.core.task import Model, Task, isolated_randomness
from vergence.errors import ConfigError

SMASHED, PULL = "smashed", "pull"
"""Columns of a piece's input from another machine, and of the gradient of its output."""


class Staged(nn.Module):
    """A network that is a sequence of stages, each from one tensor to one tensor.

    `stages` names them in order, each with the submodules whose parameters it uses. `reads` names
    the stages that also take the side inputs of the task (a head pose).
    """

    stages: Mapping[str, tuple[str, ...]]
    reads: frozenset[str] = frozenset()
    cut: ClassVar[str] = ""
    """The stage after which split learning cuts by default; empty: the first."""

    @abstractmethod
    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of one stage for `x` `[batch, ...]`.

        Only stages named in `reads` use `side_inputs`.
        """

    def forward(self, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Apply the stages to `x` one after the other."""
        for name in self.stages:
            x = self.stage(name, x, *side_inputs)
        return x


@dataclass(frozen=True)
class PartialModel(Model):
    """The stages `of` another network as a network, with its initial parameters and names."""

    whole: Model
    of: tuple[str, ...]

    def build(self) -> Staged:
        """Return the network with these stages alone.

        Raises:
            ConfigError: the network is not a sequence of stages.
        """
        network = build_staged(self.whole)
        # A submodule that this piece shares with another one stays.
        own_paths = {path for name in self.of for path in network.stages[name]}
        for name, paths in network.stages.items():
            for path in () if name in self.of else paths:
                if path not in own_paths:
                    network.set_submodule(path, nn.Identity())
        network.stages = {name: network.stages[name] for name in self.of}
        return network


@dataclass(frozen=True)
class WrappedTask(Task):
    """Base of tasks that replace a run's task, `whole`, during a part of training."""

    whole: Task | None = None

    @property
    def task(self) -> Task:
        """The run's task."""
        assert self.whole is not None
        return self.whole

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Score as the run's task does."""
        return self.task.metrics(outputs, samples)


@dataclass(frozen=True)
class Piece(WrappedTask):
    """Some stages of a task's network, as one machine trains them.

    A batch holds the task's own columns, or the output of the stage before as `smashed` `[batch,
    ...]`. The loss is the task's; where a batch holds the gradient of the output as `pull`, the
    loss is the inner product of output and `pull`, whose gradient equals that of the whole
    network's loss.
    """

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the output of the last stage of the piece."""
        task, reads = self.task, isinstance(module, Staged) and module.reads & set(module.stages)
        x = batch[SMASHED] if SMASHED in batch else task.inputs(batch)[0]
        return module(x, *(batch[name].float() for name in task.side_inputs if reads))

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss, or the inner product of output and `pull`."""
        # The gradient of sum(output * pull) is pull^T d(output): the chain rule across the cut.
        return (output * batch[PULL]).sum() if PULL in batch else self.task.loss(output, batch)


def build_staged(model: Model) -> Staged:
    """Return a network that can be cut, initialised from torch's global generator.

    Raises:
        ConfigError: it is not a sequence of stages.
    """
    network = model.initial()
    if not isinstance(network, Staged):
        name = registry_name(model)
        raise ConfigError(
            f"model '{name}' is not a row of stages and cannot be cut for split learning; use "
            "lenet, small_eye, resnet_preact, resnet18, small_cnn, apfl_cnn, mlp or softmax, or "
            "write it as a `Staged` one"
        )
    return network


@lru_cache(maxsize=64)
def _network(model: Model) -> Staged:
    """Return a network to read its structure; callers share it and do not use its parameters."""
    with isolated_randomness():
        return build_staged(model)


def stages_of(model: Model) -> tuple[str, ...]:
    """Return the names of a network's stages, in order.

    Raises:
        ConfigError: the network is not a sequence of stages.
    """
    return tuple(_network(model).stages)


def reads_side_inputs(piece: Piece) -> bool:
    """Return whether a piece of a network takes the side inputs of its task."""
    network = _network(piece.network)
    return bool(network.reads & set(network.stages))


@lru_cache(maxsize=64)
def pieces(task: Task, *after: str) -> tuple[Piece, ...]:
    """Cut a task's network after the named stages: one piece more than there are names.

    An empty name stands for the network's own choice. A cut after the last stage leaves an empty
    last piece, without parameters.

    Raises:
        ConfigError: a name is not a stage or occurs twice, or the names are not in order.
    """
    network = _network(task.network)
    stages = list(network.stages)
    after = tuple(name or network.cut or stages[0] for name in after)
    unknown = [name for name in after if name not in stages]
    places = [stages.index(name) + 1 for name in after if name in stages]
    if unknown or places != sorted(set(places)):
        raise ConfigError(
            f"a cut must be after stages of this network, in order: {', '.join(stages)}; got "
            f"{', '.join(after)}"
        )
    ends = zip([0, *places], [*places, len(stages)], strict=True)
    parts = tuple(
        Piece(PartialModel(task.network, tuple(stages[a:b])), seed=task.seed, whole=task)
        for a, b in ends
    )
    _check(task.network, network, parts)
    return parts


def _check(model: Model, network: Staged, parts: Sequence[Piece]) -> None:
    """Refuse networks whose pieces together differ from the whole network.

    Raises:
        ConfigError: layers are not registered in the order of use, or there is dropout.
    """
    name = registry_name(model)
    # The machines' parameters, one piece after the other, are read as the whole network's vector.
    joined = [n for piece in parts for n, _ in _network(piece.network).named_parameters()]
    if joined != [n for n, _ in network.named_parameters()]:
        raise ConfigError(f"model '{name}' must register its layers in the order of its stages")
    if any(isinstance(m, nn.Dropout) and m.p for m in network.modules()):
        raise ConfigError(
            f"model '{name}' uses dropout: a client that computes its layers again would drop "
            "others; set its share to 0 to cut it"
        )
