// In place of assets.js where the page is opened as a file, which may read no other file.
//
// The scripts before this one put the files, as base64, into `packedFiles`, and the library into
// `ort`, whose part in a module of its own is given as a blob.

export const ort = globalThis.ort;

/** Returns the bytes of a file of this page. */
export async function read(name) {
  return bytesOf(name);
}

function bytesOf(name) {
  return Uint8Array.from(atob(globalThis.packedFiles[name]), (letter) => letter.charCodeAt(0));
}

const glue = new Blob([bytesOf("ort-wasm-simd-threaded.mjs")], { type: "text/javascript" });
ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(glue) };
