"""Choice of the device for training, and the move of data to it, once.

Used by `api.from_objects`, `engine.client_executor`, `engine.round_loop`,
`engine.solver_selection`, `experiment.schema` and `training`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from vergence import console
from vergence.core.data import Batch, Samples, SharedRows, Splits
from vergence.core.federation import Federation, Population
from vergence.core.local_training import Precision
from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError

Part = Literal["train", "val", "test"]
DATA = 0.5
"""Share of a GPU's free memory that training data may take."""
# Every method and seed of a study has an executor of its own.
_note = cache(console.note)


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is a GPU if there is one.

    Raises:
        ConfigError: the name is another one, or there is no such GPU.
    """
    kind, _, number = wanted.partition(":")
    if wanted not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise ConfigError(f"device '{wanted}' is not known; use 'auto', 'cpu', 'cuda' or 'cuda:N'")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not there):
        return torch.device("cpu")
    if not there:
        raise ConfigError(
            f"device '{wanted}' is asked for and torch {torch.__version__} sees no GPU; install a "
            "torch built for CUDA and a driver, or use device 'cpu' or 'auto'"
        )
    index = int(number or 0)
    if index >= there:
        raise ConfigError(
            f"device '{wanted}' is not there, this machine has cuda:0 to cuda:{there - 1}"
        )
    return torch.device("cuda", index)


def room_on(device: torch.device, share: float = 0.25) -> float:
    """Return how many bytes something may take on a device: a share of a GPU's free memory.

    Clients' states may take a quarter. Training takes the rest.
    """
    return torch.cuda.mem_get_info(device)[0] * share if device.type == "cuda" else math.inf


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Multiply float32 matrices in TF32 inside of the block if the precision is `tf32`."""
    before = torch.get_float32_matmul_precision()
    # cuDNN's convolutions use it by torch's default.
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def in_main_memory(samples: Samples) -> Samples:
    """Return samples in main memory.

    Scores of networks on a GPU use it, as they are computed on the CPU.
    """
    columns = {name: column.cpu() for name, column in samples.columns.items()}
    banks = {n: replace(bank, rows=bank.rows.cpu()) for n, bank in samples.banks.items()}
    return Samples(columns, banks)


def seed_generators(device: torch.device, number: int) -> None:
    """Seed the random numbers of networks on a device (dropout), and of augmentation."""
    # torch.manual_seed would look for every kind of GPU.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


def to_device(value: Any, device: torch.device) -> Any:
    """Return a request or its result with all tensors on a device; samples stay where they are."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Params):
        return value.like(value.flat.to(device))
    if isinstance(value, Mask):
        return Mask(value.bits.to(device), value.layout)
    # Outputs of networks may be of other libraries' kinds of mappings and tuples: they stay.
    if type(value) is dict:
        return {name: to_device(part, device) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(to_device(part, device) for part in value)
    if not is_dataclass(value) or isinstance(value, Samples | Task | type):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    there = {name: to_device(part, device) for name, part in parts.items()}
    changed = {name: part for name, part in there.items() if part is not parts[name]}
    return replace(value, **changed) if changed else value


def answer_on(device: torch.device, ask: Any, answer: Callable[[Any], Any]) -> Any:
    """Answer a request with its tensors on a device; the result lies where its parameters lie."""
    if device.type == "cpu":
        return answer(ask)
    return to_device(answer(to_device(ask, device)), ask.params.flat.device)


def batch_on(device: torch.device, data: Samples, rows: Tensor | slice) -> Batch:
    """Return samples, which may lie elsewhere, as a batch on a device."""
    if isinstance(rows, Tensor):
        rows = rows.to(next(iter(data.columns.values())).device)
    return to_device(data.take(rows), device)


def move_to_device(
    federation: Federation, device: torch.device, parts: Sequence[Part] = ("train",)
) -> Federation:
    """Move these parts of everybody's data to a device; banks shared by people stay shared.

    Columns of equal types and shapes become parts of one tensor, so that the batches of several
    clients are gathered by one call; this needs the memory of one part twice for a moment. The data
    of people made on demand are not moved here: solvers move what they train on.
    """
    if isinstance(federation.people, Population):
        return federation
    moved: dict[Part, list[Samples]] = {}
    banks: dict[int, Tensor] = {}
    for part in parts:
        everybody = [getattr(splits, part) for splits in federation.people.values()]
        moved[part] = _moved(everybody, device, banks)
    people: dict[str, Splits] = {}
    for number, (person, splits) in enumerate(federation.people.items()):
        people[person] = replace(splits, **{part: moved[part][number] for part in parts})
    return replace(federation, people=people)


def training_copies(
    federation: Federation, device: torch.device
) -> dict[int, tuple[Samples, Samples]]:
    """Return people's training data in main memory and on a device, by the `id` of the former.

    The client executor holds them for a whole run. They are those of the first people, as many as
    fit into half of the device's free memory; a sentence says whose stay in main memory.

    A method that reads a client's data itself gets the data in main memory.
    """
    if isinstance(federation.people, Population):
        return {}
    room = left = room_on(device, DATA)
    people, here, banks = dict(federation.people), dict[str, Splits](), set[int]()
    for person, splits in people.items():
        columns, shared = splits.train.columns.values(), splits.train.banks.values()
        # Rows that several people share are copied once.
        new = {id(b.rows): b.rows for b in shared if id(b.rows) not in banks}
        size = sum(tensor.nbytes for tensor in (*columns, *new.values()))
        if size <= left:
            here[person], left = splits, left - size
            banks |= new.keys()
    if far := len(people) - len(here):
        _note(
            f"training data of {far} of {len(people)} people stay in main memory, as {device} has "
            f"{room / 1e9:.3g} GB for data; they are copied there while it trains"
        )
    moved = move_to_device(replace(federation, people=here), device).people
    # With a reference to both: other samples could get the `id` of samples that are gone.
    return {id(s.train): (s.train, moved[person].train) for person, s in here.items()}


def _moved(
    everybody: list[Samples], device: torch.device, banks: dict[int, Tensor]
) -> list[Samples]:
    names = list(everybody[0].columns) if everybody else []
    columns = {n: _laid_out([s.columns[n] for s in everybody], device) for n in names}
    moved = []
    for number, samples in enumerate(everybody):
        moved_banks: dict[str, SharedRows] = {}
        for name, bank in samples.banks.items():
            if id(bank.rows) not in banks:
                banks[id(bank.rows)] = bank.rows.to(device)
            moved_banks[name] = replace(bank, rows=banks[id(bank.rows)])
        moved.append(Samples({name: columns[name][number] for name in names}, moved_banks))
    return moved


def _laid_out(columns: list[Tensor], device: torch.device) -> list[Tensor]:
    if len({(column.dtype, column.shape[1:]) for column in columns}) > 1:
        return [column.to(device) for column in columns]
    sizes = [len(column) for column in columns]
    whole = torch.empty(sum(sizes), *columns[0].shape[1:], dtype=columns[0].dtype, device=device)
    parts = list(whole.split(sizes))
    for part, column in zip(parts, columns, strict=True):
        part.copy_(column)
    return parts
