"""`vergence adapt --portable` and `--from`: corrections that a web page computes as Python does.

A correction file (JSON) has the person's samples and the correction that was computed from them.
Whoever reads one computes the correction again and compares, so that a changed file is noticed.

Used by `cli.runs` and `live.command`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from vergence.adaptation.adapted_run import (
    Adaptation,
    FittedPerson,
    Source,
    check_new_folder,
    fit_person,
    open_source,
)
from vergence.adaptation.choice import units
from vergence.adaptation.fine_tuning import PersonalModel
from vergence.adaptation.other_people import RESIDUAL
from vergence.adaptation.own_data import ME, OwnData, read_own_data, rows_to_learn
from vergence.core.data import Samples
from vergence.core.files import write_whole
from vergence.core.randomness import RandomStream
from vergence.engine.storage.run_directory import read_manifest
from vergence.errors import ConfigError, DataError, first_line
from vergence.metrics.calibration import Correction
from vergence.results.layout import finite
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import KernelCorrection

FILE = "correction.json"
PORTABLE = ("shrunk offset", "shrunk affine", RESIDUAL)
"""Ways that need no library: a page computes them, too."""
FORMAT, VERSION = "vergence correction", 1
# A page's file of nine dots has .3 MB, one of 1000 samples of 36 x 60 pixels 3 MB. Coefficients of
# people's corrections are far below the largest number.
BYTES, SAMPLES, LARGEST = 16 << 20, 1000, 1e6
# A file from somebody else could fill the memory: a value in a list or under a key takes two bytes
# there and up to a kilobyte while it is checked. A sample has eight, and its picture is one text.
VALUES = 20 * SAMPLES
# A page computes with another library's network: its angles differ by about 1e-6 radians.
TOLERANCE = 1e-4
Inputs = Literal[
    "pixels: x = (level / 255 - 0.5) / 0.25, less its mean, by (its deviation + 0.15) times the "
    "root of the number of pixels; then head pitch and yaw in radians, and 0.3 times the side"
]
NORMALISATION: Inputs = get_args(Inputs)[0]
"""How a sample becomes the row of numbers that the kernel compares, for whoever reads the file."""
WHERE = "give the file of `vergence adapt --portable`, or of a page of `vergence web`"
# A file may be honest and differ: two ways may be almost equally good to another library, and a
# page has the priors of its day.
CHANGED = (
    "the file was changed, or was made by a page of another version: write the page and calibrate "
    "again"
)
UNFIT = "correct the samples, or leave --portable out"

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Pair = tuple[Number, Number]
Pairs = Annotated[list[Pair], Field(min_length=1, max_length=SAMPLES)]


class _Strict(BaseModel):
    """Part of the file: no other keys, no numbers as text, no NaN and no infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class AffineNumbers(_Strict):
    """Numbers of a `Correction`."""

    centre: Pair
    offset: Pair
    slope: tuple[Pair, Pair]


class KernelNumbers(_Strict):
    """Numbers of a `KernelCorrection`, whose centres are the normalised samples."""

    linear: Annotated[list[Pair], Field(min_length=6, max_length=6)]
    coefficients: Pairs


class SampleRows(_Strict):
    """The person's samples: `size` is height and width of a picture, `image` their grey levels."""

    size: tuple[Annotated[int, Field(ge=1, le=512)], Annotated[int, Field(ge=1, le=512)]]
    image: Base64Bytes
    pose: Pairs
    gaze: Pairs
    side: list[Literal[0, 1]] | None
    target: list[Annotated[int, Field(ge=0, le=10**6)]] | None

    def samples(self, path: Path | str, advice: str = WHERE) -> Samples:
        """Return the samples; messages name `path`, and say what to do in the words of `advice`.

        Raises:
            DataError: columns differ in length, or `image` in its number of pixels.
        """
        count, (height, width) = len(self.gaze), self.size
        columns = {"pose": self.pose, "side": self.side, "target": self.target}
        given = {name: column for name, column in columns.items() if column is not None}
        for name, column in given.items():
            if len(column) != count:
                raise DataError(f"{path}: {name} has {len(column)} rows and gaze {count}; {advice}")
        if len(self.image) != count * height * width:
            raise DataError(
                f"{path}: image has {len(self.image):,} grey levels, and {count} pictures of "
                f"{height} x {width} have {count * height * width:,}; {advice}"
            )
        pixels = np.frombuffer(self.image, np.uint8).reshape(count, 1, height, width)
        tensors = {name: torch.tensor(column) for name, column in given.items()}
        return Samples({"image": torch.tensor(pixels), "gaze": torch.tensor(self.gaze), **tensors})


class CorrectionFile(_Strict):
    """Content of a correction file.

    Attributes:
        fingerprint: that of the run whose shared model is corrected.
        way: way that cross-validation chose.
        numbers: numbers of the correction; None: the shared model is unchanged.
        errors: degrees on samples left out, by way; None for a way that diverged.
        inputs: `NORMALISATION`.
        samples: samples of the person.
    """

    format: Literal["vergence correction"]
    version: Literal[1]
    fingerprint: Annotated[str, Field(max_length=200)]
    way: Literal["shared model", "shrunk offset", "shrunk affine", "residual kernel"]
    numbers: AffineNumbers | KernelNumbers | None
    errors: dict[Annotated[str, Field(max_length=50)], Number | None]
    inputs: Inputs
    samples: SampleRows


def adapt_portable(
    folder: Path,
    data: Path,
    out: Path,
    person: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> Adaptation:
    """Adapt as `adapt` does, by `PORTABLE` ways alone, and write a correction file, too.

    Raises:
        ConfigError: the run is not of gaze angles of grey eye images with head poses, or more than
            1000 samples are learned from; see also `adapt`.
        DataError: the samples cannot be used, or do not fit into a correction file.
        StateError: the run is damaged or unfinished, or `out` holds something.
    """
    check_new_folder(out)
    source = portable_source(open_source(folder, person or data.stem, seed))
    own = read_own_data(data, source.trained.experiment, person)
    rows = rows_to_learn(len(own.samples), samples)
    image = own.samples.columns.get("image")
    if image is not None and (image.shape[1:-2] != (1,) or image.dtype != torch.uint8):
        raise ConfigError(
            f"{data}: a portable correction needs grey pictures, uint8 [n, 1, height, width]"
        )
    if not 0 < len(rows) <= SAMPLES:
        raise ConfigError(
            f"a portable correction is of 1 to {SAMPLES} samples, got {len(rows)}: give --samples"
        )
    fitted = fit_person(source, own, rows, PORTABLE)
    text = _checked_text(fitted)
    made = fitted.write(out)
    write_whole(out / FILE, text, secret=True)
    return made


def adapt_from(
    folder: Path, path: Path, out: Path, person: str | None = None, seed: int | None = None
) -> Adaptation:
    """Make an adapted run out of a correction file, and check that its samples give its numbers.

    Args:
        folder: run directory whose shared model the file corrects.
        path: the file.
        out: new run directory.
        person: name to give to the person, default "me".
        seed: seed of the run; default the one whose fingerprint the file has.

    Raises:
        ConfigError: the file is of another run or seed; see also `adapt`.
        DataError: the file is missing, too large, or no correction of these samples.
        StateError: the run is damaged or unfinished, or `out` holds something.
    """
    check_new_folder(out)
    content = read_correction(path)
    source = _source_of(content.fingerprint, path, folder, person, seed)
    own = OwnData(person or ME, content.samples.samples(path), str(path))
    fitted = fit_person(source, own, torch.arange(len(own.samples)), PORTABLE)
    _check_numbers(fitted, content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return fitted.write(out, {"version": 1, "correction": digest})


def _source_of(
    fingerprint: str, path: Path, folder: Path, person: str | None, seed: int | None
) -> Source:
    """Open the seed of a run that has a file's fingerprint; with `seed`, only that one."""
    source = portable_source(open_source(folder, person, seed))
    if source.trained.fingerprint == fingerprint:
        return source
    done = read_manifest(source.trained.folder)["done"]
    seeds = {about["fingerprint"]: int(number) for number, about in done.items()}
    if fingerprint not in seeds:
        known = ", ".join(f"{sha[:16]} (seed {number})" for sha, number in seeds.items())
        raise ConfigError(
            f"{path} is for the run with fingerprint {fingerprint[:16]}, and {folder} has {known}: "
            "name the run that the file was made for"
        )
    if seed is not None:
        raise ConfigError(
            f"{path} is for seed {seeds[fingerprint]} of {folder}, got --seed {seed}: leave --seed "
            "out"
        )
    return portable_source(open_source(folder, person, seeds[fingerprint]))


def portable_source(source: Source) -> Source:
    """Return a run to adapt with the priors of portable ways alone.

    Raises:
        ConfigError: its task is not gaze angles, or its network takes no head pose.
    """
    task = source.trained.task
    if not isinstance(task, GazeAngle) or "pose" not in task.side_inputs:
        raise ConfigError(
            f"{source.trained.folder}: portable corrections are for gaze angles from eye images "
            "and head poses: name a run of task gaze_angle, with model.pose=true"
        )
    return replace(source, fitted={n: kind for n, kind in source.fitted.items() if n == RESIDUAL})


def read_correction(path: Path) -> CorrectionFile:
    """Read a correction file.

    Raises:
        DataError: it is missing, too large, or no correction; the message names the first fault.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path} is no file: {WHERE}")
        if (size := path.stat().st_size) > BYTES:
            raise DataError(
                f"{path} has {size:,} bytes, a correction has {BYTES:,} at most; {WHERE}"
            )
        # Not the whole file, which may have grown since.
        with path.open("rb") as file:
            text = file.read(size)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({first_line(error)}): {WHERE}") from None
    if (count := text.count(b",")) > VALUES:
        raise DataError(
            f"{path} has {count:,} values, a correction has {VALUES:,} at most; {WHERE}"
        )
    return _parsed(text, f"{path} is no correction", WHERE)


def _parsed(text: bytes, fault: str, advice: str) -> CorrectionFile:
    """Return the content of a file; a message begins with `fault` and ends with `advice`."""
    try:
        return CorrectionFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))[:100] or "all of it"
        raise DataError(f"{fault}: {name}: {first['msg'][:200]}; {advice}") from None


def _checked_text(fitted: FittedPerson) -> bytes:
    """Return a correction file, checked as whoever reads it will check it.

    Raises:
        DataError: the samples do not fit into a correction file.
    """
    text, source = json.dumps(_content(fitted), allow_nan=False).encode(), fitted.own.source
    if len(text) > BYTES:
        raise DataError(
            f"{source}: a correction file of {len(fitted.rows)} samples would have {len(text):,} "
            f"bytes, and may have {BYTES:,}: learn from fewer, by --samples"
        )
    content = _parsed(text, f"{source} fits into no correction file", UNFIT)
    content.samples.samples(source, UNFIT)
    return text


def _content(fitted: FittedPerson) -> dict[str, Any]:
    """Return the content of a correction file."""
    samples = fitted.own.samples.subset(fitted.rows)
    columns = samples.columns
    image, correction, numbers = columns["image"], fitted.model.correction, None
    if isinstance(correction, KernelCorrection):
        numbers = {"linear": correction.linear, "coefficients": correction.coefficients}
    elif isinstance(correction, Correction):
        numbers = {n: getattr(correction, n) for n in ("centre", "offset", "slope")}
    lists = {
        "side": columns["side"].reshape(-1).int().tolist() if "side" in columns else None,
        "target": units(samples).tolist() if "target" in columns else None,
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fitted.adapter.trained.fingerprint,
        "way": fitted.choice.way,
        "numbers": numbers and {name: value.tolist() for name, value in numbers.items()},
        "errors": finite(dict(fitted.choice.errors)),
        "inputs": NORMALISATION,
        "samples": {
            "size": list(image.shape[2:]),
            "image": base64.b64encode(image.numpy().tobytes()).decode(),
            **{name: columns[name].tolist() for name in ("pose", "gaze")},
            **lists,
        },
    }


def _check_numbers(fitted: FittedPerson, content: CorrectionFile, path: Path) -> None:
    """Check that a file's errors, way and numbers are those that its samples give.

    Another way than the chosen one may stand there if its angles are the same: of two ways that are
    almost equally good, another library may choose the other one.

    Raises:
        DataError: they are not.
    """
    adapter, numbers, correction = fitted.adapter, content.numbers, None
    ways = finite(dict(fitted.choice.errors))
    # None becomes NaN.
    errors = np.array([[content.errors.get(way), error] for way, error in ways.items()], float)
    mine, theirs = errors.reshape(-1, 2).T
    near = np.allclose(theirs, mine, rtol=0, atol=math.degrees(TOLERANCE), equal_nan=True)
    if content.errors.keys() != ways.keys() or not near:
        raise DataError(
            f"{path}: its errors differ from those that its samples give by more than "
            f"{math.degrees(TOLERANCE):.4f} degrees: {CHANGED}"
        )
    if isinstance(numbers, AffineNumbers):
        parts = (numbers.centre, numbers.offset, numbers.slope)
        correction = Correction(*(torch.tensor(part, dtype=torch.float64) for part in parts))
    elif numbers is not None:
        linear, own = (torch.tensor(p).double() for p in (numbers.linear, numbers.coefficients))
        assert isinstance(adapter.trained.task, GazeAngle)
        centres = adapter.trained.task.kernel_inputs(adapter.labelled)
        if len(own) != len(centres):
            raise DataError(
                f"{path} has {len(own)} coefficients for {len(centres)} samples; {WHERE}"
            )
        correction = KernelCorrection(linear, centres, own)
    rows, stream = torch.arange(len(adapter.labelled)), RandomStream("adapt", 0)
    angles, *ours = (
        adapter.outputs(model, adapter.labelled)
        for model in (
            PersonalModel(adapter.start, correction),
            fitted.model,
            # Portable ways draw no random numbers.
            adapter.fit(content.way, rows, stream),
        )
    )
    away = (angles - torch.stack(ours)).abs().max()
    # Written as "not <=", so that a NaN is refused, too.
    if not away <= TOLERANCE:
        raise DataError(
            f"{path}: its correction ('{content.way}') differs by {away:.1e} radians from the one "
            f"that its samples give ('{fitted.choice.way}'): {CHANGED}"
        )
