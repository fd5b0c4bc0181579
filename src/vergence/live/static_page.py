"""`vergence web`: writes a static page that corrects a model for whoever opens it, in the browser.

The page needs no server of its own: its files are this package's JavaScript, the exported network,
and ONNX Runtime Web, whose two files are accepted only if their digests are those below.

Used by `cli.live`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from scipy.stats import norm, t

from vergence.adaptation import portable
from vergence.adaptation.adapted_run import Source, check_new_folder, open_source
from vergence.adaptation.choice import AGAINST_OTHERS
from vergence.adaptation.fine_tuning import SHARED
from vergence.adaptation.other_people import RESIDUAL
from vergence.console import note
from vergence.core.files import saving, write_whole
from vergence.core.naming import registry_name
from vergence.data.eye_images.face_networks import face_networks
from vergence.data.io.generated_cache import cache_folder
from vergence.errors import ConfigError, DataError, first_line
from vergence.model_tools.onnx_export import export, packages
from vergence.training.residual_kernel import DEFAULT, ResidualKernel

SOURCES = Path(__file__).parents[1] / "web"
# In the order in which one needs another.
MODULES = (
    *("assets", "linear_algebra", "correction", "screen", "landmarks", "normalization"),
    *("network", "eyes", "calibration", "page"),
)
RUNTIME = "onnxruntime-web-1.30.0"
THREADED = "ort-wasm-simd-threaded"
GET = "npm pack onnxruntime-web@1.30.0"
# SHA-256 of the files of npm's archive, whose own digest (sha512-q0y+JrrtukXSzsBW...) was compared.
DIGESTS = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort.wasm.min.js": "faece07e84faa9001f5104bbe4e5c70861d06cb2376a0dea1fa0ad33a67adc81",
    f"{THREADED}.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    f"{THREADED}.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
}
SERVED = ("ort.wasm.bundle.min.mjs", f"{THREADED}.wasm")
PACKED = ("ort.wasm.min.js", f"{THREADED}.mjs", f"{THREADED}.wasm")
IMPORT = r'^import (\{[^}]*\}) from "\./(\w+)\.js";'
CSP = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'{blob}; connect-src {read}; "
    "img-src data:; style-src 'self'; base-uri 'none'; form-action 'none'"
)
"""What the page may load. It may send nothing by requests; WebRTC and early connections are free.

A packed page reads no file, but has a blob.
"""
LICENCES = ("LICENSE", "ThirdPartyNotices.txt")
"""Files of the Python package onnxruntime; npm's archive of the same programs has none."""
# Student's quantiles for as many dots as a calibration could show.
QUANTILES = 100


def write_page(
    folder: Path,
    out: Path,
    runtime: Path | None = None,
    packed: bool = False,
    seed: int | None = None,
) -> int:
    """Write the page of a run, and return its size in bytes.

    Args:
        folder: run directory of gaze angles of eye images.
        out: new folder of the page.
        runtime: archive or folder of onnxruntime-web; None: from the cache, else by npm.
        packed: whether the page is opened as a file, and has all its files in scripts.
        seed: seed of the run; default its first.

    Raises:
        ConfigError: the run is of another task, or a package or onnxruntime-web is missing.
        DataError: a file of onnxruntime-web was changed.
        StateError: the run is damaged or unfinished, or `out` holds something.
    """
    check_new_folder(out)
    packages()
    source = portable.portable_source(open_source(folder, None, seed))
    files = {"run.json": json.dumps(_about(source), allow_nan=False).encode(), **_network(source)}
    files |= runtime_files(runtime, PACKED if packed else SERVED)
    faces = face_networks()
    files |= {f"face_{name}.onnx": getattr(faces, name) for name in ("detection", "mesh", "iris")}
    texts = {name: (SOURCES / f"{name}.js").read_text("utf-8") for name in MODULES}
    licences = {"LICENSES.txt": _licences(faces.licence)}
    if packed:
        texts["assets"] = (SOURCES / "packed_assets.js").read_text("utf-8")
        library = {PACKED[0]: files.pop(PACKED[0])}
        inside = {name: base64.b64encode(data).decode() for name, data in files.items()}
        bundle = f"globalThis.packedFiles = {json.dumps(inside)};\n"
        scripts = {"files.js": bundle.encode(), "page.js": bundled(texts).encode(), **library}
        files, loaded = scripts, (PACKED[0], "files.js", "page.js")
        tags = "\n  ".join(f'<script src="{name}" defer></script>' for name in loaded)
    else:
        files |= {f"{name}.js": text.encode() for name, text in texts.items()}
        tags = '<script type="module" src="page.js"></script>'
    policy = CSP.format(blob=" blob:" if packed else "", read="'none'" if packed else "'self'")
    page = (SOURCES / "index.html").read_text("utf-8")
    page = page.replace("{{megabytes}}", f"{sum(map(len, files.values())) / 1e6:.0f}")
    page = page.replace("{{csp}}", policy).replace("{{scripts}}", tags)
    files |= {"index.html": page.encode(), "style.css": (SOURCES / "style.css").read_bytes()}
    with saving(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, **licences}.items():
            write_whole(out / name, data)
    return sum(map(len, files.values()))


def bundled(texts: Mapping[str, str]) -> str:
    """Return modules as one script, in this order: pages that are files may load no modules."""
    parts = ['"use strict";\nconst modules = {};\n']
    for name, text in texts.items():
        names = re.findall(r"^export (?:async )?(?:const|function) (\w+)", text, re.M)
        text = re.sub(IMPORT, r"const \1 = modules.\2;", text, flags=re.M)
        text = re.sub(r"^export ", "", text, flags=re.M)
        parts.append(
            f"modules.{name} = (() => {{\n{text}return {{ {', '.join(names)} }};\n}})();\n"
        )
    return "".join(parts)


def runtime_files(place: Path | None, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return files of onnxruntime-web by name, from an archive, a folder, the cache, or npm.

    Raises:
        ConfigError: they are nowhere, and npm is missing or cannot get them.
        DataError: a file is missing, or is not the one of this version.
    """
    if place is not None:
        return _verified(place, names)
    cache = cache_folder() / f"{RUNTIME}.tgz"
    try:
        return _verified(cache, names)
    # A damaged copy in the cache is got anew.
    except DataError:
        npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"the page needs {RUNTIME}: get it with `{GET}`, and give --runtime FILE")
    note(f"gets {RUNTIME} (33 MB) by `{GET}` into {cache.parent}")
    cache.parent.mkdir(parents=True, exist_ok=True)
    command = [npm, *GET.split()[1:], "--loglevel=error", "--pack-destination", str(cache.parent)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        # Of npm's lines the first one has the code of the error, one with an address says more; the
        # last ones are a stack, and the name of a log.
        lines = str(getattr(error, "stderr", None) or first_line(error)).splitlines()
        why = next((line for line in lines if "://" in line), lines[0])
        raise ConfigError(
            f"npm cannot get {RUNTIME} ({why}): try `{GET}` yourself, and give --runtime FILE"
        ) from None
    return _verified(cache, names)


def _verified(source: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return files of an archive or a folder whose digests are those of this version."""
    files: dict[str, bytes] = {}
    try:
        if source.is_dir():
            base = source / "dist" if (source / "dist").is_dir() else source
            files = {name: (base / name).read_bytes() for name in names}
        else:
            with tarfile.open(source) as archive:
                for name in names:
                    part = archive.extractfile(f"package/dist/{name}")
                    # No file of this release is larger, and one that is has another digest.
                    files[name] = b"" if part is None else part.read(20 << 20)
    except (OSError, KeyError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(
            f"{source} is no {RUNTIME} ({first_line(error)}): `{GET}` gets it"
        ) from None
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != DIGESTS[name]:
            raise DataError(
                f"{source}: {name} is not the file of {RUNTIME}, its SHA-256 differs; `{GET}` gets "
                "the right one"
            )
    return files


def _network(source: Source) -> dict[str, bytes]:
    """Return the exported network."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "network.onnx"
        export(source.trained.folder, path, Console(quiet=True), seed=source.trained.task.seed)
        return {path.name: path.read_bytes()}


def _about(source: Source) -> dict[str, Any]:
    """Return what the page knows of the run.

    Raises:
        ConfigError: its pictures are not grey, or its method shares no whole model.
    """
    trained = source.trained
    if not trained.offers_newcomer(whole=True):
        raise ConfigError(
            f"{trained.folder}: a page is for people who took no part, and the method "
            f"'{registry_name(trained.method)}' shares no whole model with them: name a run of a "
            "method that does, such as fedavg"
        )
    data = next(iter(trained.loaded.raw.people.values()))
    channels, *size = data.test.columns["image"].shape[1:]
    if channels != 1:
        raise ConfigError(f"{trained.folder}: a page needs grey eye images, these are in colour")
    kernel = source.fitted.get(RESIDUAL, DEFAULT)
    assert isinstance(kernel, ResidualKernel)
    return {
        "name": trained.folder.resolve().name,
        "vergence": version("vergence"),
        "fingerprint": trained.fingerprint,
        "size": size,
        "variances": kernel.variances.tolist(),
        "unsure": RESIDUAL if source.fitted else SHARED,
        "own_variances": RESIDUAL in source.fitted,
        "wide": [float(t.ppf(norm.cdf(AGAINST_OTHERS), n)) for n in range(1, QUANTILES)],
        "format": portable.FORMAT,
        "version": portable.VERSION,
        "inputs": portable.NORMALISATION,
    }


def _licences(apache: str) -> bytes:
    """Return the licences of the programs and networks in the page."""
    folder = Path(packages().__file__).parent
    own, others = ((folder / name).read_text("utf-8") for name in LICENCES)
    parts = (
        f"vergence {version('vergence')}: Apache License 2.0, which is at the end of this file.",
        "The networks that find faces are Google's (MediaPipe: face detection, face mesh, iris), "
        "converted to ONNX, under the same licence.",
        f"ONNX Runtime Web 1.30.0:\n\n{own}",
        others,
        apache,
    )
    return f"\n\n{'-' * 79}\n\n".join(parts).encode()
