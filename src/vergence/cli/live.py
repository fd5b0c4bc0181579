"""`vergence live` and `vergence web`: a model on a camera, here or in a page.

Used by `cli.commands`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from vergence.cli.app import Flag, OutFolder
from vergence.console import out
from vergence.errors import ConfigError
from vergence.experiment.trust import ask_for_trust


@ask_for_trust
def live(
    model: Path,
    *,
    camera: str = "0",
    realtime: Flag = False,
    loop: Flag = False,
    rate: float | None = None,
    seconds: float | None = None,
    headless: Flag = False,
    record: Path | None = None,
    person: str | None = None,
    correction: Path | None = None,
    threads: int = 1,
    face: Flag = False,
    eye: Literal["left", "right"] = "left",
    distance: float = 600.0,
    calibrate: Path | None = None,
    screen: str | None = None,
    samples: int = 5,
    smooth: float | None = None,
    points: Path | None = None,
    serve: int | None = None,
    token: Path | None = None,
) -> None:
    """Draw gaze over a camera's pictures as they come, with frames a second and latency.

    Args:
        model: what `vergence export` wrote (.onnx), or a run directory, which is exported first.
        camera: number of a camera, a device, a video file, or a URL.
        realtime: a file's frames come at their times; those that come too early are dropped.
        loop: a file begins again when it ends.
        rate: largest number of frames a second that are predicted on.
        seconds: end after this time.
        headless: no window, statistics only.
        record: write what is drawn (.mp4), and gaze as .csv beside it.
        person: predict as this participant of a run directory; default as a newcomer.
        correction: for a run directory: file of `vergence adapt --portable` or `vergence web`.
        threads: processor threads that the model may use.
        face: the camera shows a face: find both eyes; by default it is before one eye.
        eye: the eye that a camera before one eye shows.
        distance: from the eye to the screen, in mm.
        calibrate: for models of eye images: show nine targets, write labelled samples (.npz).
        screen: width and height of the screen in mm, as 344x194, for --calibrate.
        samples: number of frames written for each target.
        smooth: cut-off frequency in Hz of a One Euro filter (1 is usual, less is smoother).
        points: for models of eye images: file of --calibrate, to predict points on the screen.
        serve: port at which other programs on this computer read gaze, 0: any free port.
        token: with --serve: file for the token that such a program needs.
    """
    from vergence.live import command

    played = command.CameraOptions(realtime, loop, rate)
    eyes = command.EyeOptions(face, eye, distance, correction)
    if calibrate is None:
        shown = command.OutputOptions(headless, record, seconds, smooth, points, serve, token)
        command.start(model, camera, out, played, eyes, shown, person, threads)
    else:
        used = (headless, smooth, points, serve, token, record, seconds, person, correction)
        _refuse_unused(*used, threads if threads != 1 else None)
        command.calibrate(model, camera, out, calibrate, played, eyes, screen, samples)


@ask_for_trust
def web(
    folder: Path,
    *,
    out_: OutFolder,
    runtime: Path | None = None,
    packed: Flag = False,
    seed: int | None = None,
) -> None:
    """Write a static page that corrects a model for whoever opens it, in the browser.

    Args:
        folder: run directory of gaze angles of eye images; or of its leave-one-out evaluation.
        out_: a new folder for the page, for any static host.
        runtime: archive (.tgz) or folder of onnxruntime-web 1.30.0; default: got once by npm.
        packed: a page that works when its index.html is opened as a file.
        seed: the seed whose model is written; default the first.
    """
    from vergence.live.static_page import write_page

    size = write_page(folder, out_, runtime, packed, seed)
    # Names of folders may hold what the console takes for its own marks.
    show = partial(out.print, soft_wrap=True, highlight=False, markup=False)
    show(f"page: {out_ / 'index.html'} ({size / 1e6:.0f} MB)")
    if not packed:
        show(f"to try it: python -m http.server --directory {out_} --bind 127.0.0.1")


def _refuse_unused(*values: object) -> None:
    """Refuse options that a calibration does not use, named in one line."""
    names = (
        *("headless", "smooth", "points", "serve", "token", "record", "seconds"),
        *("person", "correction", "threads"),
    )
    unused = [
        f"--{n}" for n, v in zip(names, values, strict=True) if v is not None and v is not False
    ]
    if unused:
        raise ConfigError(
            f"--calibrate only shows targets and writes samples: leave out {', '.join(unused)}"
        )
