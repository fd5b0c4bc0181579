"""Streaming models: take one frame and a state, return the frame's gaze map and a new state.

Used by `model_tools.onnx_export` and `video.predict_maps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from vergence.core.data import Batch
from vergence.metrics.personal_priors import BANK
from vergence.models import motion, pretrained
from vergence.models.glc.glc_causal import GazeContext, GlcCausal, GlcCausalNet
from vergence.tasks.gaze_map import GazeMap

State = tuple[Tensor, ...]


class StreamingModel(nn.Module):
    """Causal network with feature extractor and prior: maps a frame's pixels to its gaze map.

    The state is that of a `GazeContext` and, with motion, of a `Background`; `start` gives the
    state before the first frame.
    """

    def __init__(self, task: GazeMap, network: GlcCausalNet, prior: Tensor | None = None) -> None:
        super().__init__()
        assert isinstance(task.network, GlcCausal)
        self.task, self.network, self.prior = task, network, prior
        self.moves = task.network.sees_motion
        self.features = pretrained.FrozenModel(task.network.standardise)
        state = (*GazeContext._fields, *(motion.Background._fields if self.moves else ()))
        self.columns = ("frame", *(f"last_{name}" for name in state))
        self.answers = ("map", *(f"next_{name}" for name in state))

    # The state goes in and out as plain tensors: an ONNX file cannot keep any between calls.
    def forward(self, frame: UInt8[Tensor, "1 height width 3"], *state: Tensor) -> State:
        """Return the map of the frame `[1, rows, columns]`, with sum 1, and the new state."""
        features, background = self.features(frame[:, None])[:, 0], ()
        if self.moves:
            moving, background = motion.observe(frame, motion.Background(*state[2:]))
            features = torch.cat([features, moving], 1)
        logits, context = self.network.step(features, GazeContext(*state[:2]))
        batch = {} if self.prior is None else {BANK: self.prior}
        output = self.task.with_prior(logits[:, None], batch)[:, 0] / self.task.temperature
        heat = output.flatten(1).softmax(1).view(output.shape)
        return heat, *context, *background

    def start(self, height: int, width: int) -> State:
        """Return the state before the first frame, for frames of this size in pixels."""
        rows, columns = (side // 2 for side in self.network.grid)
        context = self.network.start(torch.zeros(1, 1, 1, rows, columns))
        return *context, *(motion.empty_background(1, height, width) if self.moves else ())

    def arguments(self, batch: Batch) -> State:
        """Return the first frame of the first sample of a batch, and the state before it."""
        return batch["frames"][:1, 0], *self.start(*batch["frames"].shape[2:4])

    def calls(self, batch: Batch) -> Iterator[State]:
        """Yield the arguments of calls without the state: the frames of the first sample."""
        for frame in batch["frames"][:1].unbind(1):
            yield (frame,)


@torch.no_grad()
def stream(
    model: StreamingModel, frames: Iterable[NDArray]
) -> Iterator[Float[Tensor, "rows columns"]]:
    """Yield the map of every frame, uint8 `[H, W, 3]`, as soon as the frame is available."""
    state: State | None = None
    for picture in frames:
        frame = torch.from_numpy(picture)[None]
        state = model.start(*picture.shape[:2]) if state is None else state
        heat, *rest = model(frame, *state)
        state = tuple(rest)
        yield heat[0]
