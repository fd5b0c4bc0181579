"""The page of `vergence web` in Firefox, before a face: what is computed is Python's.

Firefox has no camera that plays a file: a canvas with a portrait takes the camera's place.
"""

import base64
import io
import json
import time

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import vergence
from tests.data.face_networks import PORTRAIT, installed_networks
from tests.web.firefox import firefox_page
from tests.web.test_page import (
    camera_site,
    folder_of,
    needs_runtime,
    serving,
    trained,
)
from vergence.data.eye_images.landmarks import FaceMesh
from vergence.data.io.generated_cache import cache_folder

__all__ = ["camera_site", "trained"]
MARKS = (33, 133, 362, 263, 468, 473)
"""Points of the mesh that the page draws: corners of the eyes, and irises."""
CAMERA = """
navigator.mediaDevices.getUserMedia = async () => {
  const portrait = new Image(), canvas = document.createElement("canvas");
  portrait.src = "PORTRAIT";
  await portrait.decode();
  [canvas.width, canvas.height] = [640, 480];
  const context = canvas.getContext("2d");
  let turn = 0;
  const draw = () => {
    turn += 1;
    context.fillStyle = "grey";
    context.fillRect(0, 0, 640, 480);
    context.drawImage(portrait, 80 + Math.round(20 * Math.sin(turn / 5)), 0, 480, 480);
  };
  draw();
  setInterval(draw, 33);
  return canvas.captureStream();
};
// The picture that the page looked at last, and where it has drawn the marks of the eyes since.
const drawing = CanvasRenderingContext2D.prototype;
const { arc, getImageData } = drawing;
drawing.getImageData = function (...place) {
  const picture = getImageData.apply(this, place);
  if (picture.width === 640) [window.seen, window.marks] = [picture, []];
  return picture;
};
drawing.arc = function (x, y, ...rest) {
  window.marks.push([x, y]);
  if (window.marks.length === 6) window.pair = [window.seen, window.marks];
  return arc.call(this, x, y, ...rest);
};
"""
PAIR = """
(() => {
  const [picture, marks] = window.pair;
  let text = "";
  for (const level of picture.data) text += String.fromCharCode(level);
  return [btoa(text), marks];
})()
"""
AHEAD = "document.title.startsWith('{}')"


@pytest.mark.slow
@needs_runtime
def test_a_face_before_firefox_gives_python_s_landmarks_and_correction(
    trained, camera_site, tmp_path
):
    jpeg = io.BytesIO()
    Image.open(PORTRAIT).convert("RGB").save(jpeg, "JPEG", quality=95)
    portrait = f"data:image/jpeg;base64,{base64.b64encode(jpeg.getvalue()).decode()}"
    with serving(folder_of(camera_site)) as address, firefox_page(tmp_path) as page:
        page.run_first(CAMERA.replace("PORTRAIT", portrait))
        page.resize(1280, 800)
        page.open(address)
        page.wait_for(AHEAD.format("Ready"))
        page.requests.clear()
        for name, value in (("width", 344), ("height", 194), ("distance", 80)):
            page.evaluate(f"void (document.getElementById('{name}').value = {value})")
        page.click("start")
        page.wait_for("!document.getElementById('dots').disabled")
        pixels, marks = page.evaluate(PAIR)
        page.click("dots")
        page.wait_for(AHEAD.format("Your correction is computed"))
        words = page.text("result")
        page.click("download")
        page.click("live")
        page.wait_for("!document.getElementById('ring').hidden")
        time.sleep(2)
        page.click("end")
        page.wait_for("document.getElementById('speed').textContent")
        speed = page.text("speed")
        assert [url for url in page.requests if not url.startswith(("blob:", "data:"))] == []
        (file,) = page.downloads.glob("*.json")
        page.resize(390, 844)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(480, 640, 4)[:, :, :3]
    points = FaceMesh(installed_networks(cache_folder())).points(np.ascontiguousarray(picture))
    # Half a pixel is promised; runtimes and processors differ in the last digits only.
    assert np.abs(np.array(marks) - points[list(MARKS)]).max() < 0.05
    assert "frames a second" in speed
    content = json.loads(file.read_text())
    for way in ("shared model", content["way"]):
        assert f"{content['errors'][way]:.1f} degrees" in words
    assert set(content["samples"]["target"]) == set(range(9))
    said = vergence("adapt", trained, "--from", file, "--out", tmp_path / "me")
    assert said.code == 0, said.err
    about = json.loads((tmp_path / "me" / "provenance.json").read_text())["adapted"]
    assert about["errors"] == pytest.approx(content["errors"], abs=1e-4)
