"""What a command ended with, and data files that nobody meant to send: a change, and its line."""

import io
import struct
import traceback
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.cli.commands import Said, vergence

CROPS, FIXATIONS = "mpiigaze_9x15.npz", "fixations.npz"
PICTURE = "stimuli/1002.jpg"


def ended(*args) -> Said:
    """What a command ended with, as a shell sees it: a traceback is exit code 1, and many lines."""
    try:
        return vergence(*args)
    except Exception:
        return Said(1, "", traceback.format_exc())


# --- archives


def arrays(path: Path, **changes) -> None:
    """Write an npz anew with other arrays in it; None leaves one out."""
    with np.load(path, allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})


def entry(name: str, index: tuple, value: float, path: Path) -> None:
    with np.load(path) as file:
        array = file[name].copy()
    array[index] = value
    arrays(path, **{name: array})


def changed(name: str, change: Callable[[np.ndarray], np.ndarray], path: Path) -> None:
    with np.load(path) as file:
        arrays(path, **{name: change(file[name])})


def member(name: str, body: bytes, path: Path, stated: int | None = None) -> None:
    """Put other bytes in the place of an array; the archive states another size where one is."""
    with zipfile.ZipFile(path) as file:
        kept = {n: file.read(n) for n in file.namelist()} | {f"{name}.npy": body}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if stated else zipfile.ZIP_STORED) as file:
        for own, data in kept.items():
            file.writestr(own, data)
    if stated:
        raw = bytearray(path.read_bytes())
        at = raw.rindex(f"{name}.npy".encode()) - 46  # the entry of the table at the end
        struct.pack_into("<I", raw, at + 24, stated)
        path.write_bytes(raw)


def claim(shape: tuple, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An array's file whose header claims a shape, whatever follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def filled(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def gone(path: Path) -> None:
    path.unlink()


# --- pictures


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size and ends after its header."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    first = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    data = b"IDAT" + zlib.compress(b"\0")
    return b"\x89PNG\r\n\x1a\n" + first + struct.pack(">I", len(data) - 4) + data + bytes(4)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n%%EOF\n"
PPM = b"P6 8 8 255\n" + bytes(192)
NOTHING = {
    "image": np.zeros((2, 0, 9, 15), np.uint8),
    "gaze": np.zeros((2, 0, 2), np.float32),
    "pose": np.zeros((2, 0, 2), np.float32),
}
NOBODY = {
    "image": np.zeros((0, 40, 9, 15), np.uint8),
    "gaze": np.zeros((0, 40, 2), np.float32),
    "pose": np.zeros((0, 40, 2), np.float32),
    "person": np.zeros(0, "U3"),
}
RECORDS = np.zeros((2, 40, 2), [("a", "<f4"), ("b", "<f4")])


def text(array: np.ndarray) -> np.ndarray:
    return np.full(array.shape, "text")


def imaginary(array: np.ndarray) -> np.ndarray:
    return array + 1j * array


CHANGES = {
    "crops: NaN": (CROPS, partial(entry, "gaze", (1, 3, 0), np.nan), "gaze of p01 is NaN"),
    "crops: infinity": (CROPS, partial(entry, "pose", (0, 0, 1), np.inf), "pose of p00 is NaN"),
    "crops: degrees": (CROPS, partial(entry, "gaze", (0, 0, 0), 20), "must be radians"),
    "crops: objects": (CROPS, partial(changed, "gaze", lambda a: a.astype(object)), "Object"),
    "crops: text": (CROPS, partial(changed, "gaze", text), "gaze holds <U4 instead of real"),
    "crops: complex": (CROPS, partial(changed, "gaze", imaginary), "gaze holds complex64"),
    "crops: records": (CROPS, partial(arrays, gaze=RECORDS), "gaze holds"),
    "crops: dates": (CROPS, partial(changed, "pose", lambda a: a.astype("<M8[s]")), "pose holds"),
    "crops: nothing": (CROPS, partial(arrays, **NOTHING), "samples per eye of p00"),
    "crops: nobody": (CROPS, partial(arrays, **NOBODY), "holds 0"),
    "crops: of other shape": (CROPS, partial(changed, "gaze", lambda a: a[:, :9]), "gaze is"),
    "crops: too few samples": (
        CROPS,
        partial(
            arrays,
            **{
                n: a[:, :2]
                for n, a in (
                    ("image", np.zeros((2, 40, 9, 15), np.uint8)),
                    ("gaze", np.zeros((2, 40, 2))),
                    ("pose", np.zeros((2, 40, 2))),
                )
            },
        ),
        "samples per eye of p00",
    ),
    "crops: an array missing": (CROPS, partial(arrays, pose=None), "lacks pose"),
    "crops: truncated": (CROPS, cut_short, "cannot read"),
    "crops: junk": (CROPS, partial(filled, b"PK" + bytes(999)), "cannot read"),
    "crops: empty": (CROPS, partial(filled, b""), "cannot read"),
    "crops: one array": (CROPS, one_array, "cannot read"),
    "crops: a folder": (CROPS, folder_instead, "missing file"),
    "crops: a member that is no array": (CROPS, partial(member, "gaze", b"hello"), "cannot read"),
    "crops: an empty member": (CROPS, partial(member, "gaze", b""), "cannot read"),
    "crops: 800 GB in a header": (
        CROPS,
        partial(member, "gaze", claim((100_000_000_000, 1, 2))),
        "claims to be float32",
    ),
    "crops: 4 GB in the archive's table": (
        CROPS,
        partial(member, "gaze", claim((10, 10**8, 1)), stated=4_000_000_000 + 128),
        "claims 4,000,000,128 bytes",
    ),
    "crops: a negative shape": (
        CROPS,
        partial(member, "gaze", claim((-1, 40, 2), data=bytes(8))),
        "cannot read",
    ),
    "crops: members that lead elsewhere": (
        CROPS,
        lambda path: (arrays(path, gaze=None), member("../gaze", b"x", path)),
        "lacks gaze",
    ),
    "osie: NaN": (FIXATIONS, partial(entry, "x", (5,), np.nan), "fixation x is NaN"),
    "osie: outside": (FIXATIONS, partial(entry, "y", (5,), 1.5), "fixation y lies outside"),
    "osie: text": (FIXATIONS, partial(changed, "x", text), "x holds <U4 instead of real"),
    "osie: complex": (FIXATIONS, partial(changed, "y", imaginary), "y holds complex"),
    "osie: text for totals": (
        FIXATIONS,
        partial(arrays, totals=np.array(["a", "b", "c"])),
        "totals holds <U1",
    ),
    "osie: NaN for totals": (FIXATIONS, partial(arrays, totals=np.full(3, np.nan)), "totals"),
    "osie: other lengths": (FIXATIONS, partial(changed, "x", lambda a: a[:-1]), "differ in length"),
    "osie: fractions for viewers": (
        FIXATIONS,
        partial(changed, "viewer", lambda a: a + 0.5),
        "must be whole numbers",
    ),
    "osie: truncated": (FIXATIONS, cut_short, "cannot read"),
    "osie: no picture": (PICTURE, gone, "missing file"),
    "osie: half a picture": (PICTURE, cut_short, "cannot decode"),
    "osie: an empty picture": (PICTURE, partial(filled, b""), "no JPEG, PNG, BMP, WEBP or TIFF"),
    "osie: text for a picture": (PICTURE, partial(filled, b"hello"), "no JPEG, PNG"),
    "osie: EPS for a picture": (PICTURE, partial(filled, EPS), "no JPEG, PNG, BMP, WEBP or TIFF"),
    "osie: PPM for a picture": (PICTURE, partial(filled, PPM), "no JPEG, PNG, BMP, WEBP or TIFF"),
    "osie: a bomb": (PICTURE, partial(filled, png(60_000, 60_000)), "decompression bomb"),
    "osie: a large photograph, cut": (PICTURE, partial(filled, png(10_000, 10_000)), "truncated"),
}


def twin(sample: Path, folder: Path) -> None:
    """Copy a folder of samples by links; what is changed is written anew."""
    for path in sample.rglob("*"):
        here = folder / path.relative_to(sample)
        if path.is_dir():
            here.mkdir(parents=True, exist_ok=True)
        else:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(path)


def spoil(folder: Path, name: str, change: Callable[[Path], object]) -> None:
    """Change one file of a folder, and none that it is a link to."""
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    change(path)
