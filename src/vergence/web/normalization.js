// Eye patches from landmarks, as `vergence.data.eye_images.normalization` cuts them in Python.
//
// The head's pose is fitted to seven landmarks. A virtual camera is turned to each eye, at a fixed
// distance, with its x axis parallel to the head's (Zhang, Sugano, Bulling, ETRA 2018). Camera
// frame: mm, x right, y down, z away from the camera. Nothing here needs a library.
import { solve } from "./linear_algebra.js";

// Places of a face's seven landmarks, mm in the head frame: eye corners from the image left to
// right, mouth corners, nose.
const FACE = [
  [-45.0, -32.4, 39.8], [-19.2, -31.0, 33.6], [19.2, -31.0, 33.6], [45.0, -32.4, 39.8],
  [-28.5, 33.3, 36.7], [28.5, 33.3, 36.7], [0.0, 0.0, 0.0],
];
const SEVEN = [33, 133, 362, 263, 61, 291, 1]; // these landmarks in the mesh
const CORNERS = [[2, 3], [0, 1]]; // of the left and of the right eye
const FOCAL = 960, DISTANCE = 600, WIDTH = 60, HEIGHT = 36; // of the virtual camera
const ROUNDS = 30; // steps in undoing the lens distortion
const STEPS = 200, DIFFERENCE = 1e-6; // of the fit of the pose
const FOCAL_STEPS = 20; // of the fit of the focal length

/**
 * Returns the patches of the left and of the right eye; [] where an eye is partly outside, or the
 * landmarks fit no head.
 *
 * `imageData` is {data, width, height}, RGBA. `points` are those of `loadLandmarks`, or the seven
 * landmarks alone (14 numbers). `size` is [height, width] of the patches; `camera` is {matrix,
 * size, distortion} as the file of `data patches --camera`. Without it the focal length is `focal`
 * times the longer side of the picture; 1, the default, is a guess.
 *
 * A patch is {pixels, pose, side, centre, rotation}: `pixels` a Uint8Array [height * width], grey
 * and equalised; `pose` [pitch, yaw] of the head in radians; `side` 0 left, 1 right, which is
 * mirrored and whose yaw is negated; `centre` of the eye in mm, and `rotation` (rows) from the
 * camera frame to the patch's.
 */
export function eyePatches(imageData, points, { size = [HEIGHT, WIDTH], camera, focal = 1 } = {}) {
  const { width, height } = imageData;
  const known = camera ? ofSize(camera, width, height) : guessed(width, height, focal);
  const head = headPose(landmarksOf(points), known);
  if (!head) return [];
  const eyes = CORNERS.map((pair, side) => turnedTo(head, pair, side));
  if (!eyes.every((eye) => inside(eye, known))) return [];
  const grey = greyOf(imageData);
  return eyes.map((eye) => {
    let pixels = equalised(cut(eye, grey, known));
    if (size[0] !== HEIGHT || size[1] !== WIDTH) pixels = equalised(resized(pixels, ...size));
    const { pose, side, centre, rotation } = eye;
    return { pixels, pose, side, centre, rotation };
  });
}

/**
 * The focal length with which the eyes of a face are `distance` mm before the camera, as a share of
 * the longer side of the picture {width, height}; null where the landmarks fit no head.
 */
export function focalOf(points, { width, height }, distance) {
  const landmarks = landmarksOf(points);
  let focal = 1;
  // Distances grow nearly as the focal length does, so few steps are enough.
  for (let step = 0; step < FOCAL_STEPS; step++) {
    const head = headPose(landmarks, guessed(width, height, focal));
    if (!head) return null;
    const depth = head.points.slice(0, 4).reduce((sum, place) => sum + place[2] / 4, 0);
    focal *= distance / depth;
    if (Math.abs(distance / depth - 1) < 1e-6) break;
  }
  return focal;
}

function landmarksOf(points) {
  const numbers = points.length === 14 ? [...Array(7).keys()] : SEVEN;
  return numbers.map((i) => [points[2 * i], points[2 * i + 1]]);
}

/** The head's pose whose projected model is nearest to seven landmarks: {rotation, translation}. */
export function headPose(landmarks, camera) {
  if (!landmarks.flat().every(Number.isFinite)) return null;
  const seen = landmarks.map((place) => ray(place, camera));
  const mean = (rows) => scaled(rows.reduce(plus), 1 / rows.length);
  const [right, left] = [mean(seen.slice(0, 2)), mean(seen.slice(2, 4))];
  const across = left.map((value, i) => value - right[i]), apart = norm(across);
  if (apart < 1e-6) return null;
  const start = rotationOf([0, 0, Math.atan2(across[1], across[0])]);
  const [modelRight, modelLeft] = [mean(FACE.slice(0, 2)), mean(FACE.slice(2, 4))];
  const depth = norm(modelLeft.map((value, i) => value - modelRight[i])) / apart;
  const middle = apply(start, mean(FACE.slice(0, 4)));
  // Translations count in units of the depth, so that all six numbers are of similar size.
  const there = left.map((value, i) => (value + right[i]) / 2 - middle[i] / depth);
  const first = fitPose(start, there, depth, seen);
  // A face tilted to the other side of the line of sight looks nearly the same: try both.
  const far = norm(first.there);
  const sight = rotationOf(first.there.map((value) => (Math.PI * value) / far));
  const other = multiplied(multiplied(sight, first.rotation), rotationOf([0, 0, Math.PI]));
  const second = fitPose(other, first.there, depth, seen);
  const best = second.cost < first.cost ? second : first;
  const translation = best.there.map((value) => depth * value);
  const points = FACE.map((place) => plus(apply(best.rotation, place), translation));
  if (!points.every((place) => place[2] > 0)) return null;
  return { rotation: best.rotation, translation, points };
}

/** Levenberg-Marquardt on the six numbers of a pose; rotations are updated by small ones. */
function fitPose(rotation, there, depth, seen) {
  const moved = (pose, step) => ({
    rotation: multiplied(pose.rotation, rotationOf(step.slice(0, 3))),
    there: plus(pose.there, step.slice(3)),
  });
  const misses = (pose) => FACE.flatMap((place, i) => {
    const [x, y, z] = plus(apply(pose.rotation, place), pose.there.map((value) => depth * value));
    return [x / z - seen[i][0], y / z - seen[i][1]];
  });
  const costOf = (values) => values.reduce((sum, value) => sum + value * value, 0);
  let pose = { rotation, there }, now = misses(pose), cost = costOf(now), damping = 1e-3;
  for (let step = 0; step < STEPS && damping < 1e12; step++) {
    const columns = [...Array(6).keys()].map((j) => {
      const unit = (by) => [0, 0, 0, 0, 0, 0].map((zero, k) => (k === j ? by : zero));
      const nudge = (by) => misses(moved(pose, unit(by)));
      const [up, down] = [nudge(DIFFERENCE), nudge(-DIFFERENCE)];
      return up.map((value, i) => (value - down[i]) / (2 * DIFFERENCE));
    });
    const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
    const normal = columns.map((a, i) =>
      columns.map((b, j) => dot(a, b) * (i === j ? 1 + damping : 1)));
    const change = solve(normal, columns.map((column) => [-dot(column, now)])).flat();
    const next = moved(pose, change), values = misses(next), lower = costOf(values);
    if (lower <= cost) {
      [pose, now, cost, damping] = [next, values, lower, damping / 10];
      if (norm(change) < 1e-12) break;
    } else {
      // Near the minimum, a step that raises the cost only by rounding ends the search.
      if (norm(change) < 1e-10) break;
      damping *= 10;
    }
  }
  return { ...pose, cost };
}

/** The virtual camera that looks at the middle of an eye's corners. */
function turnedTo(head, [one, two], side) {
  const centre = head.points[one].map((value, i) => (value + head.points[two][i]) / 2);
  const z = scaled(centre, 1 / norm(centre));
  const down = cross(z, head.rotation.map((row) => row[0]));
  const y = scaled(down, 1 / norm(down));
  const rotation = [cross(y, z), y, z];
  const facing = apply(rotation, head.rotation.map((row) => -row[2]));
  const yaw = Math.atan2(-facing[0], -facing[2]);
  const pose = [Math.atan2(-facing[1], Math.hypot(facing[0], facing[2])), side ? -yaw : yaw];
  return { centre, rotation, pose, side };
}

/** The pixel of the picture that is seen at pixel (x, y) of an eye's patch. */
function sources(eye, camera) {
  const view = [[FOCAL, 0, (WIDTH - 1) / 2], [0, FOCAL, (HEIGHT - 1) / 2], [0, 0, 1]];
  const scale = [[1, 0, 0], [0, 1, 0], [0, 0, DISTANCE / norm(eye.centre)]];
  const flip = [[eye.side ? -1 : 1, 0, eye.side ? WIDTH - 1 : 0], [0, 1, 0], [0, 0, 1]];
  const back = inverse(multiplied(multiplied(multiplied(flip, view), scale), eye.rotation));
  return (x, y) => projected(apply(back, [x, y, 1]), camera);
}

function inside(eye, camera) {
  const source = sources(eye, camera), [width, height] = camera.size;
  // Half a pixel beyond the centres are the outer edges of the patch.
  return [-0.5, WIDTH - 0.5].every((x) => [-0.5, HEIGHT - 0.5].every((y) => {
    const [u, v] = source(x, y);
    return u >= -0.5 && v >= -0.5 && u <= width - 0.5 && v <= height - 0.5;
  }));
}

/** The grey patch: linear between pixels, and the mean of several where the face is near. */
function cut(eye, { data, width, height }, camera) {
  const source = sources(eye, camera);
  const [first, last] = [source(0, 0), source(WIDTH - 1, 0)];
  const density = Math.hypot(last[0] - first[0], last[1] - first[1]) / (WIDTH - 1);
  const times = Math.max(1, Math.ceil(density));
  const pixel = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? 0 : data[y * width + x]);
  const out = new Uint8Array(HEIGHT * WIDTH);
  for (let row = 0; row < HEIGHT; row++) {
    for (let column = 0; column < WIDTH; column++) {
      let sum = 0;
      for (let i = 0; i < times * times; i++) {
        const [right, down] = [i % times, Math.floor(i / times)];
        const [x, y] = source(
          column + (right + 0.5) / times - 0.5, row + (down + 0.5) / times - 0.5);
        const u = Math.floor(x), v = Math.floor(y), dx = x - u, dy = y - v;
        // Python computes in float32 here; a value just below one half would round otherwise.
        sum += Math.fround((1 - dy) * ((1 - dx) * pixel(u, v) + dx * pixel(u + 1, v))
          + dy * ((1 - dx) * pixel(u, v + 1) + dx * pixel(u + 1, v + 1)));
      }
      out[row * WIDTH + column] = halfToEven(Math.fround(sum / (times * times)));
    }
  }
  return out;
}

function greyOf({ data, width, height }) {
  const grey = new Uint8Array(width * height);
  for (let i = 0; i < grey.length; i++) {
    // Pillow's weights of ITU-R 601-2, in whole numbers.
    const [red, green, blue] = [data[4 * i], data[4 * i + 1], data[4 * i + 2]];
    grey[i] = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16;
  }
  return { data: grey, width, height };
}

/** Histogram equalisation over 256 bins, as MPIIGaze stores patches. */
export function equalised(patch) {
  const below = new Array(256).fill(0);
  for (const value of patch) below[value] += 1;
  for (let i = 1; i < 256; i++) below[i] += below[i - 1];
  const darkest = below.find((count) => count > 0);
  const scale = 255 / Math.max(patch.length - darkest, 1);
  const table = below.map((count) => Math.max(0, halfToEven((count - darkest) * scale)));
  return patch.map((value) => Math.min(255, table[value]));
}

/** A patch of another size, as Pillow's bilinear filter makes it: rows first, then columns. */
function resized(patch, height, width) {
  const narrow = filtered(patch, HEIGHT, [WIDTH, width], [WIDTH, 1], [width, 1]);
  return filtered(narrow, width, [HEIGHT, height], [1, width], [1, width]);
}

/**
 * One pass along `lines` lines, from `length` to `out` pixels each. Lines of the data are `line`
 * apart and their pixels `step`; those of the result `toLine` and `toStep`.
 */
function filtered(data, lines, [length, out], [line, step], [toLine, toStep]) {
  const scale = length / out, support = Math.max(scale, 1), bits = 2 ** 22;
  const result = new Uint8Array(lines * out);
  for (let at = 0; at < out; at++) {
    const centre = (at + 0.5) * scale;
    const low = Math.max(0, Math.trunc(centre - support + 0.5));
    const high = Math.min(length, Math.trunc(centre + support + 0.5));
    let weights = [];
    for (let i = low; i < high; i++) {
      weights.push(Math.max(0, 1 - Math.abs((i - centre + 0.5) / support)));
    }
    const total = weights.reduce((sum, value) => sum + value, 0);
    weights = weights.map((value) => Math.trunc(0.5 + (value / total) * bits));
    for (let i = 0; i < lines; i++) {
      const value = (j) => data[i * line + (low + j) * step];
      const sum = weights.reduce((before, weight, j) => before + weight * value(j), bits / 2);
      result[i * toLine + at * toStep] = Math.max(0, Math.min(255, Math.floor(sum / bits)));
    }
  }
  return result;
}

function guessed(width, height, focal) {
  const pixels = focal * Math.max(width, height);
  return { matrix: [[pixels, 0, (width - 1) / 2], [0, pixels, (height - 1) / 2], [0, 0, 1]],
    size: [width, height] };
}

function ofSize({ matrix, size, distortion }, width, height) {
  const scale = width / size[0], shift = (scale - 1) / 2;
  if (Math.abs(size[1] * scale - height) > 1) {
    throw new Error(`the camera was calibrated for ${size.join(" x ")} pixels, a picture has ` +
      `${width} x ${height}: give pictures of that shape, or calibrate for these`);
  }
  const resize = [[scale, 0, shift], [0, scale, shift], [0, 0, 1]];
  return { matrix: multiplied(resize, matrix), size: [width, height], distortion };
}

function projected([x, y, z], { matrix, distortion }) {
  const [u, v] = distorted([x / z, y / z], distortion);
  return matrix.slice(0, 2).map((row) => row[0] * u + row[1] * v + row[2]);
}

function ray([u, v], { matrix, distortion }) {
  const y = (v - matrix[1][2]) / matrix[1][1];
  const seen = [(u - matrix[0][2] - matrix[0][1] * y) / matrix[0][0], y];
  let plane = seen;
  // Distortion has no closed inverse: subtract the error of the last guess again and again.
  for (let i = 0; distortion && i < ROUNDS; i++) {
    const bent = distorted(plane, distortion);
    plane = plane.map((value, axis) => value + seen[axis] - bent[axis]);
  }
  return [...plane, 1];
}

function distorted([x, y], distortion) {
  if (!distortion) return [x, y];
  const [k1, k2, p1, p2, k3] = distortion, square = x * x + y * y;
  const radial = 1 + square * (k1 + square * (k2 + square * k3));
  return [x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x),
    y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y];
}

function halfToEven(value) {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/** The rotation about a vector by its length in radians. */
function rotationOf(vector) {
  const angle = norm(vector);
  const [a, b] = angle < 1e-9 ? [1, 0.5]
    : [Math.sin(angle) / angle, (1 - Math.cos(angle)) / (angle * angle)];
  const [x, y, z] = vector;
  const skew = [[0, -z, y], [z, 0, -x], [-y, x, 0]], twice = multiplied(skew, skew);
  return skew.map((row, i) =>
    row.map((value, j) => (i === j ? 1 : 0) + a * value + b * twice[i][j]));
}

const inverse = (matrix) => solve(matrix, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]);

const norm = (vector) => Math.hypot(...vector);
const plus = (a, b) => a.map((value, i) => value + b[i]);
const scaled = (vector, factor) => vector.map((value) => value * factor);
const apply = (matrix, v) => matrix.map((row) => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]);
const multiplied = (a, b) => a.map((row) =>
  b[0].map((_, j) => row.reduce((sum, value, i) => sum + value * b[i][j], 0)));
const cross = (a, b) => [
  a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0],
];
