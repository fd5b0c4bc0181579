"""Window for `vergence live` by tkinter, which comes with Python on most systems.

Used by `live.command` and `live.session`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError

# Radius of a target, in pixels: visible from the corner of the eye, with a small red centre to
# look at.
DOT = 12


class NoDisplay(ConfigError):
    """Error: this machine cannot open a window."""


class LiveWindow:
    """Window with a picture and a line of text; q, Escape or its button close it.

    Raises:
        NoDisplay: tkinter is missing, or there is no display.
    """

    def __init__(self, title: str, full: bool = False) -> None:
        try:
            tkinter: Any = importlib.import_module("tkinter")
        except ImportError as error:
            raise NoDisplay(
                f"no window: this Python has no {error.name}; install it (Debian: python3-tk)"
            ) from None
        try:
            self.root = tkinter.Tk()
        except tkinter.TclError as error:
            raise NoDisplay(f"no window: {error}") from None
        self.root.title(title)
        self.open = True
        self.root.protocol("WM_DELETE_WINDOW", self.stop)
        for key in ("<Escape>", "q"):
            self.root.bind(key, self.stop)
        if full:
            size = self.root.winfo_screenwidth(), self.root.winfo_screenheight()
            # Without a window manager the attribute below has no effect.
            self.root.geometry("{}x{}+0+0".format(*size))
            self.root.attributes("-fullscreen", True)
        self.canvas = tkinter.Canvas(self.root, background="black", highlightthickness=0)
        self.canvas.pack(fill="both", expand=True)
        self.text = tkinter.Label(self.root, anchor="w")
        if not full:
            self.text.pack(fill="x")
        self.shown = tkinter.PhotoImage(master=self.root)
        self.size: tuple[int, int] | None = None
        self.root.update()

    def stop(self, *_: Any) -> None:
        """Record that the person wants to end."""
        self.open = False

    def look_after(self) -> bool:
        """Handle pending events of the window; False if the person wants to end."""
        self.root.update()
        return self.open

    def show(self, picture: NDArray[np.uint8], text: str) -> bool:
        """Show a picture, uint8 `[H, W, 3]`, and a text; False if the person wants to end."""
        height, width = picture.shape[:2]
        if self.size != (width, height):
            self.size = width, height
            self.canvas.config(width=width, height=height)
            self.canvas.delete("all")
            self.canvas.create_image(0, 0, image=self.shown, anchor="nw")
        # Binary PPM is the one format without compression that tkinter reads from bytes.
        self.shown.configure(data=b"P6 %d %d 255 " % (width, height) + picture.tobytes())
        self.text.config(text=text)
        return self.look_after()

    def target(self, place: Sequence[float]) -> bool:
        """Show a dot at (x, y), shares of the window; False if the person wants to end."""
        x = place[0] * self.canvas.winfo_width()
        y = place[1] * self.canvas.winfo_height()
        self.canvas.delete("all")
        for radius, colour in ((DOT, "white"), (DOT / 4, "red")):
            box = (x - radius, y - radius, x + radius, y + radius)
            self.canvas.create_oval(*box, fill=colour, outline=colour)
        return self.look_after()

    def close(self) -> None:
        """Close the window."""
        self.root.destroy()
