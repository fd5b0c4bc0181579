"""A network's layers on secret numbers, compiled to MP-SPDZ's bytecode.

usage: network.py JOB.json      PYTHONPATH is an MP-SPDZ; writes Programs/ where it is started

Runs with MP-SPDZ's compiler. Numbers are integers, 2^fraction for 1. The first party owns the
parameters and the second one images and answers; each reads its own from its Input-Binary file, as
signed 64-bit words, and nothing of them is known here. All arrays are in torch's order.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

from Compiler.compilerLib import Compiler
from Compiler.instructions import conv2ds
from Compiler.library import break_point, check_point, start_timer, stop_timer
from Compiler.types import Matrix, regint, sint

WEIGHTS, IMAGES = 0, 1
"""Who owns them."""
count_up = regint.inc
"""Of `size, base, step, repeat, wrap`: at place i, base + step * ((i // repeat) % wrap)."""


def settle() -> None:
    """Let nothing be read before what is written so far: the compiler reorders long vectors."""
    break_point()


class SecretTensor:
    """An array in the parties' memory: `[...]`, of which no party knows a number."""

    def __init__(self, shape: list[int], values: Any = None) -> None:
        self.shape, self.size = shape, prod(shape)
        self.memory = sint.Array(self.size)
        if values is not None:
            self.memory.assign_vector(values)
            settle()

    def __getitem__(self, places: Any) -> Any:
        return sint.load_mem(self.memory.address + places)

    def __setitem__(self, places: Any, values: Any) -> None:
        values.store_in_mem(self.memory.address + places)

    def all(self) -> Any:
        """Return all numbers, in order."""
        return self.memory.get_vector()


def given(owner: int, shape: list[int]) -> SecretTensor:
    """Secret-shared array that an owner reads from its file."""
    return SecretTensor(shape, sint.get_input_from(owner, binary=True, size=prod(shape)))


class Network:
    """A row of layers.

    Args:
        job: `layers`, shapes of the parameters by name, `fraction`, and `bits` of any number.
        parameters: by name.
    """

    def __init__(self, job: dict[str, Any], parameters: dict[str, SecretTensor]) -> None:
        self.layers, self.parameters = job["layers"], parameters
        self.fraction, self.bits = job["fraction"], job["bits"]

    def answer(self, x: SecretTensor, beside: SecretTensor | None) -> Any:
        """Output of the layers for `x` `[batch, ...]`."""
        for layer in self.layers:
            match layer["kind"]:
                case "product":
                    x = SecretTensor(x.shape, self.scaled(x.all() * self.of(layer, "weight").all()))
                case "conv":
                    x = self.conv(x, self.of(layer, "weight"), self.of(layer, "bias"))
                case "pool":
                    x = self.pool(x)
                case "dense":
                    x = joined(x, beside) if layer["takes_side_inputs"] and beside else x
                    x = self.dense(x, self.of(layer, "weight"), self.of(layer, "bias"))
                    if layer["relu"]:
                        x = SecretTensor(x.shape, self.larger(x.all(), 0))
        return x.all()

    def of(self, layer: dict[str, Any], name: str) -> SecretTensor:
        """Return a layer's parameter."""
        return self.parameters[f"{layer['name']}.{name}"]

    def scaled(self, products: Any) -> Any:
        """Return products with as many bits after the point as their factors, rounded."""
        return products.round(self.bits + self.fraction, self.fraction, nearest=True)

    def larger(self, a: Any, b: Any) -> Any:
        """Return the larger of every two numbers."""
        return b + (a - b).greater_equal(0, self.bits) * (a - b)

    def conv(self, x: SecretTensor, weight: SecretTensor, bias: SecretTensor) -> SecretTensor:
        """Convolve `[b, c, h, w]` with `[o, c, m, n]`, a filter at a time, and truncate once."""
        batch, channels, high, wide = x.shape
        filters, _, m, n = weight.shape
        rows, columns = high - m + 1, wide - n + 1
        pixels, window, spots = high * wide, m * n, rows * columns
        images = x[channels_last(batch, channels, pixels)]
        sums = SecretTensor([batch, filters, rows, columns])
        for number in range(filters):
            taken = weight[number * channels * window + channels_last(1, channels, window)]
            found = sint(size=batch * spots)
            sizes = rows, columns, high, wide, m, n
            conv2ds(found, images, taken, *sizes, 1, 1, channels, 0, 0, batch)
            places = count_up(batch * spots, number * spots, filters * spots, spots)
            sums[places + count_up(batch * spots, 0, 1, 1, spots)] = found
        settle()
        own = bias[count_up(sums.size, 0, 1, spots, filters)]
        return SecretTensor(sums.shape, self.scaled(sums.all() + (own << self.fraction)))

    def pool(self, x: SecretTensor) -> SecretTensor:
        """Return the largest of every 2 x 2 pixels, `[b, c, h // 2, w // 2]`."""
        batch, channels, high, wide = x.shape
        shape = [batch, channels, high // 2, wide // 2]
        rows, columns, size = high // 2, wide // 2, prod(shape)
        corner = (
            count_up(size, 0, high * wide, rows * columns)
            + count_up(size, 0, 2 * wide, columns, rows)
            + count_up(size, 0, 2, 1, columns)
        )
        a, b, c, d = (x[corner + offset] for offset in (0, 1, wide, wide + 1))
        return SecretTensor(shape, self.larger(self.larger(a, b), self.larger(c, d)))

    def dense(self, x: SecretTensor, weight: SecretTensor, bias: SecretTensor) -> SecretTensor:
        """Return `x [b, i] @ weight [o, i].T + bias`."""
        batch, inputs = x.shape[0], prod(x.shape[1:])
        outputs = weight.shape[0]
        left = Matrix(batch, inputs, sint, address=x.memory.address)
        right = Matrix(outputs, inputs, sint, address=weight.memory.address)
        own = bias[count_up(batch * outputs, 0, 1, 1, outputs)]
        sums = left.direct_mul_trans(right) + (own << self.fraction)
        return SecretTensor([batch, outputs], self.scaled(sums))


def channels_last(batch: int, channels: int, pixels: int) -> Any:
    """Return the places of `[batch, channels, pixels]` in the order `[batch, pixels, channels]`."""
    size = batch * channels * pixels
    return (
        count_up(size, 0, channels * pixels, channels * pixels)
        + count_up(size, 0, pixels, 1, channels)
        + count_up(size, 0, 1, channels, pixels)
    )


def joined(x: SecretTensor, beside: SecretTensor) -> SecretTensor:
    """Return `[b, i]` and `[b, j]` as `[b, i + j]`."""
    batch, inputs, others = x.shape[0], prod(x.shape[1:]), beside.shape[1]
    both = SecretTensor([batch, inputs + others])
    for part, first, width in ((x, 0, inputs), (beside, inputs, others)):
        rows = count_up(part.size, first, inputs + others, width)
        both[rows + count_up(part.size, 0, 1, 1, width)] = part.all()
    settle()
    return both


def main(file: Path) -> None:
    """Compile a job: share the parameters once, then answer batch after batch, timed each."""
    job = json.loads(file.read_text(encoding="utf-8"))
    compiler = Compiler(custom_args=job["options"])

    @compiler.register_function("network")
    def network() -> None:
        parameters = {name: given(WEIGHTS, shape) for name, shape in job["parameters"].items()}
        made = Network(job, parameters)
        for number in range(job["batches"]):
            inputs = {name: given(IMAGES, shape) for name, shape in job["inputs"].items()}
            start_timer(1 + number)
            answer = made.answer(inputs["x"], inputs.get("beside"))
            check_point()  # no answer before every product is known to be right
            answer.reveal_to(IMAGES).binary_output()
            check_point()
            stop_timer(1 + number)

    compiler.compile_func()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
