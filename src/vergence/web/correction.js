// A person's correction of predicted gaze angles, as `vergence adapt` computes it in Python.
//
// Angles are [pitch, yaw] in radians. A sample is {predicted, gaze, inputs, unit}: what the network
// answers, where the person looked, `personInputs` of the picture, and the number of the dot, so
// that all pictures of one dot are left out together. Nothing here needs a library.
import { solve } from "./linear_algebra.js";

const WIDTH = 2.0; // of the kernel on one person's pictures, in Python WIDTH of kernel_head
const SIDE = 0.3; // difference of the inputs of a left and a right eye
const FAINT = 0.15; // added to the deviation of a picture, so that a flat one stays flat
const LEAST_NOISE = 3e-8; // radians squared
const SMALL = 10, FOLDS = 5, FEWEST = 2; // folds of cross-validation
export const SHARED = "shared model";
export const RESIDUAL = "residual kernel";

/**
 * Numbers of which the kernel measures the distance: the picture with brightness and contrast
 * removed, the head pose in radians, and the side of the eye (0 left, 1 right, null not known).
 */
export function personInputs(pixels, pose, side) {
  const scaled = Array.from(pixels, (value) => (value / 255 - 0.5) / 0.25);
  const mean = scaled.reduce((a, b) => a + b, 0) / scaled.length;
  const squares = scaled.reduce((a, b) => a + (b - mean) ** 2, 0);
  const deviation = Math.sqrt(squares / (scaled.length - 1)) + FAINT;
  const root = Math.sqrt(scaled.length);
  return [...scaled.map((v) => (v - mean) / deviation / root), ...pose, SIDE * (side ?? 0.5)];
}

/** What a correction is linear in: 1, the side (-1 to 1), head pitch and yaw, predicted angles. */
function linearTerms(predicted, inputs) {
  const [pitch, yaw, side] = inputs.slice(-3);
  return [1, (2 * side) / SIDE - 1, pitch, yaw, ...predicted];
}

function gaussian(a, b) {
  let square = 0;
  for (let i = 0; i < a.length; i++) square += (a[i] - b[i]) ** 2;
  return Math.exp(-WIDTH * square);
}

function means(samples, value) {
  const sums = [0, 0];
  for (const each of samples) value(each).forEach((v, axis) => (sums[axis] += v));
  return sums.map((sum) => sum / Math.max(samples.length, 1));
}

/** An offset and, with a finite slopePrior, a slope, both shrunk towards no change. */
function fitAffine(samples, { offsetPrior, slopePrior, ridge }) {
  const residual = ({ gaze, predicted }) => gaze.map((v, axis) => v - predicted[axis]);
  const count = samples.length;
  const centre = means(samples, (each) => each.predicted);
  const mean = means(samples, residual);
  const offset = mean.map((v) => (v * count) / Math.max(count + offsetPrior, 1));
  let slope = [[0, 0], [0, 0]];
  if (Number.isFinite(slopePrior)) {
    const penalty = slopePrior + ridge * Math.max(count, 1);
    const gram = [[penalty, 0], [0, penalty]], right = [[0, 0], [0, 0]];
    for (const each of samples) {
      const x = each.predicted.map((v, axis) => v - centre[axis]);
      const r = residual(each).map((v, axis) => v - mean[axis]);
      for (const i of [0, 1]) for (const j of [0, 1]) {
        gram[i][j] += x[i] * x[j];
        right[i][j] += x[i] * r[j];
      }
    }
    slope = solve(gram, right);
  }
  return { centre, offset, slope };
}

/** A Gaussian process on the residuals, with the variances of the run's own people. */
function fitKernel(samples, variances) {
  const terms = samples.map((each) => linearTerms(each.predicted, each.inputs));
  const likeness = samples.map((a) => samples.map((b) => gaussian(a.inputs, b.inputs)));
  const group = [0, 1, 2, 2, 3, 3]; // the variance of each linear term
  const weights = [0, 1].map((axis) => {
    const variance = variances.map((row) => row[axis]);
    const noise = Math.max(variance[5], LEAST_NOISE);
    const covariance = likeness.map((row, i) => row.map((value, j) => {
      let sum = variance[4] * value + (i === j ? noise : 0);
      for (let t = 0; t < 6; t++) sum += variance[group[t]] * terms[i][t] * terms[j][t];
      return sum;
    }));
    const residual = samples.map(({ gaze, predicted }) => [gaze[axis] - predicted[axis]]);
    return solve(covariance, residual).map(([value]) => value);
  });
  const linear = group.map((row, t) => [0, 1].map((axis) =>
    variances[row][axis] * terms.reduce((sum, each, i) => sum + each[t] * weights[axis][i], 0)));
  return {
    linear,
    centres: samples.map((each) => each.inputs),
    coefficients: samples.map((_, i) => [0, 1].map((axis) => variances[4][axis] * weights[axis][i])),
  };
}

/** The ways that a page can compute, the simplest first. */
export const WAYS = {
  "shrunk offset": (samples) =>
    fitAffine(samples, { offsetPrior: 3, slopePrior: Infinity, ridge: 0 }),
  "shrunk affine": (samples) => fitAffine(samples, { offsetPrior: 3, slopePrior: 0.4, ridge: 0 }),
  [RESIDUAL]: (samples, variances) => fitKernel(samples, variances),
};

/** Fits one way; without samples, and for the shared model, nothing is changed. */
export function fit(way, samples, variances) {
  return way === SHARED || !samples.length ? {} : WAYS[way](samples, variances);
}

/** Corrected angles of one sample. */
export function corrected(correction, predicted, inputs) {
  if (correction.offset) {
    const apart = predicted.map((v, axis) => v - correction.centre[axis]);
    return predicted.map((v, axis) => v + correction.offset[axis] +
      apart[0] * correction.slope[0][axis] + apart[1] * correction.slope[1][axis]);
  }
  if (!correction.linear) return [...predicted];
  const terms = linearTerms(predicted, inputs);
  const likeness = correction.centres.map((centre) => gaussian(inputs, centre));
  return predicted.map((v, axis) => v +
    terms.reduce((sum, term, t) => sum + term * correction.linear[t][axis], 0) +
    likeness.reduce((sum, k, i) => sum + k * correction.coefficients[i][axis], 0));
}

/** The angle between two directions of gaze, in degrees. */
export function errorDegrees(a, b) {
  const direction = ([pitch, yaw]) =>
    [-Math.cos(pitch) * Math.sin(yaw), -Math.sin(pitch), -Math.cos(pitch) * Math.cos(yaw)];
  const [p, q] = [direction(a), direction(b)];
  // By the chord: near zero the arc cosine would lose half of the digits.
  const chord = Math.hypot(p[0] - q[0], p[1] - q[1], p[2] - q[2]);
  return (2 * Math.asin(Math.min(chord / 2, 1)) * 180) / Math.PI;
}

/**
 * Chooses a way by cross-validation on the samples, and returns {way, errors}: degrees on samples
 * left out, by way. The residual kernel is kept unless another way is better by more than two
 * standard errors, and never a way that is worse than it. `wide[n - 1]` is Student's quantile of
 * these two standard errors at n degrees of freedom. `unsure` is the way for samples of one dot.
 */
export function choose(samples, variances, wide, unsure) {
  const numbers = [...new Set(samples.map((each) => each.unit))];
  const count = numbers.length;
  if (count < FEWEST) return { way: samples.length ? unsure : SHARED, errors: {} };
  const folds = count <= SMALL ? count : FOLDS;
  const unit = samples.map((each) => numbers.indexOf(each.unit));
  const fold = unit.map((number) => Math.floor((number * folds) / count));
  const ways = [RESIDUAL, SHARED, ...Object.keys(WAYS).filter((way) => way !== RESIDUAL)];
  const losses = {}, errors = {};
  for (const way of ways) {
    const sums = Array(count).fill(0), sizes = Array(count).fill(0);
    for (let out = 0; out < folds; out++) {
      const made = fit(way, samples.filter((_, i) => fold[i] !== out), variances);
      samples.forEach((each, i) => {
        if (fold[i] !== out) return;
        const angles = corrected(made, each.predicted, each.inputs);
        sums[unit[i]] += errorDegrees(angles, each.gaze);
        sizes[unit[i]] += 1;
      });
    }
    losses[way] = sums.map((sum, i) => sum / sizes[i]);
    errors[way] = losses[way].reduce((a, b) => a + b, 0) / count;
  }
  const good = ways.filter((way) => errors[way] <= errors[RESIDUAL]);
  const best = good.reduce((a, b) => (errors[b] < errors[a] ? b : a));
  const way = good.find((name) => {
    const apart = losses[name].map((loss, i) => loss - losses[best][i]);
    const mean = apart.reduce((a, b) => a + b, 0) / count;
    const square = apart.reduce((a, b) => a + ((b - mean) / count) ** 2, 0);
    const spread = Math.sqrt((square * count) / Math.max(count - 1, 1));
    return mean <= wide[Math.min(count - 1, wide.length) - 1] * spread;
  });
  return { way, errors };
}
