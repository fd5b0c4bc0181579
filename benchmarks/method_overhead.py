"""CPU milliseconds of what a turn does around the fit, at 1.83 M parameters (LeNet).

python -m benchmarks.method_overhead [--repeats 40]: one thread, medians of CPU time per part, for
FedAvg and for FedCPF at three moments: its first turn (nothing personal yet), a turn halfway (a
quarter personal, the mask still grows), and one with the mask full (half personal).
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from vergence.core.masks import Mask
from vergence.core.messages import Message, reply, seal
from vergence.core.params import Params
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF, MaskWindow, Personal
from vergence.models.lenet import LeNet
from vergence.privacy.reply_checks import fault
from vergence.system.memory import keep_freed_memory


class Parts:
    """Times named parts, one after the other, many times over."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, name: str, do: Callable):
        began = time.thread_time()
        got = do()
        self.seconds.setdefault(name, []).append(time.thread_time() - began)
        return got

    def show(self, title: str) -> None:
        parts = {name: 1000 * median(each) for name, each in self.seconds.items()}
        listed = "  ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
        print(f"{title:24s} {sum(parts.values()):6.2f} ms   {listed}")


def noisy(params: Params, scale: float, generator: torch.Generator) -> Params:
    return params.like(params.flat + scale * torch.randn(params.layout.n, generator=generator))


def fedavg(repeats: int, model: Params, generator: torch.Generator) -> None:
    parts, method = Parts(), FedAvg()
    end = noisy(model, 1e-3, generator)
    for at in range(repeats):
        update = parts("update", lambda: end - model)
        sealed = parts("seal", lambda: seal(reply(model=update, weight=300.0), at))  # noqa: B023
        told = {"model": model}
        parts("guards", lambda: fault(sealed, at, told, method.exposure["train"]))  # noqa: B023
    parts.show("FedAvg")


def personal(share: float, model: Params, generator: torch.Generator) -> Personal:
    """Return the state of a client whose last round added 5 % of all entries to its mask."""
    layout = model.layout
    ranks = torch.rand(layout.n, generator=generator)
    mask = Mask(ranks < share, layout)
    kept = Mask(ranks < max(share - 0.05, 0.0), layout)
    total = (~mask).keep(abs(noisy(model * 0.0, 1e-3, generator)))
    return Personal(noisy(model, 1e-3, generator), kept, mask, MaskWindow(total, 3, 1))


def fedcpf(title: str, share: float, repeats: int, model: Params, generator: torch.Generator):
    """Take the turn of `FedCPF.on_train` apart; the fit is a given end point."""
    method, parts = FedCPF(), Parts()
    c = personal(share, model, generator)
    message = Message("train", {"model": model})
    end = noisy(method.model_on(c, message, None), 1e-3, generator)  # type: ignore[arg-type]
    for at in range(repeats):
        mask, window = Mask(c.mask.bits, c.mask.layout), c.window  # counts are not known yet
        fresh = Personal(c.params, Mask(c.kept.bits, c.kept.layout), mask, window)
        start = parts("merge", lambda: method.model_on(fresh, message, None))  # noqa: B023
        if parts("room", lambda: method.room(mask)):  # noqa: B023
            change = parts("change", lambda: method.change(start, end, mask))  # noqa: B023
            _, mean = parts("window", lambda: window.add(change, at, False, True))  # noqa: B023
            grown = parts("top", lambda: method.chosen(mean, mask, None))  # noqa: B023
            parts("or", lambda: mask | grown)  # noqa: B023
        update = parts("update", lambda: end - model)
        weight = parts("weight", lambda: ~mask)  # noqa: B023
        sealed = parts("seal", lambda: seal(reply(model=update, weight=weight), at))  # noqa: B023
        told = {"model": model}
        parts("guards", lambda: fault(sealed, at, told, method.exposure["train"]))  # noqa: B023
    parts.show(title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()  # as a worker does
    torch.manual_seed(0)
    model = Params.of(LeNet().build())
    generator = torch.Generator().manual_seed(0)
    print(f"{model.layout.n:,} parameters, one thread, torch {torch.__version__}, {repeats} turns")
    fedavg(repeats, model, generator)
    for title, share in (("first turn", 0.0), ("growing", 0.25), ("full", 0.5)):
        fedcpf(f"FedCPF, {title}", share, repeats, model, generator)


if __name__ == "__main__":
    main()
