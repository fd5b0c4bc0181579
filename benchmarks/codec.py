"""Bytes against error of every codec of the wire, at 1.83 M parameters (LeNet).

python -m benchmarks.codec [--rounds 10]: prints a Markdown table. `normal` is a vector of random
normal numbers; the updates are those of one synthetic person (600 eye patches) who trains on for
so many rounds of one epoch. Errors are relative L2 norms; those of the sum compare all rounds'
decoded updates with all rounds' updates, without and with error feedback. CPU milliseconds on one
thread, medians, to encode and to decode an update. After the table stand bytes and times of zlib,
which loses nothing, for the model at the end: as it is, and with the four bytes of all numbers
apart.
"""

import platform
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from benchmarks.common.options import options
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.models.lenet import LeNet
from vergence.system.memory import keep_freed_memory
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver
from vergence.wire.codecs import Compression
from vergence.wire.size import bytes_of_arrays

CODECS = [
    Compression("fp32"),
    Compression("fp16"),
    Compression("int8"),
    Compression("topk", share=0.1),
    Compression("topk", share=0.1, value_codec="int8"),
    Compression("topk", share=0.01),
    Compression("topk", share=0.01, value_codec="fp16"),
    Compression("topk", share=0.01, value_codec="int8"),
    Compression("topk", share=0.001),
]


def updates(rounds: int) -> tuple[list[Tensor], Tensor]:
    """Train one person for some rounds; return what each round changed, and the model."""
    task = GazeAngle(LeNet())
    person = next(iter(EyeSynthetic(people=1, samples=600).load().people.values()))
    solver, params, found = Solver(task), task.init(), []
    for at in range(rounds):
        ask = Fit(params, person.train, LocalTraining(optimizer="sgd", lr=0.05, epochs=1))
        end = solver.fit(ask, RandomStream("codec", at)).params
        end = Params(end.flat.clone(), end.layout)
        found.append((end - params).flat)
        params = end
    return found, params.flat


def error(got: Tensor, wanted: Tensor) -> float:
    return float(torch.linalg.vector_norm(got - wanted) / torch.linalg.vector_norm(wanted))


def error_of_sum(how: Compression, changes: list[Tensor]) -> float:
    arrived, left = torch.zeros_like(changes[0]), None
    for change in changes:
        _, decoded, left = how.compress(change, left)
        arrived += decoded
    return error(arrived, torch.stack(changes).sum(0))


def timed(do: Callable, repeats: int = 15) -> float:
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        do()
        found.append(1000 * (time.thread_time() - began))
    return median(found)


def row(how: Compression, normal: Tensor, changes: list[Tensor]) -> str:
    last = changes[-1]
    arrays, decoded, _ = how.compress(last)
    spent = (
        timed(lambda: how.coder.encode(last)),
        timed(lambda: how.coder.decode(arrays, len(last), last.dtype)),
    )
    name = how.codec
    if how.codec == "topk":
        name += f" {how.share:g}" + (
            "" if how.value_codec == "fp32" else f", kept {how.value_codec}"
        )
    errors = [
        error(how.compress(normal)[1], normal),
        error(decoded, last),
        error_of_sum(how, changes),
        error_of_sum(replace(how, feedback=True), changes),
    ]
    share = bytes_of_arrays(arrays) / (len(last) * last.element_size())
    told = [f"{bytes_of_arrays(arrays):,}", f"{share:.2%}", *(f"{e:.2g}" for e in errors)]
    return "| " + " | ".join([name, *told, *(f"{ms:.1f}" for ms in spent)]) + " |"


def without_loss(model: Tensor) -> list[str]:
    """Return lines on a model's bytes by zlib (level 1), as they are and in four planes."""
    plain = model.numpy().tobytes()
    planes = model.numpy().view("u1").reshape(-1, 4).T.tobytes()
    lines = []
    for name, data in {"zlib": plain, "zlib, four planes of bytes": planes}.items():
        packed = zlib.compress(data, 1)
        spent = (
            timed(lambda data=data: zlib.compress(data, 1)),
            timed(lambda packed=packed: zlib.decompress(packed)),
        )
        share = len(packed) / len(data)
        lines.append(
            f"the model, {name}: {share:.1%} of its bytes, {spent[0]:.0f} ms to encode, "
            f"{spent[1]:.0f} ms to decode"
        )
    return lines


def main() -> None:
    rounds = options(__doc__, rounds=10).rounds
    torch.set_num_threads(1)
    keep_freed_memory()
    changes, model = updates(rounds)
    normal = torch.randn(len(changes[0]), generator=torch.Generator().manual_seed(0))
    print(f"{len(normal):,} values, one thread, {platform.machine()}, torch {torch.__version__}\n")
    print(
        "| codec | bytes | of fp32 | error, normal | error, update "
        f"| error, sum of {rounds} | with feedback | encode ms | decode ms |"
    )
    print("|---|" + "--:|" * 8)
    for how in CODECS:
        print(row(how, normal, changes))
    print("\n" + "\n".join(without_loss(model)))


if __name__ == "__main__":
    main()
