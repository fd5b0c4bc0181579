"""Owner of image and weights: shares them among the parties, and puts the answers together.

usage: owner.py share FOLDER   job.json, weights.npz, inputs.npz -> clear.npy, shares and program
       owner.py open FOLDER    the parties' shares -> answers.npy

Runs in SPU's Python. Nothing is pickled: arrays are .npz, a program and a share are SPU's bytes.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


def load(path: Path) -> dict[str, Any]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def settings(job: dict[str, Any]) -> Any:
    """Return SPU's configuration: 64-bit ring, and truncations that are never far off."""
    import spu

    config = spu.libspu.RuntimeConfig(
        protocol=getattr(spu.ProtocolKind, job["protocol"].upper()), field=spu.FieldType.FM64
    )
    config.fxp_fraction_bits = job["fraction"]
    config.trunc_allow_msb_error = False
    config.enable_pphlo_profile = True
    return config


def to_arrays(name: str, share: Any) -> dict[str, Any]:
    """Return a share as arrays of bytes."""
    blocks = [share.meta, *share.share_chunks]
    return {f"{name}/{i}": np.frombuffer(block, np.uint8) for i, block in enumerate(blocks)}


def to_share(name: str, arrays: dict[str, Any]) -> Any:
    """Undo `to_arrays`."""
    import spu

    count = sum(key.rpartition("/")[0] == name for key in arrays)
    meta, *chunks = (arrays[f"{name}/{i}"].tobytes() for i in range(count))
    share = spu.libspu.Share()
    share.meta, share.share_chunks = meta, chunks
    return share


def share(folder: Path) -> None:
    """Answer in clear, to compare with; compile; write every party's shares to its own folder."""
    import network
    import spu
    from spu import api
    from spu.utils import frontend

    job = json.loads((folder / "job.json").read_text())
    weights, inputs = load(folder / "weights.npz"), load(folder / "inputs.npz")
    columns = {k.partition("/")[2]: weights.pop(k) for k in list(weights) if k[:8] == "columns/"}
    names = [*inputs, *weights]
    program = partial(network.forward, job["layers"], columns, names)
    first = [batches[0] for batches in inputs.values()]
    clear = [program(*x, *weights.values()) for x in zip(*inputs.values(), strict=True)]
    np.save(folder / "clear.npy", np.stack(clear), allow_pickle=False)
    secret, public = spu.Visibility.VIS_SECRET, spu.Visibility.VIS_PUBLIC
    seen = {name: public if name in weights and job["public"] else secret for name in names}
    executable, _ = frontend.compile(
        frontend.Kind.JAX,
        program,
        [*first, *weights.values()],
        {},
        names,
        list(seen.values()),
        lambda outputs: [f"answer{i}" for i in range(len(outputs))],
    )
    io = api.Io(job["parties"], settings(job))

    def deal(file: str, arrays: dict[str, Any]) -> None:
        shares = {name: io.make_shares(np.array(a), seen[name]) for name, a in arrays.items()}
        for rank in range(job["parties"]):
            own = {}
            for name, of_all in shares.items():
                own |= to_arrays(name, of_all[rank])
            np.savez(folder / f"party{rank}" / file, **own)

    deal("weights.npz", weights)
    for number, batch in enumerate(zip(*inputs.values(), strict=True)):
        deal(f"input{number}.npz", dict(zip(inputs, batch, strict=True)))
    for rank in range(job["parties"]):
        (folder / f"party{rank}" / "program.bin").write_bytes(executable.SerializeToString())


def open_answers(folder: Path) -> None:
    """Put the parties' shares of the answers together."""
    from spu import api

    job = json.loads((folder / "job.json").read_text())
    io = api.Io(job["parties"], settings(job))
    answers = []
    for number in range(job["batches"]):
        files = [folder / f"party{rank}" / f"answer{number}.npz" for rank in range(job["parties"])]
        answers.append(io.reconstruct([to_share("answer0", load(file)) for file in files]))
    np.save(folder / "answers.npy", np.stack(answers), allow_pickle=False)


if __name__ == "__main__":
    {"share": share, "open": open_answers}[sys.argv[1]](Path(sys.argv[2]))
