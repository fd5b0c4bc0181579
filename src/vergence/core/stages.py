"""Networks as sequences of stages, and the pieces into which split learning cuts a network.

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
"""Two columns of a piece of a network: its input from another machine (`smashed`), and the loss's
gradient with respect to its output (`pull`)."""


class Staged(nn.Module):
    """A network that is a sequence of stages, each from one tensor to one tensor.

    `stages` maps the stages' names, in order, to the submodules whose parameters a stage uses.
    `reads` names the stages that also take the side inputs of the task, such as a head pose.
    """

    stages: Mapping[str, tuple[str, ...]]
    reads: frozenset[str] = frozenset()
    cut: ClassVar[str] = ""
    """Name of the stage after which split learning cuts by default; empty: the first stage."""

    @abstractmethod
    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of the stage `name` for the input `x` `[batch, ...]`.

        Only stages named in `reads` use `side_inputs`.
        """

    def forward(self, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Apply the stages to `x` one after the other."""
        for name in self.stages:
            x = self.stage(name, x, *side_inputs)
        return x


@dataclass(frozen=True)
class PartialModel(Model):
    """The network that consists of some stages of the network `whole`; `of` names the stages.

    Its parameters have the same names and initial values as in the whole network.
    """

    whole: Model
    of: tuple[str, ...]

    def build(self) -> Staged:
        """Return the network with only the stages `of`.

        Raises:
            ConfigError: the network `whole` is not a sequence of stages.
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
    """Base of tasks that replace the run's task (the field `whole`) in a part of training."""

    whole: Task | None = None

    @property
    def task(self) -> Task:
        """The run's task, which this task replaces."""
        assert self.whole is not None
        return self.whole

    def metrics(self, outputs: Tensor, samples: Samples) -> dict[str, float]:
        """Return the metrics that the run's task computes."""
        return self.task.metrics(outputs, samples)


@dataclass(frozen=True)
class Piece(WrappedTask):
    """A task whose network is some successive stages of another task's network.

    In split learning, each machine trains such a piece. If a batch has the column `smashed`
    `[batch, ...]`, that is the piece's input: the output of the previous stage. Otherwise the
    input comes from the task's own columns. If a batch has the column `pull`, the loss is the
    inner product of output and `pull`: its gradient equals the gradient of the whole network's
    loss. Otherwise the loss is the task's loss.
    """

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the output of the last stage that this part of the network has."""
        task, reads = self.task, isinstance(module, Staged) and module.reads & set(module.stages)
        x = batch[SMASHED] if SMASHED in batch else task.inputs(batch)[0]
        return module(x, *(batch[name].float() for name in task.side_inputs if reads))

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the inner product of output and `pull`; without `pull`, the task's loss."""
        # The gradient of sum(output * pull) is pull^T d(output): the chain rule across the cut.
        return (output * batch[PULL]).sum() if PULL in batch else self.task.loss(output, batch)


def build_staged(model: Model) -> Staged:
    """Return a network as a sequence of stages, initialised from torch's global generator.

    Raises:
        ConfigError: the network is not a sequence of stages.
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
    """Return the model's network, of which callers read the structure and not the parameters.

    All callers share it.
    """
    with isolated_randomness():
        return build_staged(model)


def stages_of(model: Model) -> tuple[str, ...]:
    """Return the names of a network's stages, in order.

    Raises:
        ConfigError: the network is not a sequence of stages.
    """
    return tuple(_network(model).stages)


def reads_side_inputs(piece: Piece) -> bool:
    """Return whether a stage of this piece takes the side inputs of the task."""
    network = _network(piece.network)
    return bool(network.reads & set(network.stages))


@lru_cache(maxsize=64)
def pieces(task: Task, *after: str) -> tuple[Piece, ...]:
    """Cut a task's network after each of the named stages, and return the pieces in order.

    There is one piece more than there are names. An empty name stands for the network's default
    cut (`Staged.cut`). After a cut behind the last stage, the last piece has no parameters.

    Raises:
        ConfigError: a name is not a stage or occurs twice; the names are not in order; or the
            network cannot be cut.
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
    """Refuse a network whose pieces together would not compute the same as the whole network.

    Raises:
        ConfigError: layers are not registered in the order of the stages, or there is dropout.
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
