// Nine dots: samples of one person, the correction computed from them, and its file.
import { SHARED, choose, corrected, fit, personInputs } from "./correction.js";
import { directionOf, gazeAt, mean, placeOf, pointOf } from "./screen.js";

// Of a dot, as in `vergence live --calibrate`.
const SETTLE_MS = 1000, LONGEST_MS = 10000, FRAMES = 5;

/**
 * Samples of a dot {unit, place, size} that is shown from now on. `look` returns {patches}, `clock`
 * gives milliseconds, `pause` waits for the next frame, and `ended` says whether to stop early.
 */
export async function samplesOfDot(look, answer, { unit, place, size }, { clock, pause, ended }) {
  const began = clock(), own = [];
  for (let frames = 0; frames < FRAMES && !ended();) {
    // A look may take a second, and its picture is from its begin: the eye may not be there yet.
    const time = clock() - began;
    if (time > SETTLE_MS + LONGEST_MS) break;
    const { patches } = await look();
    if (time >= SETTLE_MS && patches.length) {
      own.push(...await samplesOf(patches, answer, unit, place, size));
      frames += 1;
    }
    await pause();
  }
  return own;
}

/** Samples of one look at dot number `unit`, at a place in mm on a screen of this size. */
export async function samplesOf(patches, answer, unit, place, size) {
  const rows = [];
  for (const patch of patches) {
    const predicted = await answer(patch);
    if (!predicted.every(Number.isFinite)) throw new Error("the network answers no numbers");
    // In the precision of the file's reader, so that both compute the same.
    const pose = Array.from(patch.pose, Math.fround);
    const gaze = gazeAt(patch, placeOf(place, size)).map(Math.fround);
    const inputs = personInputs(patch.pixels, pose, patch.side);
    const distance = Math.hypot(...patch.centre);
    const { pixels, side } = patch;
    rows.push({ unit, predicted, gaze, pose, inputs, distance, pixels, side });
  }
  return rows;
}

/** The correction: {way, errors, numbers}. */
export function correctionOf(samples, run) {
  const { way, errors } = choose(samples, run.variances, run.wide, run.unsure);
  return { way, errors, numbers: fit(way, samples, run.variances) };
}

/** Error before and after in whole sentences, for people who know no statistics. */
export function inWords({ way, errors }, samples) {
  const before = errors[SHARED], after = errors[way];
  const distance = samples.reduce((sum, each) => sum + each.distance, 0) / samples.length;
  const wide = (distance / 10) * Math.tan((after * Math.PI) / 180);
  const there = `At your distance of ${(distance / 10).toFixed(0)} cm this is about ` +
    `${wide.toFixed(1)} cm on the screen.`;
  const what = "measured on dots that were left out when the correction was computed";
  if (way === SHARED) {
    return `The error is ${before.toFixed(1)} degrees. No correction is surely better for you, ` +
      `${what}, so there is none. ${there}`;
  }
  return `The error was ${before.toFixed(1)} degrees before the correction and is ` +
    `${after.toFixed(1)} degrees with it, ${what}. ${there}`;
}

/** Model and origin of the numbers of a run, in whole sentences. */
export function aboutRun(run) {
  const own = run.own_variances
    ? "The correction counts on how much the run's own people differ from the model."
    : "The run has not measured how much its own people differ from the model: the correction " +
      "counts on what was measured on other people.";
  return `Model: ${run.name}, fingerprint ${run.fingerprint.slice(0, 16)}, made by vergence ` +
    `${run.vergence}. ${own}`;
}

/** Where a person looks, in mm on the screen; null where no eye is seen or a ray misses it. */
export async function pointSeen(patches, answer, { numbers }, size) {
  if (!patches.length) return null;
  const directions = [];
  for (const patch of patches) {
    const inputs = personInputs(patch.pixels, patch.pose, patch.side);
    const gaze = corrected(numbers, await answer(patch), inputs);
    directions.push(directionOf(patch, gaze));
  }
  return pointOf(mean(patches.map((patch) => patch.centre)), mean(directions), size);
}

/** Text of the file that `vergence adapt --from` and `vergence live --correction` read. */
export function fileText(samples, { way, errors, numbers }, run) {
  const column = (name) => samples.map((each) => each[name]);
  let bytes = "";
  for (const each of samples) for (const level of each.pixels) bytes += String.fromCharCode(level);
  const { centres, ...own } = numbers; // the centres are the samples' own inputs
  return JSON.stringify({
    format: run.format,
    version: run.version,
    fingerprint: run.fingerprint,
    way,
    numbers: Object.keys(own).length ? own : null,
    errors,
    inputs: run.inputs,
    samples: {
      size: run.size,
      image: btoa(bytes),
      pose: column("pose"),
      gaze: column("gaze"),
      side: column("side"),
      target: column("unit"),
    },
  });
}
