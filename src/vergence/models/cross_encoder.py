"""The Cross-Encoder, which turns an eye image into an eye code and a gaze code, and back.

Used by `models.siamese`, `studies.few_shot`, `tasks.auto_encoder` and `tasks.cross_encoder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.federation import Federation
from vergence.core.stages import Staged
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.resnet18 import WIDENING, BasicBlock
from vergence.models.unlabelled_eyes import glance_rows

Size = Literal["36x60", "9x15"]
STRIDES = {"36x60": (2, 2, 2, 2), "9x15": (1, 2, 2, 1)}
"""Strides of the compact encoder's convolutions; both sizes end in maps of 3 x 4."""
GROWN = {"36x60": ((5, 8), (9, 15), (18, 30), (36, 60)), "9x15": ((5, 8), (9, 15))}
"""Sizes of the decoder's maps, which begin at 3 x 4."""
START = (3, 4)
GROUPS = 4
Codes = Float[Tensor, "rows eyes codes"]


@dataclass(frozen=True)
class CrossEncoder(Model):
    """Encoder and decoder of eye images, with the swap of codes between them.

    Attributes:
        size: size of the images.
        encoder: four convolutions (`compact`), or ResNet-18 with GroupNorm; neither is pretrained.
        width: channels of the first convolution, a multiple of 4; ResNet-18's own are 64.
        eye: values of the eye code (appearance), which is not normalised.
        gaze: values of the gaze code, a multiple of 3: points in space, one after the other, which
            together are normalised to length 1.

    The original encoder's BatchNorm is GroupNorm here, whose statistics are those of one image, so
    that only parameters are averaged over clients. The decoder's instance norm has neither
    parameters nor running statistics, as in the original; its dense blocks are single convolutions
    here.

    Source: Sun, Zeng, Shan, Chen, "Cross-Encoder for unsupervised gaze representation learning",
    ICCV 2021; eyeimages design note, section 2.
    """

    head: ClassVar[tuple[str, ...]] = ("decoder.*",)

    size: Size = "36x60"
    encoder: Literal["compact", "resnet18"] = "compact"
    width: Annotated[int, Ge(4)] = 16
    eye: Annotated[int, Ge(1)] = 32
    gaze: Annotated[int, Ge(3)] = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % GROUPS or self.gaze % 3:
            raise ConfigError(
                f"cross_encoder: width must be a multiple of {GROUPS} and gaze one of 3; got "
                f"{self.width} and {self.gaze}"
            )

    def build(self) -> CrossEncoderNet:
        """Return the network, initialised from torch's global generator."""
        return CrossEncoderNet(self)

    def prepare(self, federation: Federation) -> Federation:
        """Return rows with the columns `eyes` and `whose`; see `unlabelled_eyes.glance_rows`.

        A run calls this once before training.
        """
        return glance_rows(federation)


def encoder(options: CrossEncoder) -> nn.ModuleDict:
    """Return the encoder's stages by name; the last one returns both codes of an image."""
    compact = options.encoder == "compact"
    blocks = list(_compact(options) if compact else _resnet(options))
    codes = options.eye + options.gaze
    width = 4 * options.width if compact else WIDENING[-1] * options.width
    values = width * START[0] * START[1] if compact else width
    last = nn.Sequential(nn.Flatten(), nn.Linear(values, codes), Sphere(options.gaze))
    return nn.ModuleDict({**{f"conv{i}": b for i, b in enumerate(blocks, 1)}, "code": last})


def _compact(options: CrossEncoder) -> Iterable[nn.Module]:
    before = 1
    for factor, stride in zip((1, 2, 3, 4), STRIDES[options.size], strict=True):
        after = factor * options.width
        yield nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, after),
            nn.LeakyReLU(0.1),
        )
        before = after


def _resnet(options: CrossEncoder) -> Iterable[nn.Module]:
    before, stride = options.width, 2 if options.size == "36x60" else 1
    yield nn.Sequential(
        nn.Conv2d(1, before, 3, stride, padding=1, bias=False),
        nn.GroupNorm(GROUPS, before),
        nn.ReLU(),
    )
    for factor in WIDENING:
        after = factor * options.width
        blocks: list[nn.Module] = [
            BasicBlock(before, after, 1 + (factor > 1), GROUPS),
            BasicBlock(after, after, 1, GROUPS),
        ]
        if factor == WIDENING[-1]:
            blocks.append(nn.AdaptiveAvgPool2d(1))
        yield nn.Sequential(*blocks)
        before = after


def decoder(options: CrossEncoder) -> nn.ModuleDict:
    """Return the decoder's stages by name, from both codes to an image without activation."""
    sizes, channels = GROWN[options.size], 4 * options.width
    stages: dict[str, nn.Module] = {
        "grow": nn.Sequential(
            nn.Linear(options.eye + options.gaze, channels * START[0] * START[1]),
            nn.Unflatten(1, (channels, *START)),
        )
    }
    for number, size in enumerate(sizes, 1):
        after = max(channels // 2, options.width // 2)
        stages[f"up{number}"] = nn.Sequential(
            nn.Upsample(size),
            nn.Conv2d(channels, after, 3, padding=1, bias=False),
            # Without parameters and running statistics, as torch's default: nothing to average.
            nn.InstanceNorm2d(after),
            nn.LeakyReLU(0.1),
        )
        channels = after
    stages["image"] = nn.Conv2d(channels, 1, 3, padding=1)
    return nn.ModuleDict(stages)


class Sphere(nn.Module):
    """Scales the last `gaze` values of `[images, codes]` to length 1, as one vector."""

    def __init__(self, gaze: int) -> None:
        super().__init__()
        self.gaze = gaze

    def forward(self, codes: Tensor) -> Tensor:
        """Return the codes, with a gaze code of length 1."""
        eye, gaze = codes[:, : -self.gaze], codes[:, -self.gaze :]
        return torch.cat([eye, functional.normalize(gaze, dim=1)], 1)


class CrossEncoderNet(Staged):
    """Network from eyes `[rows, eyes, 1, H, W]` in [0, 1] to images of the same shape.

    Its stages all map `[rows, eyes, ...]` to `[rows, eyes, ...]`. It can be cut in the encoder and
    in the decoder, so that a client keeps both ends, which have images, and a server the middle.
    """

    reads = frozenset({"swap"})

    def __init__(self, options: CrossEncoder) -> None:
        super().__init__()
        self.size = tuple(map(int, options.size.split("x")))
        self.gaze = options.gaze
        self.encoder, self.decoder = encoder(options), decoder(options)
        self.down, self.up = tuple(self.encoder), tuple(self.decoder)
        self.stages = {
            **{name: (f"encoder.{name}",) for name in self.down},
            "swap": (),
            **{name: (f"decoder.{name}",) for name in self.up},
        }

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a stage for its input; only `swap` uses `whose`.

        Raises:
            ConfigError: images of another size.
        """
        if name == "swap":
            return swap(x, *side_inputs, gaze=self.gaze)
        if name == self.down[0]:
            check_size(x, self.size)
        part = self.encoder if name in self.down else self.decoder
        return part[name](x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def encode(self, eyes: Tensor) -> Codes:
        """Return the codes of every image: first the eye code, last the gaze code."""
        for name in self.down:
            eyes = self.stage(name, eyes)
        return eyes

    def decode(self, codes: Codes) -> Tensor:
        """Return the image of every pair of codes."""
        for name in self.up:
            codes = self.stage(name, codes)
        return codes


def check_size(eyes: Tensor, size: tuple[int, ...]) -> None:
    """Refuse images of another shape than `[rows, eyes, 1, H, W]` with this height and width.

    Raises:
        ConfigError: other images.
    """
    if eyes.ndim != 5 or tuple(eyes.shape[2:]) != (1, *size):
        wanted = "x".join(map(str, size))
        raise ConfigError(
            f"the network takes eyes [rows, eyes, 1, {size[0]}, {size[1]}], got "
            f"{list(eyes.shape)}; set the same size for model and federation (model: '{wanted}')"
        )


@dataclass(frozen=True)
class Roles:
    """Roles of the rows of a batch.

    Attributes:
        giver: number of the row whose eye code each row gets, int64 `[rows]`; without a partner a
            row keeps its own.
        consistent: rows of eye-consistent pairs (same eye, other moment), bool `[rows]`.
        similar: rows whose two eyes are a gaze-similar pair (same moment, other eye).
    """

    giver: Tensor
    consistent: Tensor
    similar: Tensor


def roles(whose: Tensor, eyes: int) -> Roles:
    """Return the roles of a batch's rows, by the numbers `whose` `[rows]` of their owners.

    The first and second row of the same eyes are a pair, the third and fourth the next, also if
    rows of others lie between them. The first half of the pairs is eye-consistent. All other rows,
    also one without a partner, are gaze-similar. With one eye per row nothing is gaze-similar, and
    all pairs are eye-consistent.
    """
    # Stable, so that the rows of an owner stay in the batch's order; every epoch shuffles it, and
    # so makes other pairs.
    order = torch.argsort(whose, stable=True)
    sort, place = whose[order], torch.arange(len(whose), device=whose.device)
    fresh = torch.ones_like(sort, dtype=torch.bool)
    fresh[1:] = sort[1:] != sort[:-1]
    # Everything below is arithmetic on whole vectors: a loop over owners would wait for a GPU.
    rank = place - torch.cummax(torch.where(fresh, place, 0), 0).values
    neighbour = (place + 1 - 2 * (rank % 2)).clamp(max=len(place) - 1)
    partner = torch.empty_like(order)
    partner[order] = order[neighbour]
    # The last row of an odd number has its neighbour among another owner's rows, or is its own.
    paired = (whose[partner] == whose) & (partner != place)
    closing = paired & (partner < place)
    number = closing.cumsum(0)
    number = torch.where(closing, number, number[partner])
    # Of an odd number of pairs the larger half, so that a single pair is eye-consistent.
    half = closing.sum() if eyes == 1 else (closing.sum() + 1) // 2
    consistent = paired & (number <= half)
    similar = torch.zeros_like(paired) if eyes == 1 else ~consistent
    return Roles(torch.where(consistent, partner, place), consistent, similar)


def swap(codes: Codes, whose: Tensor, gaze: int) -> Codes:
    """Exchange eye codes within eye-consistent pairs, gaze codes between the eyes of other rows.

    `gaze` is the length of the gaze code, the last values of `codes`.

    Source: eyeimages design note, section 2.
    """
    dealt = roles(whose, codes.shape[1])
    eye, look = codes[dealt.giver, :, :-gaze], codes[..., -gaze:]
    return torch.cat([eye, torch.where(dealt.similar[:, None, None], look.flip(1), look)], 2)
