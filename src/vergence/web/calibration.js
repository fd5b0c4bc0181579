// Nine dots: samples of one person, the correction computed from them, and its file.
import { SHARED, choose, corrected, fit, personInputs } from "./correction.js";
import { directionOf, gazeAt, mean, placeOf, pointOf } from "./screen.js";

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
