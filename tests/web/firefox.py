"""Firefox, driven by WebDriver BiDi: Debian has no geckodriver, and playwright no Debian's Firefox.

Used by `tests.web.test_firefox`.
"""

import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = shutil.which("firefox-esr") or shutil.which("firefox")
# Files go to a folder without a question, and the browser asks nothing of its maker's servers.
SETTINGS = {
    "browser.download.folderList": 2,
    "browser.download.always_ask_before_handling_new_types": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "app.update.enabled": False,
}


class FirefoxPage:
    """A tab, and the addresses that it has asked for."""

    def __init__(self, socket, downloads: Path) -> None:
        self.socket, self.downloads = socket, downloads
        self.number, self.requests = 0, []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["network.beforeRequestSent"])
        self.tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **params):
        """Send a command, and return its result."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv(timeout=200))
            if answer.get("method") == "network.beforeRequestSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == self.number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def run_first(self, script: str) -> None:
        """Run a script before those of every page that is opened."""
        self.send("script.addPreloadScript", functionDeclaration=f"() => {{ {script} }}")

    def open(self, address: str) -> None:
        """Open a page."""
        self.send("browsingContext.navigate", context=self.tab, url=address, wait="complete")

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        size = {"width": width, "height": height}
        self.send("browsingContext.setViewport", context=self.tab, viewport=size)

    def evaluate(self, expression: str):
        """Return the value of an expression in the page, as after a click of the person."""
        answer = self.send(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self.tab},
            awaitPromise=True,
            userActivation=True,
        )
        assert answer["type"] == "success", answer
        text = answer["result"].get("value")
        return None if text is None else json.loads(text)

    def click(self, name: str) -> None:
        """Click on an element."""
        self.evaluate(f"document.getElementById('{name}').click()")

    def text(self, name: str) -> str:
        """Return the text of an element."""
        return self.evaluate(f"document.getElementById('{name}').textContent")

    def wait_for(self, expression: str, seconds: float = 200) -> None:
        """Wait until an expression is true; an error of the page ends the wait."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            title = self.evaluate("document.title")
            assert not title.startswith("Error"), self.text("status")
            assert time.monotonic() < end, (expression, title)
            time.sleep(0.1)


@contextmanager
def firefox_page(folder: Path):
    """Start a Firefox of its own without a window, and yield its tab; skip the test without one."""
    client = pytest.importorskip("websockets.sync.client", reason="extra `browser`")
    if PROGRAM is None:
        pytest.skip("no Firefox")
    profile, downloads = folder / "profile", folder / "downloads"
    profile.mkdir()
    downloads.mkdir()
    settings = {**SETTINGS, "browser.download.dir": str(downloads)}
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(v)});\n" for name, v in settings.items())
    (profile / "user.js").write_text("".join(lines))
    options = ("--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", profile)
    end, server = time.monotonic() + 60, profile / "WebDriverBiDiServer.json"
    with subprocess.Popen([PROGRAM, *options], stderr=subprocess.DEVNULL) as process:
        try:
            while not (server.is_file() and server.read_text()):
                assert time.monotonic() < end, "Firefox does not start"
                time.sleep(0.1)
            about = json.loads(server.read_text())
            address = f"ws://{about['ws_host']}:{about['ws_port']}/session"
            with client.connect(address, max_size=None) as socket:
                yield FirefoxPage(socket, downloads)
        finally:
            process.kill()
