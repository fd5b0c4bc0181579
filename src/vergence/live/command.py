"""`vergence live`: connects an exported model, a camera, a window and a recording.

Used by `cli.live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from vergence.data.eye_images.landmarks import load_landmarker
from vergence.errors import ConfigError
from vergence.live.calibration import CalibrationPlan
from vergence.live.calibration import calibrate as show_targets
from vergence.live.camera import CameraOptions, LiveCamera
from vergence.live.eye_sources import EyeCamera, EyeSource, FaceCamera, Side
from vergence.live.gaze_models import EyeModel, MapModel, open_model
from vergence.live.gaze_socket import GazeSocket
from vergence.live.recording import GazeRecording
from vergence.live.screen_point import fitted_screen
from vergence.live.session import LiveSession, SessionEnd
from vergence.live.smoothing import OneEuro
from vergence.live.views import EyeView, MapView
from vergence.live.window import LiveWindow, NoDisplay


@dataclass(frozen=True)
class EyeOptions:
    """Options for the source of eye patches.

    Attributes:
        face: whether the camera shows a face, in which both eyes are found. If not, it is close to
            one eye and shows nothing else.
        side: which eye such a camera shows.
        distance_mm: distance from that eye to the screen.
        correction: correction file of the person, for a run directory; None: no correction.
    """

    face: bool = False
    side: Side = "left"
    distance_mm: float = 600.0
    correction: Path | None = None


@dataclass(frozen=True)
class OutputOptions:
    """Options for the output of a session.

    Attributes:
        headless: whether there is no window.
        record: video to write; None: no recording.
        seconds: length of the session; None: until the camera or the person ends it.
        smooth: cut-off frequency of the One Euro filter in Hz; None: no filter.
        points: calibration file, from which the point on the screen is fitted; None: no such point.
        serve: port on 127.0.0.1 on which other programs read gaze; None: no port.
        token: file for the token that they need; None: the token is only printed.
    """

    headless: bool = False
    record: Path | None = None
    seconds: float | None = None
    smooth: float | None = None
    points: Path | None = None
    serve: int | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        if self.token is not None and self.serve is None:
            raise ConfigError("--token is for --serve: give a port, such as --serve 5005")


def start(
    model: Path,
    source: str,
    console: Console,
    played: CameraOptions,
    eyes: EyeOptions,
    shown: OutputOptions,
    person: str | None = None,
    threads: int = 1,
) -> SessionEnd:
    """Draw gaze over the frames of a camera until camera or person ends it; print statistics.

    Args:
        model: exported file, or run directory.
        source: number of a camera, a device, a file, or a URL.
        console: console that statistics are printed to.
        played: options of the source.
        eyes: source of eye patches, for models of eyes.
        shown: options for window, recording and length.
        person: whose model of a run directory; default the shared one.
        threads: number of threads of the model.

    Raises:
        ConfigError: the options contradict each other.
        DataError: there is no such model, or no such camera.
        PartialRun: the camera failed in mid-session; the recording up to then is complete.
    """
    with _opened(model, person, threads, eyes.correction) as found:
        if isinstance(found, MapModel) and eyes.face:
            raise ConfigError(f"{model} draws maps of what a camera sees; --face is for eyes")
        recording = served = None

        def tell(line: str) -> None:
            console.print(line, soft_wrap=True, highlight=False)

        seen = _eye_source(found, eyes)
        with closing(LiveCamera(source, played)) as camera:
            view = _view(found, seen, shown, tell)
            if shown.record is not None:
                recording = GazeRecording(shown.record, view.columns, camera.step_s)
            if shown.serve is not None:
                served = GazeSocket(shown.serve, view.columns, shown.token)
                tell(f"gaze for other programs: 127.0.0.1:{served.port}, token {served.token}")
            window = _window(shown.headless, console)
            # The view and the recording come before the session: their refusals cost no frame.
            end = LiveSession(camera, view, window, recording, shown.seconds, tell, served).run()
    tell(f"{end.why}: {end.statistics.line(end.dropped)}")
    if recording is not None and end.recorded:
        tell(f"recording: {recording.path} ({end.recorded} frames)\ntable:     {recording.table}")
    return end


def calibrate(
    model: Path,
    source: str,
    console: Console,
    out: Path,
    played: CameraOptions,
    eyes: EyeOptions,
    screen: str | None,
    samples: int,
) -> int:
    """Show nine targets, write labelled samples, and return their number.

    Args:
        model: file or run directory of a model of eyes, which sets the size of the patches.
        source: number of a camera, a device, a file, or a URL.
        console: console that the result is printed to.
        out: file to write (.npz).
        played: options of the source.
        eyes: source of eye patches.
        screen: width and height of the screen in mm, as 344x194.
        samples: number of frames for each target.

    Raises:
        ConfigError: the model predicts maps, the screen has no size, `out` has another ending, or
            there is no display.
        DataError: there is no such camera, or no eye was seen.
        PartialRun: the person ended the calibration; nothing is written.
    """
    if out.suffix != ".npz":
        raise ConfigError(f"a calibration is written as .npz, got {out}: end the name in .npz")
    try:
        width, height = map(float, (screen or "").split("x"))
    except ValueError:
        raise ConfigError(
            f"--screen must be the screen's width and height in mm, as 344x194, got {screen}"
        ) from None
    plan = CalibrationPlan(width, height, samples)
    with _opened(model, None, 1) as found:
        if not isinstance(found, EyeModel):
            raise ConfigError(f"{model} draws maps; --calibrate is for models of eyes")
        seen = _eye_source(found, eyes)
        with LiveCamera(source, played) as camera:
            window = LiveWindow("vergence calibration", full=True)
            try:
                count = show_targets(camera, seen, window, plan, out)
            finally:
                window.close()
    console.print(f"calibration: {out} ({count} patches)", soft_wrap=True, highlight=False)
    return count


def _view(
    model: MapModel | EyeModel, seen: EyeSource, shown: OutputOptions, tell: Callable[[str], None]
) -> MapView | EyeView:
    """Return the view of a model; a fit of the screen is told with its error."""
    smooth = None if shown.smooth is None else OneEuro(shown.smooth)
    if isinstance(model, MapModel):
        if shown.points is not None:
            raise ConfigError("--points is for models of eyes; a map has its points in the picture")
        return MapView(model, smooth)
    if shown.points is None:
        return EyeView(model, seen, smooth)
    name, fit = fitted_screen(shown.points, model)
    tell(
        f"points on the screen: {name}, {fit.error_cm:.1f} cm ({fit.error_deg:.1f} degrees) on "
        "targets left out"
    )
    return EyeView(model, seen, smooth, fit.model)


@contextmanager
def _opened(
    model: Path, person: str | None, threads: int, correction: Path | None = None
) -> Iterator[MapModel | EyeModel]:
    """Open a model file; a run directory is exported first, with a person's correction if given."""
    if not model.is_dir():
        if person is not None or correction is not None:
            raise ConfigError(
                "--person and --correction are of a run directory, and the model is a file"
            )
        yield open_model(model, threads)
        return
    if person is not None and correction is not None:
        raise ConfigError("--person is of somebody who took part, --correction of somebody new")
    from vergence.adaptation.portable import adapt_from
    from vergence.model_tools.onnx_export import export

    # Only the file is tested against torch, so a run directory goes through it too. The session
    # holds the model in memory, and the directory may go before the first frame.
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if correction is not None:
            model = adapt_from(model, correction, Path(folder) / "adapted").folder
        export(model, path, Console(quiet=True), person)
        exported = open_model(path, threads)
    yield exported


def _eye_source(model: MapModel | EyeModel, eyes: EyeOptions) -> EyeSource:
    """Return the source of eye patches for a model."""
    if eyes.distance_mm <= 0:
        raise ConfigError(f"--distance must be above 0 mm, got {eyes.distance_mm:g}")
    if eyes.face:
        return FaceCamera(load_landmarker(), model.height, model.width)
    return EyeCamera(model.height, model.width, eyes.side, eyes.distance_mm)


def _window(headless: bool, console: Console) -> LiveWindow | None:
    if headless:
        return None
    # A machine without a display can still measure and record.
    try:
        return LiveWindow("vergence live")
    except NoDisplay as error:
        console.print(f"{error}; statistics only", soft_wrap=True, highlight=False)
        return None
