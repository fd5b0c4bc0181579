// In place of eyes.js in tests: patches that a test puts in, near to what the dot asks for.
import { NINE, gazeAt, placeOf } from "./screen.js";

const UPRIGHT = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
const SCREEN = [344, 194];
const rows = ROWS;

export async function openEyes() {
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [640, 480];
  const context = picture.getContext("2d");
  let turn = 0, camera = false;
  return {
    async start() {
      camera = true;
      context.fillStyle = "#8a7a6d";
      context.fillRect(0, 0, 640, 480);
    },
    on() {
      return camera;
    },
    async look() {
      const share = NINE[document.getElementById("dot").dataset.target ?? 4];
      const place = placeOf(share.map((value, axis) => value * SCREEN[axis]), SCREEN);
      turn += 1;
      const patches = [0, 1].map((side) => {
        const eye = { side, centre: [side ? -30 : 30, 0, 600], rotation: UPRIGHT };
        const wanted = gazeAt(eye, place);
        const away = ({ gaze }) => Math.hypot(gaze[0] - wanted[0], gaze[1] - wanted[1]);
        const near = rows.filter((row) => row.side === side).sort((a, b) => away(a) - away(b));
        const { pixels, pose } = near[turn % 5];
        return { ...eye, pixels: Uint8Array.from(pixels), pose };
      });
      return { picture, patches, marks: [[240, 220], [400, 220]] };
    },
    async fitDistance() {},
    stop() {
      camera = false;
    },
  };
}
