// The exported network: from an eye patch to gaze angles.
import { ort, read } from "./assets.js";

/** Opens the network; returns an async function from a patch to [pitch, yaw] in radians. */
export async function openNetwork([height, width]) {
  ort.env.wasm.numThreads = 1; // more need headers that a static host does not send
  ort.env.wasm.wasmBinary = await read("ort-wasm-simd-threaded.wasm");
  const session = await ort.InferenceSession.create(await read("network.onnx"));
  return async ({ pixels, pose, side }) => {
    const known = {
      image: () => new ort.Tensor("uint8", Uint8Array.from(pixels), [1, 1, height, width]),
      pose: () => new ort.Tensor("float32", Float32Array.from(pose), [1, 2]),
      side: () => new ort.Tensor("int64", BigInt64Array.from([BigInt(side)]), [1]),
    };
    const feeds = Object.fromEntries(session.inputNames.map((name) => [name, known[name]()]));
    const answer = await session.run(feeds);
    return Array.from(answer[session.outputNames[0]].data);
  };
}
