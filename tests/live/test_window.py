"""The window, with a tkinter that keeps what it is shown: a display is not there in tests."""

import io
import sys
import types

import numpy as np
import pytest
from PIL import Image

from tests.live.fabricated import STREAM, dots, write_model
from vergence.live.camera import LiveCamera
from vergence.live.gaze_models import open_model
from vergence.live.session import LiveSession
from vergence.live.views import MapView
from vergence.live.window import LiveWindow, NoDisplay


class Widget:
    """Canvas and label."""

    def __init__(self, root, **_):
        self.kept = []
        root.widgets.append(self)

    def config(self, **said):
        self.kept.append(said)

    def pack(self, **_):
        pass

    def delete(self, _):
        pass

    def winfo_width(self):
        return 400

    def winfo_height(self):
        return 200

    def create_image(self, *_, image, anchor):
        self.kept.append(image)

    def create_oval(self, *box, **_):
        self.kept.append(box)


class Photo:
    """A picture of Tk, which reads PPM."""

    def __init__(self, master):
        self.kept = []

    def configure(self, data):
        self.kept.append(np.asarray(Image.open(io.BytesIO(data))))


class Root:
    """A window whose person presses q at the third look."""

    looks = 0

    def __init__(self):
        self.widgets, self.keys, self.gone = [], {}, False

    def title(self, _):
        pass

    def protocol(self, _, stop):
        self.keys["close"] = stop

    def bind(self, key, stop):
        self.keys[key] = stop

    def attributes(self, *_):
        self.full = True

    def winfo_screenwidth(self):
        return 400

    def winfo_screenheight(self):
        return 200

    def geometry(self, text):
        self.place = text

    def update(self):
        self.looks += 1
        if self.looks == 4:
            self.keys["q"](None)

    def destroy(self):
        self.gone = True


@pytest.fixture
def display(monkeypatch):
    made = types.SimpleNamespace(
        Tk=Root, Canvas=Widget, Label=Widget, PhotoImage=Photo, TclError=RuntimeError
    )
    monkeypatch.setitem(sys.modules, "tkinter", made)
    return made


@pytest.mark.usefixtures("display")
def test_pictures_and_numbers_are_shown_until_q(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", STREAM))
    window = LiveWindow("live")
    canvas, label = window.root.widgets
    end = LiveSession(LiveCamera(str(dots(tmp_path / "a.mp4", 9))), MapView(model), window).run()
    assert end.why == "closed"
    assert end.statistics.frames == 3
    assert window.root.gone
    (photo,) = (each for each in canvas.kept if isinstance(each, Photo))
    pictures = photo.kept
    assert [each.shape for each in pictures] == [(48, 64, 3)] * 3
    assert not np.array_equal(pictures[0], pictures[1])
    assert all("frames/s   latency" in each["text"] for each in label.kept)


@pytest.mark.usefixtures("display")
def test_a_target_is_drawn_at_its_place():
    window = LiveWindow("targets", full=True)
    assert window.target((0.25, 0.5))
    assert window.root.full
    assert window.root.place == "400x200+0+0"
    box = window.root.widgets[0].kept[0]
    assert (box[0] + box[2]) / 2 == 100
    assert (box[1] + box[3]) / 2 == 100


def test_without_tkinter_or_display_it_says_why(monkeypatch, display):
    def fails():
        raise RuntimeError("no display name")

    monkeypatch.setattr(display, "Tk", fails)
    with pytest.raises(NoDisplay, match="no window: no display name"):
        LiveWindow("live")
    monkeypatch.setitem(sys.modules, "tkinter", None)
    with pytest.raises(NoDisplay, match=r"this Python has no tkinter; install it"):
        LiveWindow("live")
