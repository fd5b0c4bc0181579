"""Pixels of synthetic egocentric frames: room, objects, hands, lens and sensor, in batches.

Frames are rasterised at 1.5 times their size as `[3, frames, height, width]` float32 and averaged
down. Pixels of objects and hands are looked up in small templates, so no loop runs over pixels.
Used by `data.synthetic.ego.ego_synthetic`.

Source: egovideo design note, 6.1.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from vergence.data.synthetic.ego.people import CLASSES, Looks
from vergence.data.synthetic.ego.scene import Lens, SyntheticScene

BATCH = 32
"""Number of frames rasterised together; more frames would not fit into the processor's cache."""
SPRITE = 64
TEXELS = 96
"""Pixels of the room's texture per frame width."""
ARM, HALF_ARM = 0.8, 0.2
"""Length and half width of the template of hand and forearm, in frame widths."""
TIP = 4
"""Row of this template at which the hand touches things."""


@dataclass(frozen=True)
class WearerView:
    """Frames to draw.

    `index` holds the frames' numbers in the scene, and `head` the point of the scene's plane at
    each frame's centre.
    """

    index: NDArray
    head: NDArray
    blur: NDArray
    """Movement of the picture during each frame's exposure, in frame widths, `[frames, 2]`."""

    @staticmethod
    def of(head: NDArray, index: NDArray) -> WearerView:
        """Return the frames with the numbers `index`; `head` is the head's path, `[frames, 2]`."""
        before = head[np.maximum(index - 1, 0)]
        return WearerView(index, head[index], np.abs(head[index] - before))


def render(
    looks: Looks, lens: Lens, scene: SyntheticScene, view: WearerView, rng: Generator, size: int
) -> NDArray:
    """Draw the frames of a view, uint8 `[frames, size, size, 3]`; `size` must be even."""
    room = _room(looks, rng)
    exposure = looks.exposure * np.exp(rng.normal(0, 0.08))
    frames = len(view.index)
    out = np.empty((frames, size, size, 3), np.uint8)
    for start in range(0, frames, BATCH):
        part = slice(start, start + BATCH)
        piece = WearerView(view.index[part], view.head[part], view.blur[part])
        picture = _draw(looks, lens, scene, piece, room, size * 3 // 2)
        picture = _motion_blur(_shrink(picture), piece.blur * size)
        out[part] = _expose(picture, looks, float(exposure), rng)
    return out


def _draw(
    looks: Looks, lens: Lens, scene: SyntheticScene, view: WearerView, room: NDArray, size: int
) -> NDArray:
    """Draw background, objects (in order of depth) and hands; return `[3, frames, size, size]`."""
    largest = scene.sizes.max() / lens.scale * (1 + max(-lens.radial, 0)) * 1.15
    patch = int(np.ceil(largest * size)) + 2
    # Objects may lie half outside: the canvas has a margin as wide as the largest of them.
    margin = patch
    axis = ((np.arange(size + 2 * margin) - margin + 0.5) / size).astype(np.float32)
    grid = np.stack(np.broadcast_arrays(axis[None, :], axis[:, None]), -1)
    plane = lens.unproject(grid).astype(np.float32)
    inner = slice(margin, margin + size)
    canvas = np.zeros((3, len(view.index), *grid.shape[:2]), np.float32)
    canvas[:, :, inner, inner] = _look_up_room(room, view, plane[inner, inner])
    order = np.argsort(scene.objects[0, :, 1])
    for item in order:
        offset = scene.objects[view.index, item] - view.head
        corner = np.rint(lens.project(offset) * size - patch / 2).astype(int) + margin
        _paste(canvas, scene, plane, int(item), offset.astype(np.float32), corner, patch)
    visible = np.ascontiguousarray(canvas[:, :, inner, inner])
    acting = round(float(scene.acting[view.index].mean()))
    for hand in (1 - acting, acting):
        _reach(visible, looks, lens, scene, view, plane[inner, inner], hand)
    return visible


def _look_up_room(room: NDArray, view: WearerView, plane: NDArray) -> NDArray:
    side = room.shape[1]
    # The texture covers three frame widths, [-1, 2] of the plane, and its edge goes on beyond.
    x = (plane[..., 0] + (view.head[:, 0, None, None] + 1).astype(np.float32)) * TEXELS
    y = (plane[..., 1] + (view.head[:, 1, None, None] + 1).astype(np.float32)) * TEXELS
    column = np.clip(x.astype(np.int32), 0, side - 1)
    row = np.clip(y.astype(np.int32), 0, side - 1)
    cell = row * side + column
    return np.stack([np.take(channel, cell) for channel in room.reshape(3, -1)])


def _paste(
    canvas: NDArray,
    scene: SyntheticScene,
    plane: NDArray,
    item: int,
    offset: NDArray,
    corner: NDArray,
    patch: int,
) -> None:
    """Draw one object into every frame, in a window of `patch` pixels around it.

    Args:
        canvas: `[3, frames, height, width]`, drawn on in place.
        scene: the objects.
        plane: point of the scene's plane, relative to the head, for each pixel.
        item: number of the object.
        offset: the object's centre relative to the head, for each frame.
        corner: upper left corner of the window, for each frame.
        patch: width and height of the window in pixels.
    """
    frames, height, width = canvas.shape[1:]
    corner = np.clip(corner, 0, height - patch)
    rows = corner[:, 1, None] + np.arange(patch)
    columns = corner[:, 0, None] + np.arange(patch)
    flat = rows[:, :, None] * width + columns[:, None, :]
    size_on_plane = np.float32(SPRITE / (1.15 * scene.sizes[item]))
    x = (np.take(plane[..., 0], flat) - offset[:, 0, None, None]) * size_on_plane
    y = (np.take(plane[..., 1], flat) - offset[:, 1, None, None]) * size_on_plane
    cos, sin = np.float32(np.cos(scene.angles[item])), np.float32(np.sin(scene.angles[item]))
    u = np.clip((cos * x + sin * y + SPRITE / 2).astype(np.int32), 0, SPRITE - 1)
    v = np.clip((cos * y - sin * x + SPRITE / 2).astype(np.int32), 0, SPRITE - 1)
    cell = v * SPRITE + u
    alpha, mix, shade = (np.take(layer, cell) for layer in _sprites()[scene.kinds[item]])
    flat += np.arange(frames)[:, None, None] * (height * width)
    for channel in range(3):
        first, second = scene.colours[item, :, channel].astype(np.float32)
        pixels = canvas[channel].reshape(-1)
        old = np.take(pixels, flat)
        pixels[flat] = old + alpha * (shade * (first + (second - first) * mix) - old)


def _reach(
    picture: NDArray,
    looks: Looks,
    lens: Lens,
    scene: SyntheticScene,
    view: WearerView,
    plane: NDArray,
    hand: int,
) -> None:
    """Draw one hand and its forearm into every frame; the forearm comes from the lower edge."""
    tip = (scene.hands[view.index, hand] - view.head).astype(np.float32)
    elbow = lens.unproject(np.array([0.5 + (0.34 if hand else -0.34), 1.45]))
    along = elbow.astype(np.float32) - tip
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    dx, dy = along[:, 0, None, None], along[:, 1, None, None]
    x = plane[..., 0] - tip[:, 0, None, None]
    y = plane[..., 1] - tip[:, 1, None, None]
    texels = np.float32(SPRITE / (2 * HALF_ARM))
    u = ((x * dx + y * dy) * texels).astype(np.int32) + TIP
    v = ((y * dx - x * dy) * (texels if hand else -texels) + SPRITE / 2).astype(np.int32)
    template = _arm()
    length = template.shape[1]
    cell = np.clip(u, 0, length - 1) * SPRITE + np.clip(v, 0, SPRITE - 1)
    hit = np.flatnonzero(np.take(template[0], cell) > 0)
    alpha, mix, shade = (np.take(layer, cell.reshape(-1)[hit]) for layer in template)
    for channel in range(3):
        skin, sleeve = np.float32(looks.skin[channel]), np.float32(looks.sleeve[channel])
        pixels = picture[channel].reshape(-1)
        old = pixels[hit]
        pixels[hit] = old + alpha * (shade * (skin + (sleeve - skin) * mix) - old)


@lru_cache(maxsize=1)
def _sprites() -> NDArray:
    """Return a template for each object class, `[8, 3, SPRITE, SPRITE]`.

    Its three channels are opacity, fraction of the object's second colour, and shade.
    """
    y, x = (np.mgrid[0:SPRITE, 0:SPRITE] + 0.5) / SPRITE * 1.15 - 0.575
    radius = np.hypot(x, y)

    def box(cx: float, cy: float, a: float, b: float) -> NDArray:
        return np.maximum(np.abs(x - cx) - a, np.abs(y - cy) - b)

    bowl = np.where(y < -0.12, np.maximum(radius - 0.5, -0.2 - y), radius - 0.5)
    wave = 0.04 * np.sin(14 * x) + 0.04 * np.cos(11 * y)
    shapes = {
        "disc": (radius - 0.48, radius - 0.32),
        "box": (box(0, 0, 0.46, 0.34), box(0, -0.14, 0.46, 0.05)),
        "bottle": (
            np.minimum(box(0, 0.12, 0.17, 0.36), box(0, -0.36, 0.07, 0.13)),
            box(0, 0.15, 0.17, 0.14),
        ),
        "bowl": (bowl, np.hypot(x, (y + 0.16) * 2.6) - 0.44),
        "knife": (box(0, 0, 0.5, 0.055), box(-0.32, 0, 0.18, 0.055)),
        "jar": (
            np.minimum(box(0, 0.08, 0.28, 0.36), box(0, -0.38, 0.31, 0.08)),
            box(0, -0.38, 0.31, 0.08),
        ),
        "cloth": (box(0, 0, 0.42, 0.40) + wave, 0.06 * np.sin(26 * (x + 0.4 * y))),
        "screen": (box(0, 0, 0.48, 0.32), box(0, 0, 0.42, 0.26)),
    }
    light = 1.0 - 0.35 * (x + y)
    layers = []
    for name in CLASSES:
        outer, inner = shapes[name]
        alpha = _soft(outer, 0.02)
        # A dark rim sets an object off from any background; a screen is flat and bright.
        shade = (light if name != "screen" else 1.0) * (1 - 0.5 * _soft(np.abs(outer), 0.03))
        layers.append([alpha, _soft(inner, 0.015), np.clip(shade, 0, 1.4)])
    sprites = np.array(layers, np.float32)
    # Look-ups beyond the template end in its border, which must be transparent.
    sprites[:, 0, [0, -1]] = 0
    sprites[:, 0, :, [0, -1]] = 0
    return sprites.reshape(len(CLASSES), 3, -1)


@lru_cache(maxsize=1)
def _arm() -> NDArray:
    """Return the template of hand and forearm, `[3, length, SPRITE]`.

    Its three channels are opacity, fraction of the sleeve's colour, and shade.
    """
    length = int(ARM / (2 * HALF_ARM) * SPRITE)
    u = ((np.arange(length) - TIP + 0.5) / SPRITE * 2 * HALF_ARM)[:, None]
    v = ((np.arange(SPRITE) + 0.5) / SPRITE * 2 * HALF_ARM - HALF_ARM)[None, :]

    def capsule(u0: float, v0: float, u1: float, v1: float, radius: float) -> NDArray:
        du, dv = u1 - u0, v1 - v0
        share = np.clip(((u - u0) * du + (v - v0) * dv) / (du * du + dv * dv), 0, 1)
        return np.hypot(u - u0 - share * du, v - v0 - share * dv) - radius

    fingers = [
        capsule(0.0, 0.0, 0.10, 0.0, 0.014),
        capsule(0.01, 0.035, 0.10, 0.03, 0.014),
        capsule(0.04, -0.055, 0.13, -0.03, 0.015),
    ]
    palm = (np.hypot((u - 0.125) / 0.065, v / 0.052) - 1) * 0.05
    forearm = np.abs(v) - (0.036 + 0.02 * np.clip(u, 0, 1)) + 10.0 * (u < 0.15)
    whole = np.minimum.reduce([*fingers, palm, forearm])
    sleeve = np.broadcast_to(_soft(0.30 - u, 0.006), whole.shape)
    shade = (1.05 - 1.6 * v) * (1 - 0.45 * _soft(np.abs(whole), 0.006))
    arm = np.array([_soft(whole, 0.004), sleeve, np.clip(shade, 0, 1.4)], np.float32)
    # Look-ups beyond the fingertips end in this row; beyond the elbow the arm goes on.
    arm[0, 0] = 0
    return arm


def _soft(distance: NDArray, width: float) -> NDArray:
    """Return 1 inside a shape (negative distance) and 0 outside, with a ramp of this half width."""
    return np.clip(0.5 - distance / (2 * width), 0, 1)


def _room(looks: Looks, rng: Generator) -> NDArray:
    """Return the texture of wall, counter and floor, `[3, 3 * TEXELS, 3 * TEXELS]` float32."""
    side = 3 * TEXELS
    axis = (np.arange(side, dtype=np.float32) + 0.5) / TEXELS - 1
    edge = rng.normal((0.12, 1.05), 0.06)
    wall, counter, floor = looks.palette.astype(np.float32)
    rows = np.where(
        axis[:, None] < edge[0], wall, np.where(axis[:, None] < edge[1], counter, floor)
    )
    tiles, wood, cloud = (np.float32(g) for g in looks.grain)
    phase = rng.uniform(0, 1, 3)
    noise = cloud * (_noise(rng, 14, side) + 0.5 * _noise(rng, 40, side)) * 0.3
    pitch = 0.16 + 0.14 * phase[0]
    lines_x = ((axis + phase[1]) % pitch < 0.02).astype(np.float32)
    lines_y = ((axis + phase[2]) % pitch < 0.02).astype(np.float32)
    above = (axis < edge[0]).astype(np.float32)[:, None]
    tiling = tiles * above * np.maximum(lines_x[None, :], lines_y[:, None])
    wave = np.sin(2 * np.pi * (9 * axis[:, None] + 1.5 * _noise(rng, 9, side)))
    grain = 1 - tiling + (1 - above) * wood * 0.35 * wave.astype(np.float32) + noise
    return np.clip(rows.T[:, :, None] * grain[None], 0, 1).astype(np.float32)


def _noise(rng: Generator, cells: int, side: int) -> NDArray:
    """Return bilinear value noise in [-1, 1], `[side, side]` float32."""
    grid = rng.uniform(-1, 1, (cells + 1, cells + 1)).astype(np.float32)
    place = np.arange(side, dtype=np.float32) * np.float32(cells / side)
    low = place.astype(np.int32)
    share = place - low
    rows = grid[low] + (grid[low + 1] - grid[low]) * share[:, None]
    return rows[:, low] + (rows[:, low + 1] - rows[:, low]) * share[None, :]


def _shrink(picture: NDArray) -> NDArray:
    """Return the picture averaged down: every 3 x 3 pixels become 2 x 2."""
    for axis in (2, 3):
        shape = picture.shape
        thirds = np.moveaxis(picture, axis, 0).reshape(-1, 3, *shape[:axis], *shape[axis + 1 :])
        half = np.float32(0.5) * thirds[:, 1]
        pairs = np.stack([thirds[:, 0] + half, thirds[:, 2] + half], 1) * np.float32(1 / 1.5)
        picture = np.moveaxis(pairs.reshape(-1, *pairs.shape[2:]), 0, axis)
    return np.ascontiguousarray(picture)


def _motion_blur(picture: NDArray, shift: NDArray) -> NDArray:
    """Return the picture blurred along its movement, by three taps.

    The taps have the variance of a box that is as long as the shift in pixels.
    """
    for axis, pixels in ((3, shift[:, 0]), (2, shift[:, 1])):
        # A box of length s has variance s^2 / 12, two taps of weight w have 2 w: so w = s^2 / 24.
        side = np.minimum(pixels**2 / 24, 1 / 3).astype(np.float32)[None, :, None, None]
        after = np.concatenate(_ends(picture, axis, 1, None, last=True), axis)
        before = np.concatenate(_ends(picture, axis, 0, -1, last=False), axis)
        picture = picture + side * (after + before - 2 * picture)
    return picture


def _ends(
    picture: NDArray, axis: int, start: int, stop: int | None, *, last: bool
) -> list[NDArray]:
    """Return two arrays that joined along `axis` are the picture, shifted by one pixel.

    One array is rows `start` to `stop`. The other repeats the last row behind it, or the first row
    before it.
    """
    whole = [slice(None)] * picture.ndim
    whole[axis] = slice(start, stop)
    edge = [slice(None)] * picture.ndim
    edge[axis] = slice(-1, None) if last else slice(0, 1)
    inner, repeated = picture[tuple(whole)], picture[tuple(edge)]
    return [inner, repeated] if last else [repeated, inner]


def _expose(picture: NDArray, looks: Looks, exposure: float, rng: Generator) -> NDArray:
    """Return frames as a camera stores them, uint8 `[frames, size, size, 3]`.

    Shading, gain, flicker, noise, gamma, rounding to 8 bits and JPEG compression are applied.
    """
    frames, size = picture.shape[1:3]
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    radius2 = (axis[:, None] ** 2 + axis[None, :] ** 2) * 2
    shading = 1 - np.float32(looks.vignette) * radius2
    flicker = 1 + 0.01 * rng.standard_normal(frames, np.float32)
    gains = exposure * np.array([1 + looks.warmth, 1, 1 - looks.warmth], np.float32)
    light = np.moveaxis(picture, 0, 3) * (shading[:, :, None] * gains)
    light *= flicker[:, None, None, None]
    # Shot noise grows with the light; read noise is what remains in the dark.
    spread = np.sqrt(np.maximum(light, 0) * np.float32(0.8) + np.float32(0.2))
    spread *= rng.standard_normal(light.shape, np.float32)
    light += np.float32(looks.noise) * spread
    levels = np.clip(light * 1023, 0, 1023).astype(np.int16)
    curve = np.rint(255 * (np.arange(1024) / 1023) ** looks.gamma).astype(np.uint8)
    return _compress(np.take(curve, levels), looks.jpeg)


def _compress(pictures: NDArray, quality: int) -> NDArray:
    out = np.empty_like(pictures)
    for i, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=quality)
        out[i] = np.asarray(Image.open(file, formats=("JPEG",)))
    return out
