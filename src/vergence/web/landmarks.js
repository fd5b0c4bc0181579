// Landmarks of one face in a picture: face detection, face mesh and iris network, in ONNX.
//
// As `vergence.data.eye_images.landmarks` finds them in Python, with the same squares, averages and
// roundings of pixels. Needs no library but onnxruntime-web, which the page passes in.

const DETECTION = 128, MESH = 192, IRIS = 64; // sides of the networks' inputs, pixels
const FACE_MARGIN = 1.5, EYE_MARGIN = 2.3; // side of a square: times the face, times the eye
const LEAST_SCORE = 0.5, LEAST_OVERLAP = 0.3;
const POINTS = 468, OUTLINE_CORNERS = [0, 8];
// Outer and inner corner of each eye in the mesh, and whether the iris network sees it mirrored.
const EYES = [[33, 133, false], [263, 362, true]];

/**
 * Opens the three networks, and returns an async function from a picture to one face's points.
 *
 * `ort` is the module of onnxruntime-web. `sources` is {detection, mesh, iris}, each a URL, an
 * ArrayBuffer or a Uint8Array of an ONNX file, as `face_networks()` returns them in Python. The
 * picture is {data, width, height}, RGBA, as a canvas gives it. The result is null without a face,
 * else {points, score}: `points` is x0, y0, x1, y1, ... of 478 points in pixels, where the middle
 * of the first pixel is (0, 0): 468 of the mesh, five of the iris of the person's right eye, centre
 * first, and five of the left one; `score` is the probability of a face.
 */
export async function loadLandmarks(ort, sources) {
  const open = async (source) => {
    const session = await ort.InferenceSession.create(source);
    return async (pixels, side) => {
      const image = new ort.Tensor("float32", pixels, [1, side, side, 3]);
      const answer = await session.run({ [session.inputNames[0]]: image });
      return session.outputNames.map((name) => answer[name].data);
    };
  };
  const [detect, mesh, iris] = [
    await open(sources.detection), await open(sources.mesh), await open(sources.iris),
  ];

  async function meshPoints(small, square) {
    const [points, score] = await mesh(pixels(small, square, MESH, 255, 0), MESH);
    const places = [];
    for (let i = 0; i < POINTS; i++) {
      places.push(inPicture(square, [points[3 * i], points[3 * i + 1]]));
    }
    return { places, score: sigmoid(score[0]) };
  }

  return async (picture) => {
    const small = reducer(picture);
    const whole = squareOf([picture.width / 2, picture.height / 2], longer(picture), 0, DETECTION);
    const input = pixels(small, whole, DETECTION, 127.5, -1);
    const first = mostProbable(...(await detect(input, DETECTION)));
    if (!first) return null;
    const side = (FACE_MARGIN * first.size * longer(picture)) / DETECTION;
    let face = await meshPoints(
      small, squareOf(inPicture(whole, first.middle), side, first.turn, MESH));
    if (face.score < LEAST_SCORE) return null;
    // The box of the detector moves from picture to picture by more than the mesh's points, so
    // these give the square for a second run.
    face = await meshPoints(small, around(face.places));
    if (face.score < LEAST_SCORE) return null;
    const points = face.places, irises = [];
    for (const [outer, inner, mirrored] of EYES) {
      const sign = mirrored ? -1 : 1;
      const across = [0, 1].map((axis) => sign * (points[inner][axis] - points[outer][axis]));
      const middle = [0, 1].map((axis) => (points[inner][axis] + points[outer][axis]) / 2);
      const wide = EYE_MARGIN * Math.hypot(...across), turn = Math.atan2(across[1], across[0]);
      const square = squareOf(middle, wide, turn, IRIS, mirrored);
      const [outline, centre] = await iris(pixels(small, square, IRIS, 255, 0), IRIS);
      const place = (values, i) => inPicture(square, [values[3 * i], values[3 * i + 1]]);
      [points[outer], points[inner]] = OUTLINE_CORNERS.map((i) => place(outline, i));
      for (let i = 0; i < 5; i++) irises.push(place(centre, i));
    }
    // The networks count from the corner of the picture, cameras from the middle of a pixel.
    const flat = [...points, ...irises].flat().map((value) => value - 0.5);
    return { points: Float64Array.from(flat), score: face.score };
  };
}

/** The most probable face, an average of its boxes: middle, longer side and turn; null: no face. */
function mostProbable(boxes, logits) {
  const scores = Array.from(logits, sigmoid);
  const best = scores.indexOf(Math.max(...scores));
  if (scores[best] < LEAST_SCORE) return null;
  const corners = scores.map((_, i) => {
    const [x, y] = anchor(i), middle = [boxes[16 * i] + x, boxes[16 * i + 1] + y];
    const half = [boxes[16 * i + 2] / 2, boxes[16 * i + 3] / 2];
    return { low: [middle[0] - half[0], middle[1] - half[1]],
      high: [middle[0] + half[0], middle[1] + half[1]] };
  });
  const area = ({ low, high }) => (high[0] - low[0]) * (high[1] - low[1]);
  let total = 0;
  const sum = new Array(8).fill(0);
  scores.forEach((score, i) => {
    const [a, b] = [corners[i], corners[best]];
    const [wide, high] = [0, 1].map((axis) =>
      Math.max(0, Math.min(a.high[axis], b.high[axis]) - Math.max(a.low[axis], b.low[axis])));
    const both = wide * high;
    if (score < LEAST_SCORE || both / (area(a) + area(b) - both) <= LEAST_OVERLAP) return;
    total += score;
    // Middle, width and height of the box, then its first two keypoints, which are the eyes.
    for (let j = 0; j < 8; j++) {
      const origin = j === 2 || j === 3 ? 0 : anchor(i)[j % 2];
      sum[j] += score * (boxes[16 * i + j] + origin);
    }
  });
  const [x, y, width, height, rightX, rightY, leftX, leftY] = sum.map((value) => value / total);
  return { middle: [x, y], size: Math.max(width, height),
    turn: Math.atan2(leftY - rightY, leftX - rightX) };
}

/** Middle of one of the detector's 896 boxes: two per cell of 16 x 16, six per cell of 8 x 8. */
function anchor(i) {
  const [cells, cell] = i < 512 ? [16, Math.floor(i / 2)] : [8, Math.floor((i - 512) / 6)];
  const size = DETECTION / cells;
  return [((cell % cells) + 0.5) * size, (Math.floor(cell / cells) + 0.5) * size];
}

/**
 * The affine map from a network's input to a square of a picture, [[a, b, c], [d, e, f]].
 *
 * Both count pixels from the corner. The square has this middle and side, and is turned by `turn`
 * radians; the input has `size` pixels.
 */
function squareOf(middle, side, turn, size, mirrored = false) {
  const scale = side / size, flip = mirrored ? -1 : 1;
  const [cosine, sine] = [scale * Math.cos(turn), scale * Math.sin(turn)];
  const [x, y] = [[flip * cosine, -sine], [flip * sine, cosine]];
  return [x, y].map((row, i) => [...row, middle[i] - ((row[0] + row[1]) * size) / 2]);
}

/** The square around a face's mesh for the mesh network, turned as the eyes are. */
function around(points) {
  const [right, left] = [points[EYES[0][0]], points[EYES[1][0]]];
  const turn = Math.atan2(left[1] - right[1], left[0] - right[0]);
  const [cosine, sine] = [Math.cos(turn), Math.sin(turn)];
  const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const [x, y] of points) {
    [cosine * x + sine * y, cosine * y - sine * x].forEach((value, axis) => {
      low[axis] = Math.min(low[axis], value);
      high[axis] = Math.max(high[axis], value);
    });
  }
  const [x, y] = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
  const side = FACE_MARGIN * Math.max(high[0] - low[0], high[1] - low[1]);
  return squareOf([cosine * x - sine * y, sine * x + cosine * y], side, turn, MESH);
}

function inPicture([first, second], [x, y]) {
  return [first[0] * x + first[1] * y + first[2], second[0] * x + second[1] * y + second[2]];
}

/**
 * The square's pixels for a network, [side, side, 3], divided by `scale` and moved by `shift`.
 *
 * They are black beyond the picture. Values between pixels are linear, and rounded down as Pillow
 * does.
 */
function pixels(small, square, side, scale, shift) {
  // Whole numbers of pixels are averaged first: without it, large faces would be aliased.
  const times = Math.max(1, Math.floor(Math.hypot(square[0][0], square[1][0])));
  const { data, width, height } = small(times);
  const map = square.map((row) => row.map((value) => value / times));
  const out = new Float32Array(side * side * 3);
  let at = 0;
  for (let v = 0; v < side; v++) {
    for (let u = 0; u < side; u++, at += 3) {
      let [x, y] = inPicture(map, [u + 0.5, v + 0.5]);
      const inside = x >= 0 && x < width && y >= 0 && y < height;
      x -= 0.5;
      y -= 0.5;
      const left = Math.floor(x), top = Math.floor(y), dx = x - left, dy = y - top;
      const [x0, x1] = [Math.max(0, left), Math.min(width - 1, left + 1)];
      const [y0, y1] = [Math.max(0, top), Math.min(height - 1, top + 1)];
      const places = [y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1];
      for (let colour = 0; colour < 3; colour++) {
        let value = 0;
        if (inside) {
          const [a, b, c, d] = places.map((place) => data[4 * place + colour]);
          const upper = a + (b - a) * dx, lower = c + (d - c) * dx;
          value = Math.floor(upper + (lower - upper) * dy);
        }
        out[at + colour] = Math.fround(value / scale) + shift;
      }
    }
  }
  return out;
}

/** A function from a whole number n to the picture with n x n pixels averaged, made once. */
function reducer({ data, width, height }) {
  const sizes = new Map([[1, { data, width, height }]]);
  return (times) => {
    if (!sizes.has(times)) sizes.set(times, averages(data, width, height, times));
    return sizes.get(times);
  };
}

function averages(data, width, height, times) {
  const [wide, high] = [Math.ceil(width / times), Math.ceil(height / times)];
  const out = new Uint8Array(wide * high * 4);
  for (let row = 0; row < high; row++) {
    const last = Math.min(height, (row + 1) * times);
    for (let column = 0; column < wide; column++) {
      const end = Math.min(width, (column + 1) * times);
      const sum = [0, 0, 0];
      for (let y = row * times; y < last; y++) {
        for (let at = 4 * (y * width + column * times); at < 4 * (y * width + end); at += 4) {
          for (let colour = 0; colour < 3; colour++) sum[colour] += data[at + colour];
        }
      }
      // Pillow's division by a multiplication, so that every rounding is the same.
      const count = (last - row * times) * (end - column * times);
      const share = Math.floor(2 ** 24 / count);
      sum.forEach((value, colour) => {
        const rounded = Math.floor(((value + Math.floor(count / 2)) * share) / 2 ** 24);
        out[4 * (row * wide + column) + colour] = rounded;
      });
    }
  }
  return { data: out, width: wide, height: high };
}

const longer = ({ width, height }) => Math.max(width, height);
const sigmoid = (value) => 1 / (1 + Math.exp(-Math.max(-100, Math.min(100, value))));
