// The screen before the camera: millimetres, directions and angles, as `vergence live` has them.
//
// Camera frame: mm, x to the right and y down in its picture, z away from it. The camera is taken
// to be ABOVE_MM above the middle of the screen's upper edge, and to look straight out of it.

export const ABOVE_MM = 8; // in Python ABOVE_MM of live.calibration
const MARGIN = 0.1; // of the outer dots from the edges, as a share of the screen
const NARROW = 600; // pixels; a screen with a shorter side is a phone's

/** Nine places on the screen, as shares of its width and height, row by row. */
export const NINE = [MARGIN, 0.5, 1 - MARGIN].flatMap((y) =>
  [MARGIN, 0.5, 1 - MARGIN].map((x) => [x, y]));

/**
 * A size to begin with, in mm: tablets have about 160 dots an inch, a laptop is 344 mm wide. None
 * for narrow screens: those of phones differ too much.
 */
export function guessedSize(screen, coarse) {
  if (Math.min(screen.width, screen.height) < NARROW) return ["", ""];
  const width = coarse ? (screen.width * 25.4) / 160 : 344;
  return [Math.round(width), Math.round((width * screen.height) / screen.width)];
}

/**
 * Size and place of the window `view` on the screen, in mm: [mm a pixel], [mm of its corner].
 * `view` has the names of `window`.
 */
export function windowPlace([width, height], view) {
  const { screen, innerWidth, innerHeight } = view;
  if (view.document.fullscreenElement) {
    return [[width / innerWidth, height / innerHeight], [0, 0]];
  }
  const scale = [width / screen.width, height / screen.height];
  // Places count from the first of several screens, and docks and bars are no screen.
  const begin = (free, bars) => (free >= 0 && free <= bars ? 0 : free);
  const corner = [
    view.screenX - begin(screen.availLeft ?? 0, screen.width - screen.availWidth) +
      (view.outerWidth - innerWidth) / 2,
    view.screenY - begin(screen.availTop ?? 0, screen.height - screen.availHeight) +
      view.outerHeight - innerHeight,
  ];
  return [scale, corner.map((value, axis) => Math.max(value, 0) * scale[axis])];
}

/** A place on the screen (mm from its upper left corner) in the frame of the camera. */
export function placeOf([x, y], [width]) {
  return [width / 2 - x, y + ABOVE_MM, 0];
}

/** Pitch and yaw in radians with which a patch's eye looks at a place in the camera's frame. */
export function gazeAt({ rotation, centre, side }, place) {
  const away = place.map((value, i) => value - centre[i]);
  const [x, y, z] = rotation.map((row) => row.reduce((sum, r, i) => sum + r * away[i], 0));
  return [Math.atan2(-y, Math.hypot(x, z)), Math.atan2(-x, -z) * (side ? -1 : 1)];
}

/** The unit vector, in the camera's frame, of a gaze [pitch, yaw] of a patch. */
export function directionOf({ rotation, side }, [pitch, yaw]) {
  const turned = side ? -yaw : yaw, flat = Math.cos(pitch);
  const vector = [-flat * Math.sin(turned), -Math.sin(pitch), -flat * Math.cos(turned)];
  return [0, 1, 2].map((column) =>
    vector.reduce((sum, v, row) => sum + v * rotation[row][column], 0));
}

/** Where a ray meets the screen, in mm from its upper left corner; null where it does not. */
export function pointOf(origin, direction, [width]) {
  const steps = -origin[2] / direction[2];
  if (!Number.isFinite(steps) || steps <= 0) return null;
  const [x, y] = [0, 1].map((axis) => origin[axis] + steps * direction[axis]);
  return [width / 2 - x, y - ABOVE_MM];
}

/** The mean of several vectors. */
export function mean(vectors) {
  return vectors[0].map((_, i) => vectors.reduce((sum, v) => sum + v[i], 0) / vectors.length);
}
