"""Project Aria's own formats: VRS recordings (extra `aria`), and eye gaze CSV files of MPS.

MPS is Meta's Machine Perception Services, which compute gaze from recordings. It states gaze as
angles in the central pupil frame (CPF): x to the left, y up, z forward, in metres. There are three
CSV schemas of Gen1 and one of Gen2. Gaze of each becomes points in CPF, computed as in
projectaria-tools 2.3.0 (`get_eyegaze_point_at_depth`, `get_gaze_vergence_point`).

Used by `data.gaze_video.aria`, `data.gaze_video.gaze_table` and `data.gaze_video.recording`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vergence.data.gaze_video.gaze import Gaze
from vergence.data.io.delimited_text import DelimitedTable, read_table
from vergence.data.io.video import Footage
from vergence.errors import ConfigError, DataError

RGB, ON_DEVICE_GAZE = "214-1", "373-1"
KIND = "MPS eye gaze CSV (tracking_timestamp_us with yaw and pitch, or left and right yaw)"


@dataclass(frozen=True, eq=False)
class CpfGaze:
    """Gaze points in the central pupil frame.

    `t_us` int64 `[n]` is the device time in microseconds, `point` float64 `[n, 3]` the point in
    metres, and `valid` bool `[n]` whether there is one.
    """

    t_us: NDArray[np.int64]
    point: NDArray[np.float64]
    valid: NDArray[np.bool_]


def read_mps(path: Path, depth_m: float = 1.0) -> CpfGaze:
    """Read an MPS eye gaze CSV of any schema.

    `depth_m` is the depth of gaze in metres in Gen1 files whose depth is missing, or not above 0.

    Raises:
        DataError: the file is no MPS eye gaze CSV, or of another version (the message names the
            missing columns), or a cell cannot be read.
    """
    table = read_table(path, ["tracking_timestamp_us"], KIND)
    if "yaw_rads_cpf" in table and "left_pitch_rads_cpf" in table:
        point = _vergence_points(table)
    else:
        point = _cyclopean_points(table, depth_m)
    valid = np.asarray(np.isfinite(point).all(1), bool)
    return CpfGaze(table.ticks("tracking_timestamp_us"), point, valid)


def _columns(table: DelimitedTable, names: Sequence[str]) -> list[NDArray[np.float64]]:
    if missing := [name for name in names if name not in table]:
        raise DataError(f"{table.path} is not the {KIND}: missing columns {', '.join(missing)}")
    return [table.floats(name) for name in names]


def _cyclopean_points(table: DelimitedTable, depth_m: float) -> NDArray[np.float64]:
    if "left_yaw_rads_cpf" in table:
        names = ["left_yaw_rads_cpf", "right_yaw_rads_cpf", "pitch_rads_cpf"]
        left, right, pitch = _columns(table, names)
        tan_yaw = (np.tan(left) + np.tan(right)) / 2
    else:
        yaw, pitch = _columns(table, ["yaw_rads_cpf", "pitch_rads_cpf"])
        tan_yaw = np.tan(yaw)
    depth = table.floats("depth_m") if "depth_m" in table else np.zeros(len(table))
    depth = np.where(np.isfinite(depth) & (depth > 0), depth, depth_m)
    ray = np.stack([tan_yaw, np.tan(pitch), np.ones_like(pitch)], 1)
    return ray / np.linalg.norm(ray, axis=1, keepdims=True) * depth[:, None]


def _vergence_points(table: DelimitedTable) -> NDArray[np.float64]:
    """Return the points `[n, 3]` where the two eyes' rays come nearest to each other (Gen2).

    Each is the midpoint of the shortest line between the rays; NaN if they are parallel.
    """
    origin, ray = {}, {}
    for side in ("left", "right"):
        names = [f"t{axis}_{side}_eye_cpf" for axis in "xyz"]
        origin[side] = np.stack(_columns(table, names), 1)
        yaw, pitch = _columns(table, [f"{side}_yaw_rads_cpf", f"{side}_pitch_rads_cpf"])
        ray[side] = np.stack(
            [np.sin(yaw) * np.cos(pitch), np.sin(pitch), np.cos(yaw) * np.cos(pitch)], 1
        )
    a, b = ray["left"], ray["right"]
    between = origin["right"] - origin["left"]
    ab = (a * b).sum(1)
    # Parallel rays divide by zero: their point becomes NaN, and so untracked.
    with np.errstate(divide="ignore", invalid="ignore"):
        along = ((between * a).sum(1) - ab * (between * b).sum(1)) / (1 - ab**2)
    near = origin["left"] + along[:, None] * a
    across = ((near - origin["right"]) * b).sum(1)
    return (near + origin["right"] + across[:, None] * b) / 2


def _projectaria(module: str) -> Any:
    try:
        return importlib.import_module(f"projectaria_tools.core.{module}")
    except ImportError:
        raise ConfigError(
            "reading VRS files needs projectaria-tools: pip install 'vergence[aria]' "
            "(an mp4 with gaze_2d.csv needs nothing)"
        ) from None


def open_vrs(path: Path) -> Any:
    """Return projectaria-tools' data provider of a VRS file.

    Raises:
        ConfigError: projectaria-tools is not installed.
        DataError: the file is missing, truncated, or has no RGB stream.
    """
    data_provider, stream_id = _projectaria("data_provider"), _projectaria("stream_id")
    if not path.is_file():
        raise DataError(f"recording {path} is missing; give the path of a .vrs file")
    try:
        provider = data_provider.create_vrs_data_provider(str(path))
    # The bindings raise subclasses of RuntimeError of many kinds.
    except Exception as error:
        raise DataError(f"{path} cannot be read as VRS: {error}") from None
    if provider is None or not provider.get_num_data(stream_id.StreamId(RGB)):
        raise DataError(f"{path} is truncated or has no RGB stream {RGB}; download it again")
    return provider


@dataclass(frozen=True, eq=False)
class VrsFootage(Footage):
    """The RGB stream of a VRS file, turned upright: Gen1 sensors are mounted sideways."""

    @staticmethod
    def open(path: Path) -> VrsFootage:
        """Return the footage of a VRS file, with its frame times.

        Raises:
            ConfigError: projectaria-tools is not installed.
            DataError: the file is missing, truncated, or has no RGB stream.
        """
        provider = open_vrs(path)
        times = _frame_times_us(provider)
        return VrsFootage(path, (times - times[0]) * 1e-6, *_upright_size(provider))

    def frames(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield frames, uint8 `[height, width, 3]` RGB, resized.

        `rows` are the frames' numbers; default: all. Without `width` or `height`, that side keeps
        its size.
        """
        provider = open_vrs(self.path)
        rgb = _projectaria("stream_id").StreamId(RGB)
        size = (width or self.width, height or self.height)
        for row in range(len(self.times_s)) if rows is None else rows:
            image = provider.get_image_data_by_index(rgb, int(row))[0].to_numpy_array()
            upright = np.rot90(image, -1) if _sideways(provider) else image
            yield np.asarray(Image.fromarray(upright).resize(size, Image.Resampling.BILINEAR))


def on_device_gaze(provider: Any, path: Path) -> CpfGaze:
    """Return the gaze that a Gen2 device computed and stored while recording (stream 373-1).

    `project_gaze` calls this for a recording without a gaze CSV.

    Raises:
        DataError: the recording has no such stream.
    """
    stream = _projectaria("stream_id").StreamId(ON_DEVICE_GAZE)
    if not provider.get_num_data(stream):
        raise DataError(
            f"{path} is a video without gaze: run MPS eye gaze on it and put its eye_gaze folder "
            "beside the file"
        )
    samples = [
        provider.get_eye_gaze_data_by_index(stream, i) for i in range(provider.get_num_data(stream))
    ]
    t = np.array([round(g.tracking_timestamp.total_seconds() * 1e6) for g in samples], np.int64)
    point = np.array([g.spatial_gaze_point_in_cpf for g in samples], np.float64)
    return CpfGaze(t, point, np.array([bool(g.spatial_gaze_point_valid) for g in samples]))


def project_gaze(vrs: Path, gaze_csv: Path | None) -> tuple[Gaze, NDArray[np.float64]]:
    """Return gaze in the upright RGB image, and the frame times in seconds from the first frame.

    Without `gaze_csv`, the gaze that a Gen2 device stored in the VRS is used. Points behind the
    camera or off the sensor are OUT_OF_RANGE.

    Raises:
        ConfigError: projectaria-tools is not installed.
        DataError: a file cannot be read, or there is no gaze.
    """
    provider = open_vrs(vrs)
    cpf = read_mps(gaze_csv) if gaze_csv else on_device_gaze(provider, vrs)
    calibration = provider.get_device_calibration()
    camera = calibration.get_camera_calib("camera-rgb")
    to_camera = (
        calibration.get_transform_device_sensor("camera-rgb").inverse()
        @ calibration.get_transform_device_cpf()
    )
    # Project at the sensor's size and scale afterwards, see projectaria_tools #111.
    width, height = (int(side) for side in camera.get_image_size())
    x, y = np.full(len(cpf.t_us), -1.0), np.full(len(cpf.t_us), -1.0)
    for i in np.flatnonzero(cpf.valid):
        point = cpf.point[i]
        pixel = camera.project(np.asarray(to_camera @ point, np.float64).reshape(3))
        if pixel is None:
            continue
        if _sideways(provider):
            x[i], y[i] = (height - 1 - pixel[1]) / height, pixel[0] / width
        else:
            x[i], y[i] = pixel[0] / width, pixel[1] / height
    frames_us = _frame_times_us(provider)
    t, frames_s = ((us - frames_us[0]) * 1e-6 for us in (cpf.t_us, frames_us))
    return Gaze.build(str(gaze_csv or vrs), t, x, y, tracked=cpf.valid), frames_s


def _frame_times_us(provider: Any) -> NDArray[np.float64]:
    domain = _projectaria("sensor_data").TimeDomain.DEVICE_TIME
    stream = _projectaria("stream_id").StreamId(RGB)
    return np.array(provider.get_timestamps_ns(stream, domain), np.float64) / 1e3


def _sideways(provider: Any) -> bool:
    return not str(provider.get_device_version()).endswith("Gen2")


def _upright_size(provider: Any) -> tuple[int, int]:
    camera = provider.get_device_calibration().get_camera_calib("camera-rgb")
    width, height = (int(side) for side in camera.get_image_size())
    return (height, width) if _sideways(provider) else (width, height)
