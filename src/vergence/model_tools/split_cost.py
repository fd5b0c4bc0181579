"""Cost of the pieces of a network: bytes on the wire, FLOPs, memory.

Networks run on tensors of the device "meta", which have shapes and types and no data: costs of
large networks are found in moments and without memory.

Used by `model_tools.split_pace`, `model_tools.split_plan` and `reports.traffic`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from vergence.core.data import Batch
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.stages import PULL, SMASHED, PartialModel, Piece, pieces, reads_side_inputs
from vergence.core.task import Model, Task, isolated_randomness
from vergence.methods.split.base import needed_columns
from vergence.training.batches import batches

WORD = 4
"""Bytes of a parameter as it is sent."""
NUMBERS = {"float32": (4, 0), "float16": (2, 4), "int8": (1, 4)}
"""Formats of smashed data: bytes per value, and bytes per tensor for its scale."""
SHRINK = 8
"""A bottleneck leaves one channel of eight."""
FEDAVG, CUT, BOTTLENECK, U_SHAPE = "FedAvg", "cut", "bottleneck", "U-shape"


class Load(NamedTuple):
    """Training data of a person in a round: samples and batches, means over people; batch size."""

    samples: float
    batches: float
    size: int


@dataclass(frozen=True)
class Work:
    """Cost of a piece of a network.

    Attributes:
        parameters: number of parameters.
        forward, backward: FLOPs per sample of convolutions and matrix products, where a product
            and a sum count two.
        memory: bytes of a batch's activations that the backward pass needs.
    """

    parameters: int
    forward: int
    backward: int
    memory: int


@dataclass(frozen=True)
class CutChoice:
    """One way to cut.

    Attributes:
        kind: `cut`, with a `bottleneck`, or `U-shape`; `FedAvg` is no cut at all.
        after: the stages after which the network is cut.
        values: numbers per sample that are sent at each cut; as many gradients come back.
        label_bytes: bytes of a sample's labels and head pose, which are sent to the server.
        client, server: work of each; the last layers of a U-shape are the client's.
        again: FLOPs per sample of forward passes that the client repeats.
        last: FLOPs per sample of the client's last layers, in a U.
    """

    kind: str
    after: tuple[str, ...]
    values: tuple[int, ...]
    label_bytes: int
    client: Work
    server: Work
    again: int
    last: int = 0

    @property
    def flops(self) -> int:
        """The client's FLOPs per sample."""
        return self.client.forward + self.client.backward

    def sample(self, number: str) -> int:
        """Return the bytes per sample each way, labels and scales aside."""
        return sum(self.values) * NUMBERS[number][0]

    def up(self, number: str, load: Load) -> float:
        """Return the bytes a person sends in a round."""
        return load.samples * self.label_bytes + self.down(number, load)

    def down(self, number: str, load: Load) -> float:
        """Return the bytes that a person receives in a round."""
        scales = NUMBERS[number][1] * len(self.values) * load.batches
        return load.samples * self.sample(number) + scales + WORD * self.client.parameters

    def both(self, number: str, load: Load) -> float:
        """Return the bytes of a round, up and down."""
        return self.up(number, load) + self.down(number, load)


def load_of(federation: Federation, local: LocalTraining) -> Load:
    """Count the samples and batches of a round, as `training.batches` forms them.

    Raises:
        ConfigError: more than 100,000 people made on demand.
    """
    federation.refuse_many("split-plan")
    dealt = [
        [len(rows) for rows in batches(person.train, local, RandomStream("split-plan"), None)]
        for person in federation.people.values()
    ]
    samples, counts = np.mean([(sum(sizes), len(sizes)) for sizes in dealt], axis=0).tolist()
    return Load(samples, counts, max(max(sizes) for sizes in dealt))


@dataclass(frozen=True)
class Blank(Model):
    """A network that is built once, with parameters that have shapes and types but no data."""

    made: nn.Module

    @classmethod
    def of(cls, network: Model) -> Blank:
        """Return another network without its data."""
        with isolated_randomness():
            return cls(network.build().to("meta"))

    def build(self) -> nn.Module:
        """Return a copy."""
        return copy.deepcopy(self.made)


def choices(task: Task, columns: Batch, size: int) -> list[CutChoice]:
    """Return FedAvg, every cut, bottlenecks where maps are cut, and U-shapes.

    Args:
        task: whose network is cut.
        columns: samples of the data, for their shapes and types alone.
        size: of a batch.
    """
    task = replace(task, network=Blank.of(task.network))
    batch = {
        name: torch.empty(size, *column.shape[1:], dtype=column.dtype, device="meta")
        for name, column in columns.items()
    }
    whole = works([(task, task.module())], batch)[0][0]
    none = Work(0, 0, 0, 0)
    found = {kind: [] for kind in (FEDAVG, CUT, BOTTLENECK, U_SHAPE)}
    # FedAvg stands first: the tables compare every cut with it.
    found[FEDAVG].append(CutChoice(FEDAVG, (), (), 0, whole, none, 0))
    network = pieces(task)[0].network
    assert isinstance(network, PartialModel)
    *inner, last = stages = network.of
    # Labels that must stay on the client, such as the pictures of an autoencoder, rule out every
    # cut but a U-shape.
    for stage in () if set(task.labels) & set(task.never_sent) else stages:
        row = [(piece, piece.module()) for piece in pieces(task, stage)]
        done = works(row, batch)
        found[CUT].append(cut_choice(CUT, (stage,), done, bytes_to_server(row[-1][0], batch)))
        shape = done[0][1].shape
        if len(shape) == 4 and shape[1] > 1 and stage != last:
            insert(row[0][1], row[1][1], shape[1])
            slim = works(row, batch)
            found[BOTTLENECK].append(
                cut_choice(BOTTLENECK, (stage,), slim, bytes_to_server(row[-1][0], batch))
            )
    for stage in inner[:-1]:
        row = [(piece, piece.module()) for piece in pieces(task, stage, inner[-1])]
        columns_sent = (
            task.side_inputs if reads_side_inputs(pieces(task, stage, inner[-1])[1]) else ()
        )
        if set(columns_sent) <= set(task.public):
            sent = width(batch, columns_sent)
            found[U_SHAPE].append(cut_choice(U_SHAPE, (stage, inner[-1]), works(row, batch), sent))
    return [choice for group in found.values() for choice in group]


def works(row: Sequence[tuple[Task, nn.Module]], batch: Batch) -> list[tuple[Work, Tensor]]:
    """Send a batch through pieces; return the work and the output of each.

    All but the last piece are trained by the gradient of their output.
    """
    results, sent = [], batch
    for piece, module in row:
        with torch.no_grad():
            output = piece.forward(module, sent)
        last = piece is row[-1][0]
        inputs = sent if last else {**sent, PULL: torch.empty_like(output)}
        results.append((work(piece, module, inputs), output))
        sent = {**batch, SMASHED: output.detach().requires_grad_()}
    return results


def work(piece: Task, module: nn.Module, batch: Batch) -> Work:
    """Measure one forward and backward pass."""
    storages: dict[int, torch.UntypedStorage] = {}

    def record(tensor: Tensor) -> Tensor:
        # By storage: views of one activation take memory once. Holding it keeps its id unique.
        storage = tensor.untyped_storage()
        storages[id(storage)] = storage
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(record, lambda t: t):
        loss = piece.loss(piece.forward(module, batch), batch)
        forward = counter.get_total_flops()
        # A piece without parameters has nothing to train.
        if loss.requires_grad:
            loss.backward()
        backward = counter.get_total_flops() - forward
    weights = {id(p.untyped_storage()) for p in module.parameters()}
    size = len(next(iter(batch.values())))
    # Weights are saved for the backward pass too, and are counted as parameters.
    memory = sum(s.nbytes() for key, s in storages.items() if key not in weights)
    count = sum(p.numel() for p in module.parameters())
    return Work(count, forward // size, backward // size, memory)


def insert(front: nn.Module, back: nn.Module, channels: int) -> None:
    """Insert a bottleneck: 1 x 1 convolutions that narrow the front's output and widen it again."""
    few = max(1, channels // SHRINK)
    narrow = nn.Conv2d(channels, few, 1).to("meta")
    widen = nn.Conv2d(few, channels, 1).to("meta")
    front.add_module("narrow", narrow)
    back.add_module("widen", widen)
    front.register_forward_hook(lambda _, __, output: narrow(output))
    back.register_forward_pre_hook(lambda _, inputs: (widen(inputs[0]), *inputs[1:]))


def cut_choice(
    kind: str, after: tuple[str, ...], done: Sequence[tuple[Work, Tensor]], labels: int
) -> CutChoice:
    """Add up the costs of a cut's pieces."""
    # A client frees its activations while it waits: when the gradient comes it computes the forward
    # pass again. In a U-shape the server waits likewise.
    parts = [work for work, _ in done]
    values = tuple(output[0].numel() for _, output in done[:-1])
    front, again, last = parts[0], parts[0].forward, 0
    client, server = _twice(front), parts[1]
    if kind == U_SHAPE:
        tail, server = parts[2], _twice(server)
        last = tail.forward + tail.backward
        # The client works on its two parts one after the other: memory is the larger of the two.
        client = Work(
            client.parameters + tail.parameters,
            client.forward + tail.forward,
            client.backward + tail.backward,
            max(client.memory, tail.memory),
        )
    return CutChoice(kind, after, values, labels, client, server, again, last)


def _twice(part: Work) -> Work:
    return Work(part.parameters, 2 * part.forward, part.backward, part.memory)


def bytes_to_server(back: Task, batch: Batch) -> int:
    """Return the bytes per sample of what the server's layers and their loss need."""
    assert isinstance(back, Piece)
    return width(batch, needed_columns(back))


def width(batch: Batch, names: Sequence[str]) -> int:
    """Return the bytes per sample of some columns."""
    return sum(batch[name][0].numel() * batch[name].element_size() for name in names)
