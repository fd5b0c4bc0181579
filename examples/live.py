"""Gaze on a camera or a video, with numpy, onnxruntime and av alone.

    python live.py MODEL.onnx [SOURCE] [--frames N]

MODEL.onnx is what `vergence export` wrote for a model of gaze maps: one that is given a frame and
its own state, or one that is given windows of frames. SOURCE is a video file, a device such as
/dev/video0 (the default), or a URL. A line for each frame: its number, the point of gaze in shares
of the frame, and the milliseconds from the frame to its map.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable

import av
import numpy as np
import onnxruntime

NextMap = Callable[[np.ndarray], np.ndarray | None]


def stream(session: onnxruntime.InferenceSession) -> NextMap:
    """Return what maps the next frame, with the network's state behind it."""
    state = {v.name: np.zeros(v.shape, np.float32) for v in session.get_inputs()[1:]}

    def next_map(frame: np.ndarray) -> np.ndarray:
        heat, *rest = session.run(None, {"frame": frame[None], **state})
        state.update(zip(state, rest, strict=True))
        return heat[0]

    return next_map


def windows(session: onnxruntime.InferenceSession, frames: int | None) -> NextMap:
    """Return what maps the newest of the last frames; None until a fixed window is full."""
    size = session.get_inputs()[0].shape[1]
    trained = session.get_modelmeta().custom_metadata_map.get("window", 1)
    last = deque(maxlen=size if isinstance(size, int) else frames or int(trained))

    def next_map(frame: np.ndarray) -> np.ndarray | None:
        last.append(frame)
        if isinstance(size, int) and len(last) < size:
            return None
        return session.run(None, {"frames": np.stack(last)[None]})[0][0, -1]

    return next_map


def centre(heat: np.ndarray) -> tuple[float, float]:
    """Return the centre of mass (x, y) of a map, from (0, 0) top left to (1, 1)."""
    mass = heat / heat.sum()
    rows, columns = ((np.arange(n) + 0.5) / n for n in heat.shape)
    return mass.sum(0) @ columns, mass.sum(1) @ rows


def main() -> None:
    """Print the point of every frame."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("source", nargs="?", default="/dev/video0")
    parser.add_argument("--frames", type=int, help="longest window, where the model takes any")
    given = parser.parse_args()
    session = onnxruntime.InferenceSession(given.model, providers=["CPUExecutionProvider"])
    first = session.get_inputs()[0]
    if first.name not in ("frame", "frames"):
        raise SystemExit(f"{given.model} takes '{first.name}': this example is for gaze maps")
    height, width = first.shape[-3:-1]
    next_map = stream(session) if first.name == "frame" else windows(session, given.frames)
    drawn = 0
    form = "v4l2" if given.source.startswith("/dev/video") else None
    with av.open(given.source, format=form) as container:
        for number, picture in enumerate(container.decode(video=0)):
            came = time.perf_counter()
            heat = next_map(picture.to_ndarray(format="rgb24", width=width, height=height))
            taken = 1000 * (time.perf_counter() - came)
            if heat is not None:
                drawn += 1
                x, y = centre(heat)
                print(f"{number} x {x:.3f} y {y:.3f} {taken:.1f} ms", flush=True)
    if not drawn:
        raise SystemExit(f"{given.source} has fewer frames than the model's window")


if __name__ == "__main__":
    main()
