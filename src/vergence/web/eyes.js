// The eyes that the camera sees: face landmarks, and patches for the network.
import { ort, read } from "./assets.js";
import { loadLandmarks } from "./landmarks.js";
import { eyePatches } from "./normalization.js";

const FACE_NETWORKS = ["detection", "mesh", "iris"];
const CORNERS = [33, 133, 362, 263]; // of the eyes, in the mesh
const IRISES = [468, 473];

/**
 * Loads the face networks. Returns {start, look, stop}: `start` asks for the camera, `look` returns
 * {picture, patches, marks} of the newest picture, where `marks` are points in pixels, and `stop`
 * switches the camera off.
 */
export async function openEyes(size) {
  const files = await Promise.all(FACE_NETWORKS.map(async (name) =>
    [name, await read(`face_${name}.onnx`)]));
  const find = await loadLandmarks(ort, Object.fromEntries(files));
  const video = document.createElement("video"), canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  video.muted = video.playsInline = true;
  return {
    async start() {
      if (!navigator.mediaDevices) throw new Error("browsers give a camera to https:// alone");
      const wanted = { facingMode: "user", width: { ideal: 1280 }, height: { ideal: 720 } };
      try {
        video.srcObject = await navigator.mediaDevices.getUserMedia({ video: wanted });
      } catch (error) {
        throw new Error(`the browser gives no camera (${error.message}); connect one, allow it ` +
          "for this page, and try again");
      }
      await video.play();
      [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    },
    async look() {
      context.drawImage(video, 0, 0);
      const picture = context.getImageData(0, 0, canvas.width, canvas.height);
      const face = await find(picture);
      const point = (i) => [face.points[2 * i], face.points[2 * i + 1]];
      return {
        picture: canvas,
        patches: face ? eyePatches(picture, face.points, { size }) : [],
        marks: face ? [...CORNERS, ...IRISES].map(point) : [],
      };
    },
    stop() {
      for (const track of video.srcObject?.getTracks() ?? []) track.stop();
      video.srcObject = null;
    },
  };
}
