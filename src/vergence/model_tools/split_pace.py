"""Duration of a round of split learning, by the speeds of device, server and network.

Used by `cli.model` and `model_tools.split_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from vergence.core.options import NamedOptions
from vergence.model_tools.split_cost import NUMBERS, U_SHAPE, WORD, CutChoice, Load

AHEAD = (0, 1, 2, 4)
"""Values of the methods' option `ahead`: batches sent before the first gradient comes back."""
Speed = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class Speeds(NamedOptions, label="split-plan"):
    """Speeds of a client's device, of its share of the server, and of the network.

    Attributes:
        device, server: GFLOP/s, as reached in training.
        up, down: Mbit/s from and to the device.
        delay: latency of a message in one direction, ms.
    """

    device: Speed = 2.0
    server: Speed = 200.0
    up: Speed = 10.0
    down: Speed = 50.0
    delay: Annotated[float, Ge(0)] = 20.0


@dataclass(frozen=True)
class Hops:
    """Seconds of a batch's parts: first layers, uplink, server, downlink, the step, and latency.

    Attributes:
        again: the device's work when the gradient arrives: the forward pass again, and the step.
    """

    first: float
    up: float
    server: float
    down: float
    again: float
    delay: float

    @property
    def busiest(self) -> str:
        """Part that a long pipeline waits for."""
        loads = {
            "device": self.first + self.again,
            "uplink": self.up,
            "server": self.server,
            "downlink": self.down,
        }
        return max(loads, key=loads.__getitem__)


def hops(choice: CutChoice, load: Load, speeds: Speeds, number: str = "float32") -> Hops:
    """Return the seconds that the parts of a batch take.

    In a U-shape the server finishes one batch before the next: the way to the client's last layers
    and back counts as the server's time.
    """
    size = load.samples / max(round(load.batches), 1)
    device, server = speeds.device * 1e9 / size, speeds.server * 1e9 / size
    width, scale = NUMBERS[number]
    sizes = [size * values * width + scale for values in choice.values] or [0]
    # 8e-6: from bytes to megabits.
    up = 8e-6 * (sizes[0] + size * choice.label_bytes) / speeds.up
    down = 8e-6 * sizes[0] / speeds.down
    first, rest = choice.again / device, choice.flops - choice.again
    serving, last = (choice.server.forward + choice.server.backward) / server, 0.0
    if choice.kind == U_SHAPE:
        last = choice.last / device
        ways = 8e-6 * sizes[1] * (1 / speeds.up + 1 / speeds.down) + 2e-3 * speeds.delay
        serving += ways + last
    return Hops(first, up, serving, down, rest / device - last, 1e-3 * speeds.delay)


def pass_seconds(part: Hops, batches: int, ahead: int) -> float:
    """Return the seconds from the first batch to the last step.

    Each of device, uplink, server and downlink does one thing at a time, in the order of batches.
    The device sends 1 + `ahead` batches; then for every gradient it steps and sends one more.
    """
    device = up = server = down = 0.0
    back: list[float] = []

    def send() -> None:
        nonlocal device, up, server, down
        device += part.first
        up = max(up, device) + part.up
        server = max(server, up + part.delay) + part.server
        down = max(down, server) + part.down
        back.append(down + part.delay)

    for _ in range(min(1 + ahead, batches)):
        send()
    for at in range(batches):
        device = max(device, back[at]) + part.again
        if at + 1 + ahead < batches:
            send()
    return device


def seconds(
    choice: CutChoice, load: Load, speeds: Speeds, ahead: int = 0, number: str = "float32"
) -> float:
    """Return the seconds of a client's round, with its layers' transfer down and up (float32)."""
    layers = 8e-6 * WORD * choice.client.parameters * (1 / speeds.up + 1 / speeds.down)
    layers += 2e-3 * speeds.delay
    if not choice.values:
        return layers + load.samples * choice.flops / (speeds.device * 1e9)
    return layers + pass_seconds(hops(choice, load, speeds, number), round(load.batches), ahead)
