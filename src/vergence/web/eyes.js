// The eyes that the camera sees: face landmarks, and patches for the network.
import { ort, read } from "./assets.js";
import { loadLandmarks } from "./landmarks.js";
import { eyePatches, focalOf } from "./normalization.js";

const FACE_NETWORKS = ["detection", "mesh", "iris"];
const CORNERS = [33, 133, 362, 263]; // of the eyes, in the mesh
const IRISES = [468, 473];
const WAIT_MS = 1000; // for a new picture; a camera that gives none is no longer there
const PICTURES = 5, LONGEST_MS = 10000; // of the distance
const FOCALS = [0.3, 3]; // of cameras that see 118 and 19 degrees across
const frame = () => new Promise(requestAnimationFrame);

/**
 * Loads the face networks. Returns {start, on, look, fitDistance, stop}: `start` asks for the
 * camera, `on` says whether it is there, `look` returns {picture, patches, marks} of a new picture, where `marks` are points in pixels,
 * `fitDistance` takes some pictures with eyes `distance` mm from the screen, from which the focal
 * length of the camera follows for all later ones, and `stop` switches the camera off and clears
 * its last picture.
 */
export async function openEyes(size) {
  const files = await Promise.all(FACE_NETWORKS.map(async (name) =>
    [name, await read(`face_${name}.onnx`)]));
  const find = await loadLandmarks(ort, Object.fromEntries(files));
  const video = document.createElement("video"), canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  video.muted = video.playsInline = true;
  let focal = 1, moment = null;

  function end() {
    for (const track of video.srcObject?.getTracks() ?? []) track.stop();
    video.srcObject = null;
  }

  /** The newest picture and its face, {data, face}; null if the camera gives no new one. */
  async function newest() {
    const began = performance.now();
    while (video.srcObject && video.currentTime === moment) {
      if (performance.now() - began > WAIT_MS) return null;
      await frame();
    }
    if (!video.srcObject) return null;
    moment = video.currentTime;
    // The picture of a turned phone has another shape.
    const { videoWidth: width, videoHeight: height } = video;
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    context.drawImage(video, 0, 0);
    const data = context.getImageData(0, 0, width, height);
    return { data, face: await find(data) };
  }

  return {
    async start() {
      if (!navigator.mediaDevices) {
        throw new Error("browsers give the camera only to pages of https:// or localhost, and to " +
          "files");
      }
      const wanted = { facingMode: "user", width: { ideal: 1280 }, height: { ideal: 720 } };
      try {
        const stream = await navigator.mediaDevices.getUserMedia({ video: wanted });
        end(); // a camera that another click has opened meanwhile
        video.srcObject = stream;
      } catch (error) {
        throw new Error(`the browser gives no camera (${error.message}); connect one, allow it ` +
          "for this page, and try again");
      }
      await video.play();
    },
    on() {
      return video.srcObject !== null;
    },
    async look() {
      const { data, face } = await newest() ?? {};
      const point = (i) => [face.points[2 * i], face.points[2 * i + 1]];
      return {
        picture: canvas,
        patches: face ? eyePatches(data, face.points, { size, focal }) : [],
        marks: face ? [...CORNERS, ...IRISES].map(point) : [],
      };
    },
    async fitDistance(distance, ended) {
      const focals = [], began = performance.now();
      while (focals.length < PICTURES && !ended()) {
        if (performance.now() - began > LONGEST_MS) {
          throw new Error("no eye was seen before the first dot");
        }
        const { data, face } = await newest() ?? {};
        const value = face && focalOf(face.points, data, distance);
        if (value) focals.push(value);
      }
      if (ended()) return;
      const median = focals.sort((a, b) => a - b)[Math.floor(focals.length / 2)];
      if (!(median >= FOCALS[0] && median <= FOCALS[1])) {
        const degrees = (2 * Math.atan(0.5 / median) * 180) / Math.PI;
        throw new Error(`with eyes ${distance / 10} cm from the screen, your camera would see ` +
          `${degrees.toFixed(0)} degrees across, and cameras see 50 to 90: measure the distance ` +
          "again");
      }
      focal = median;
    },
    stop() {
      [focal, moment] = [1, null];
      end();
      canvas.width = 0; // which clears the last picture
    },
  };
}
