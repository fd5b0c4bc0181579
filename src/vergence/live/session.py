"""Session of `vergence live`: frames of a camera are predicted on, shown and recorded.

Used by `live.command`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

from vergence.errors import ConfigError
from vergence.live.camera import CameraFrame, LiveCamera
from vergence.live.gaze_socket import GazeSocket
from vergence.live.recording import GazeRecording
from vergence.live.statistics import LiveStatistics
from vergence.live.views import LiveView
from vergence.live.window import LiveWindow

# Longest wait for a frame before events of the window are handled again: it must still answer keys
# when the camera gives nothing.
POLL_S = 0.1
REPORT_EVERY_S = 60.0
"""Seconds between two lines of statistics."""


@dataclass(frozen=True)
class SessionEnd:
    """Reason why a session ended, and its counts."""

    why: str
    statistics: LiveStatistics
    dropped: int
    recorded: int


class LiveSession:
    """Loop over the newest frames of a camera.

    Args:
        camera: a camera that is open.
        view: predicts on a frame and draws its gaze.
        window: window that shows the pictures; None: no window.
        recording: recording of the pictures; None: no recording.
        seconds: length of the session; None: until the camera or the person ends it.
        tell: called with a line of statistics every minute.
        served: sends the numbers of each frame to other programs; None: does not.
    """

    def __init__(
        self,
        camera: LiveCamera,
        view: LiveView,
        window: LiveWindow | None = None,
        recording: GazeRecording | None = None,
        seconds: float | None = None,
        tell: Callable[[str], None] = lambda _: None,
        served: GazeSocket | None = None,
    ) -> None:
        if seconds is not None and seconds <= 0:
            raise ConfigError(f"--seconds must be above 0, got {seconds:g}")
        self.camera, self.view, self.window = camera, view, window
        self.recording, self.seconds, self.tell, self.served = recording, seconds, tell, served
        self.statistics = LiveStatistics()

    def run(self) -> SessionEnd:
        """Draw until the session ends, by Ctrl-C too; the recording is complete in any case.

        Raises:
            DataError: the camera gives no frames.
            PartialRun: the camera fails, or the recording cannot be written.
        """
        # Closed in reverse order: the camera first, the recording last, when all frames are in.
        with ExitStack() as last:
            for opened in (self.recording, self.window, self.served):
                if opened is not None:
                    last.callback(opened.close)
            last.enter_context(self.camera)
            try:
                why = self._draw_all()
            except KeyboardInterrupt:
                why = "interrupted"
        recorded = 0 if self.recording is None else self.recording.frames
        return SessionEnd(why, self.statistics, self.camera.dropped, recorded)

    def _draw_all(self) -> str:
        began, reported = perf_counter(), 0.0
        while True:
            if (frame := self.camera.newest(POLL_S)) is not None:
                if not self._draw(frame):
                    return "closed"
            elif self.camera.ended:
                return f"{self.camera.source} ended after {self.camera.frames} frames"
            elif self.window is not None and not self.window.look_after():
                return "closed"
            passed = perf_counter() - began
            if passed - reported >= REPORT_EVERY_S:
                reported += REPORT_EVERY_S
                self.tell(
                    f"minute {reported / 60:.0f}: {self.statistics.line(self.camera.dropped)}"
                )
            if self.seconds is not None and passed >= self.seconds:
                return f"{self.seconds:g} s are over"

    def _draw(self, frame: CameraFrame) -> bool:
        """Draw one frame; False if the person closed the window."""
        seen = self.view.look(frame)
        latency_s = perf_counter() - frame.came_s
        # Frames while a window fills, or without an eye, would make the latency look better.
        if seen.numbers is not None:
            self.statistics.add(latency_s)
        if self.served is not None:
            self.served.send(frame.number, frame.time_s, seen.numbers or (), latency_s)
        if self.recording is not None:
            known = () if seen.numbers is None else (*seen.numbers, 1000 * latency_s)
            self.recording.add(frame, seen.picture, known)
        return self.window is None or self.window.show(seen.picture, self._text())

    def _text(self) -> str:
        now = self.statistics
        return (
            f"{now.rate:.1f} frames/s   latency {now.latency_ms:.0f} ms   "
            f"{self.camera.dropped} dropped"
            if now.frames
            else "waiting for frames"
        )
