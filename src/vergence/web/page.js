// The steps of the page: camera, nine dots, error, gaze on the screen, file.
import { read } from "./assets.js";
import {
  aboutRun, correctionOf, fileText, inWords, pointSeen, samplesOfDot,
} from "./calibration.js";
import { SHARED } from "./correction.js";
import { openEyes } from "./eyes.js";
import { openNetwork } from "./network.js";
import { NINE, guessedSize, windowPlace } from "./screen.js";

const STEADY = 0.3; // share of the newest point in the ring's place
const FIELDS = {
  width: "the width of your screen in mm",
  height: "its height in mm",
  distance: "the distance of your eyes from it in cm",
};
const at = (id) => document.getElementById(id);
const frame = () => new Promise(requestAnimationFrame);
let run, eyes, answer, samples = [], correction = null;
let activity = Promise.resolve(), ended = false;

function say(text, title) {
  at("status").textContent = text;
  document.title = `${title ?? text.split(/[.:]/)[0]}: your gaze`;
}

/** Ends what runs and starts another activity: two at once would share the camera's picture. */
async function switchTo(next) {
  ended = true;
  await activity;
  ended = false;
  activity = next().catch((error) => say(`This did not work: ${error.message}.`, "Error"));
  return activity;
}

function screenSize() {
  const missing = Object.keys(FIELDS).filter((name) => !at(name).checkValidity());
  if (missing.length) {
    at(missing[0]).focus();
    const parts = missing.map((name) =>
      `${FIELDS[name]}, a number from ${at(name).min} to ${at(name).max}`);
    throw new Error(`give ${parts.join("; ")}`);
  }
  return ["width", "height"].map((name) => at(name).valueAsNumber);
}

async function preview() {
  const canvas = at("preview"), context = canvas.getContext("2d");
  at("seen").hidden = false;
  while (!ended) {
    const { picture, patches, marks } = await eyes.look();
    if (!eyes.on()) break;
    [canvas.width, canvas.height] = [picture.width, picture.height];
    context.setTransform(-1, 0, 0, 1, canvas.width, 0); // as in a mirror
    context.drawImage(picture, 0, 0);
    context.strokeStyle = "#ffd166";
    context.lineWidth = Math.max(2, canvas.width / 320);
    for (const [x, y] of marks) {
      context.beginPath();
      context.arc(x, y, canvas.width / 100, 0, 2 * Math.PI);
      context.stroke();
    }
    const text = patches.length
      ? "Your eyes are seen."
      : "No eyes are seen: face the camera, with light on your face.";
    // Unchanged text is not set again, or a screen reader would repeat it.
    if (at("eyes").textContent !== text) at("eyes").textContent = text;
    at("dots").disabled = !patches.length;
    await frame();
  }
}

async function startCamera() {
  if (at("start").disabled) return; // a second click, made before the first one was answered
  screenSize();
  at("start").disabled = true; // a second camera would end the first one before it plays
  say("Waiting for your permission to use the camera.");
  await eyes.start().catch((error) => {
    at("start").disabled = false;
    throw error;
  });
  say("The camera is on. Its pictures stay in this page.", "Camera on");
  at("forget").disabled = false;
  switchTo(preview);
}

async function onStage(work) {
  const stage = at("stage"), opener = document.activeElement, main = document.querySelector("main");
  const leave = () => { ended = true; };
  const keys = (event) => event.key === "Escape" && leave();
  const changed = () => document.fullscreenElement || leave();
  stage.hidden = false;
  main.inert = true; // what is under the stage is not reached by the keyboard either
  // Where a browser has no full screen, the dots stand in its window.
  await stage.requestFullscreen?.().catch(() => {});
  await frame();
  stage.focus();
  document.addEventListener("keydown", keys);
  document.addEventListener("fullscreenchange", changed);
  at("end").addEventListener("click", leave);
  try {
    await work(windowPlace(screenSize(), window));
  } finally {
    document.removeEventListener("keydown", keys);
    document.removeEventListener("fullscreenchange", changed);
    at("end").removeEventListener("click", leave);
    if (document.fullscreenElement) await document.exitFullscreen();
    for (const id of ["stage", "dot", "ring"]) at(id).hidden = true;
    main.inert = false;
    opener?.focus();
  }
}

function move(element, x, y) {
  element.style.left = `${x}px`;
  element.style.top = `${y}px`;
  element.hidden = false;
}

async function oneDot(number, [scale, corner]) {
  const [x, y] = [NINE[number][0] * innerWidth, NINE[number][1] * innerHeight];
  const place = [corner[0] + x * scale[0], corner[1] + y * scale[1]];
  const dot = at("dot");
  dot.dataset.target = number;
  move(dot, x, y);
  at("progress").textContent = `Dot ${number + 1} of ${NINE.length}`;
  const target = { unit: number, place, size: screenSize() };
  const clock = () => performance.now();
  const own = await samplesOfDot(
    eyes.look, answer, target, { clock, pause: frame, ended: () => ended });
  if (!own.length && !ended) throw new Error(`no eye was seen at dot ${number + 1} of 9`);
  return own;
}

async function showDots() {
  const all = [];
  await onStage(async (place) => {
    at("progress").textContent = "Sit at the distance that you gave";
    await eyes.fitDistance(10 * at("distance").valueAsNumber, () => ended);
    for (let number = 0; number < NINE.length && !ended; number++) {
      all.push(...await oneDot(number, place));
    }
  });
  if (ended) return say("Ended before the last dot. Nothing of it is kept.");
  samples = all;
  correction = correctionOf(samples, run);
  showResult();
  for (const id of ["live", "download"]) at(id).disabled = false;
  say("Your correction is computed.");
}

function showResult() {
  at("result").textContent = inWords(correction, samples);
  const rows = Object.entries(correction.errors).map(([way, error]) => {
    const row = document.createElement("tr"), name = document.createElement("td");
    const value = document.createElement("td");
    name.textContent = way === SHARED ? `${way} (no correction)` : way;
    value.textContent = error.toFixed(2);
    row.append(name, value);
    if (way === correction.way) row.className = "chosen";
    return row;
  });
  at("ways").tBodies[0].replaceChildren(...rows);
  at("ways").hidden = false;
}

async function showGaze() {
  const size = screenSize();
  let ring = null, frames = 0;
  const began = performance.now();
  await onStage(async ([scale, corner]) => {
    at("progress").textContent = "The ring follows your gaze";
    while (!ended) {
      const { patches } = await eyes.look();
      const point = await pointSeen(patches, answer, correction, size);
      if (point) {
        const now = point.map((mm, axis) => (mm - corner[axis]) / scale[axis]);
        ring = ring ? ring.map((old, axis) => old + STEADY * (now[axis] - old)) : now;
        const [x, y] = [[ring[0], innerWidth], [ring[1], innerHeight]].map(([value, most]) =>
          Math.min(Math.max(value, 0), most));
        move(at("ring"), x, y);
      }
      frames += 1;
      await frame();
    }
  });
  const rate = frames / ((performance.now() - began) / 1000);
  at("speed").textContent = `This device has shown ${rate.toFixed(0)} frames a second.`;
}

function download() {
  const text = new Blob([fileText(samples, correction, run)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(text);
  link.download = "correction.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function forget() {
  eyes.stop(); // before all else, so that nothing that still runs takes another picture
  await switchTo(async () => {});
  eyes.stop(); // and what it drew last goes, too
  [samples, correction] = [[], null];
  at("preview").width = 0; // which also clears the last picture
  at("result").textContent = "This is known after the nine dots.";
  at("speed").textContent = "";
  at("ways").tBodies[0].replaceChildren();
  for (const id of ["seen", "ways"]) at(id).hidden = true;
  for (const id of ["dots", "live", "download", "forget"]) at(id).disabled = true;
  at("start").disabled = false;
  say("Everything is forgotten. The camera is off.");
}

function reported(work) {
  return () => Promise.resolve().then(work)
    .catch((error) => say(`This did not work: ${error.message}.`, "Error"));
}

async function load() {
  const [width, height] = guessedSize(screen, matchMedia("(pointer: coarse)").matches);
  [at("width").value, at("height").value] = [width, height];
  run = JSON.parse(new TextDecoder().decode(await read("run.json")));
  at("model").textContent = aboutRun(run);
  answer = await openNetwork(run.size);
  eyes = await openEyes(run.size);
  const again = async (work) => { await switchTo(work); if (eyes.on()) switchTo(preview); };
  at("start").addEventListener("click", reported(startCamera));
  at("dots").addEventListener("click", reported(() => again(showDots)));
  at("live").addEventListener("click", reported(() => again(showGaze)));
  at("download").addEventListener("click", reported(download));
  at("forget").addEventListener("click", reported(forget));
  at("start").disabled = false;
  say("Ready. From now on this page asks nothing of any server.");
}

reported(load)();
