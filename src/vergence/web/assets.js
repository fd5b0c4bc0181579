// The files beside this page. A packed page has another one of these, with all files inside.
import ort from "./ort.wasm.bundle.min.mjs";

export { ort };

/** Returns the bytes of a file of this page. */
export async function read(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name} is missing (${answer.status})`);
  return new Uint8Array(await answer.arrayBuffer());
}
