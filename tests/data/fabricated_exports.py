"""Exports of eye trackers as their makers describe them, with made-up content and usual faults.

`python -m tests.data.fabricated_exports DIR` writes all of them. There is one function for each
preset of `vergence.data.gaze_video.gaze_presets`, which names the pages that the forms were taken
from. Each writes a folder for people `p1`, `p2`, ...; its docstring says what is wrong in it, which
is what a reader has to live with: blinks, gaze outside the picture, other encodings and decimal
signs, samples out of order.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.footage import write_csv, write_video

PEOPLE, SECONDS, HZ, FPS = 2, 36.0, 20, 5
FISHEYE = (80.0, 60.0)
"""Degrees across and down that the made-up Aria video shows."""
SCREEN = (1280, 1024)
"""Pixels of the made-up screen."""
PICTURES, PICTURE_SIZE = 8, (640, 480)


def look(seed: int, count: int) -> np.ndarray:
    """Places of `count` samples as fractions of a picture: one place for a second, in turn."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(0.2, 0.8, (count // HZ + 1, 2))
    return places[np.arange(count) // HZ] + rng.normal(0, 0.004, (count, 2))


def scene(path: Path, seconds: float = SECONDS) -> np.ndarray:
    """A scene video, and its frame times."""
    times = np.arange(int(seconds * FPS)) / FPS
    write_video(path, times)
    return times


def pictures(folder: Path, count: int = PICTURES) -> list[str]:
    """Pictures of one colour each, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"scene_{i:02d}.png" for i in range(count)]
    for i, name in enumerate(names):
        Image.new("RGB", PICTURE_SIZE, (20 * i, 90, 200 - 20 * i)).save(folder / name)
    return names


def equidistant(x: float, y: float) -> tuple[float, float]:
    """Yaw to the left and pitch upwards (radians) of a place in the picture of a fisheye lens."""
    right, down = np.radians((x - 0.5) * FISHEYE[0]), np.radians((y - 0.5) * FISHEYE[1])
    stretch = np.tan(np.hypot(right, down)) / np.hypot(right, down)
    return float(-np.arctan(right * stretch)), float(-np.arctan(down * stretch))


def pupil_player(root: Path) -> None:
    """Seconds of Pupil's clock, origin bottom-left; low confidence in blinks, rows out of order."""
    for p in range(PEOPLE):
        folder = root / f"p{p + 1}" / "exports" / "000"
        world = 4000.25 + scene(folder / "world.mp4")
        write_csv(
            folder / "world_timestamps.csv",
            "# timestamps [seconds],pts",
            [(f"{t:.6f}", i) for i, t in enumerate(world)],
        )
        t = 4000.25 + np.arange(int(SECONDS * HZ)) / HZ
        xy = look(p, len(t))
        rows = [
            (f"{t[i]:.6f}", i * FPS // HZ, 0.1 if i % 40 == 7 else 0.95, x, 1 - y, "eye")
            for i, (x, y) in enumerate(xy)
        ]
        rows[30], rows[31] = rows[31], rows[30]
        write_csv(
            folder / "gaze_positions.csv",
            "gaze_timestamp,world_index,confidence,norm_pos_x,norm_pos_y,base_data",
            rows,
        )


def pupil_neon(root: Path) -> None:
    """UTC nanoseconds, pixels of 1600 x 1200; glasses not worn, blinks, gaze off the picture."""
    begin = 1_700_000_000_123_456_789
    for p in range(PEOPLE):
        folder = root / f"p{p + 1}" / "recording-1a2b3c4d"
        ns = [begin + round(t * 1e9) for t in scene(folder / "1a2b3c4d_0.0-36.0.mp4")]
        write_csv(
            folder / "world_timestamps.csv",
            "section id,recording id,timestamp [ns]",
            [("s", "r", t) for t in ns],
        )
        rows = []
        for i, (x, y) in enumerate(look(p, int(SECONDS * HZ))):
            blink = 1 + i // 50 if i % 50 == 9 else None
            x = 1.2 if i % 61 == 0 else x
            stamp = begin + round(i / HZ * 1e9)
            fixation = None if i % HZ == 0 else 1 + i // HZ
            place = f"{x * 1600:.3f}", f"{y * 1200:.3f}"
            rows.append(("s", "r", stamp, *place, int(i % 97 != 0), fixation, blink, 0.1, 0.2))
        write_csv(
            folder / "gaze.csv",
            "section id,recording id,timestamp [ns],gaze x [px],gaze y [px],worn,fixation id,"
            "blink id,azimuth [deg],elevation [deg]",
            rows,
        )
        camera = {"camera_matrix": [[890, 0, 800], [0, 890, 600], [0, 0, 1]]}
        (folder / "scene_camera.json").write_text(json.dumps(camera))


def tobii_glasses3(root: Path) -> None:
    """Gzipped JSON lines; empty `data` where the eyes were lost, lines of other types between."""
    for p in range(PEOPLE):
        folder = root / f"p{p + 1}" / "20240131T120000Z"
        scene(folder / "scenevideo.mp4")
        lines = []
        for i, (x, y) in enumerate(look(p, int(SECONDS * HZ))):
            eyes = {"gaze2d": [round(x, 4), round(y, 4)], "gaze3d": [1.0, 2.0, 600.0]}
            data = {} if i % 33 == 5 else {**eyes, "eyeleft": {"pupildiameter": 3.1}}
            lines.append(json.dumps({"type": "gaze", "timestamp": i / HZ, "data": data}))
            if i % 100 == 0:
                lines.append(json.dumps({"type": "event", "timestamp": i / HZ, "data": {}}))
        (folder / "gazedata.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        (folder / "recording.g3").write_text(json.dumps({"name": "x", "duration": SECONDS}))


def aria_mps(root: Path) -> None:
    """Angles in the central pupil frame (Gen1, of March 2024) beside an mp4, no VRS."""
    names = (
        "tracking_timestamp_us,left_yaw_rads_cpf,right_yaw_rads_cpf,pitch_rads_cpf,depth_m,"
        "left_yaw_low_rads_cpf,right_yaw_low_rads_cpf,pitch_low_rads_cpf,left_yaw_high_rads_cpf,"
        "right_yaw_high_rads_cpf,pitch_high_rads_cpf,session_uid"
    )
    for p in range(PEOPLE):
        folder = root / f"p{p + 1}"
        scene(folder / "recording.mp4")
        rows = []
        for i, (x, y) in enumerate(look(p, int(SECONDS * HZ))):
            yaw, pitch = equidistant(x, y)
            depth = 0.0 if i % 70 == 3 else 1.5
            rows.append((2_679_406_702 + i * 50_000, yaw, yaw, pitch, depth))
            rows[-1] += (0, 0, 0, 0, 0, 0, "9c1a")
        write_csv(folder / "mps_recording_vrs" / "eye_gaze" / "general_eye_gaze.csv", names, rows)


def tobii_pro_lab(root: Path) -> None:
    """UTF-16, tabs, decimal commas, microseconds; -1 for lost eyes, rows of the mouse between."""
    names = pictures(root / "stimuli")
    header = [
        *("Recording timestamp [μs]", "Sensor", "Participant name", "Recording name", "Event"),
        *("Gaze point X [DACS px]", "Gaze point Y [DACS px]", "Presented Stimulus name"),
        *("Presented Media width [px]", "Presented Media height [px]"),
        *("Presented Media position X [DACS px]", "Presented Media position Y [DACS px]"),
        *("Gaze point X [MCS norm]", "Gaze point Y [MCS norm]"),
        *("Eye movement type", "Eye movement type index"),
    ]
    rows = ["\t".join(header)]
    for p in range(PEOPLE):
        t = 0
        for number, name in enumerate(["Eyetracker Calibration", *names]):
            media = ("640", "480", "320", "272")
            who = ("Eye Tracker", f"p{p + 1}", "Recording1")
            rows.append("\t".join((str(t), "", *who[1:], "ImageStimulusStart", *[""] * 11)))
            for i, (x, y) in enumerate(look(10 * p + number, 2 * HZ)):
                t += 1_000_000 // HZ
                place = [f"{320 + 640 * x:.0f}", f"{272 + 480 * y:.0f}"]
                norm = [f"{v:.4f}".replace(".", ",") for v in (x, y)]
                kind = ["Fixation", str(1 + i // HZ)] if i % HZ else ["Saccade", str(1 + i // HZ)]
                if i % 13 == 4:
                    place, norm, kind = ["", ""], ["-1", "-1"], ["EyesNotFound", "1"]
                rows.append("\t".join((str(t), *who, "", *place, name, *media, *norm, *kind)))
                if i % 10 == 0:
                    mouse = (str(t + 3), "Mouse", *who[1:], "", *[""] * 2, name, *media, *[""] * 4)
                    rows.append("\t".join(mouse))
    (root / "Data export - project.tsv").write_bytes("\r\n".join([*rows, ""]).encode("utf-16"))


def gazepoint(root: Path) -> None:
    """A file per person with a comma at the end of every line; time begins anew with each media."""
    names = pictures(root / "stimuli")
    header = (
        "MEDIA_ID,MEDIA_NAME,CNT,TIME(2024/01/31 12:00:00.000),TIMETICK(f=10000000),FPOGX,FPOGY,"
        "FPOGS,FPOGD,FPOGID,FPOGV,BPOGX,BPOGY,BPOGV,"
    )
    for p in range(PEOPLE):
        rows = []
        for number, name in enumerate(names):
            for i, (x, y) in enumerate(look(10 * p + number, 2 * HZ)):
                lost = i % 11 == 6
                x = 1.31 if i % 19 == 18 else x
                place = (f"{x:.5f}", f"{y:.5f}")
                fixation = (0.1, 0.4, 1 + i // HZ, int(not lost))
                time = (f"{i / HZ:.5f}", 6_962_163_888 + i)
                rows.append((number, name, i, *time, *place, *fixation, *place, 1, ""))
        write_csv(root / f"User {p + 1}_all_gaze.csv", header, rows)


def eyelink_fixation_report(root: Path) -> None:
    """Tabs and Latin-1; a dot for what is missing, fixations off the screen, one shown twice."""
    names = pictures(root / "stimuli")
    header = (
        "RECORDING_SESSION_LABEL\tTRIAL_INDEX\tCURRENT_FIX_INDEX\tCURRENT_FIX_START\t"
        "CURRENT_FIX_END\tCURRENT_FIX_DURATION\tCURRENT_FIX_X\tCURRENT_FIX_Y\tCURRENT_FIX_PUPIL\t"
        "PREVIOUS_SAC_AMPLITUDE\tbild"
    )
    rows = [header]
    for p in range(PEOPLE):
        for trial, name in enumerate([*names, names[0]], 1):
            for i, (x, y) in enumerate(look(10 * p + trial, 6 * HZ)[::HZ], 1):
                px, py = SCREEN[0] / 2 + 640 * (x - 0.5), SCREEN[1] / 2 + 480 * (y - 0.5)
                px = -40.0 if i == 6 else px
                place = (".", ".") if i == 5 else (f"{px:.1f}", f"{py:.1f}")
                cells = (
                    f"jör{p + 1}",
                    trial,
                    i,
                    300 * i,
                    300 * i + 250,
                    251,
                    *place,
                    812,
                    ".",
                    name,
                )
                rows.append("\t".join(map(str, cells)))
    path = root / "fixations.txt"
    path.write_bytes("\r\n".join([*rows, ""]).encode("latin-1"))


def eyelink_asc(root: Path) -> None:
    """A file per person, left eye; blinks as dots, a practice trial without a picture."""
    names = pictures(root / "stimuli")
    for p in range(PEOPLE):
        lines = ["** CONVERTED FROM made_up.edf using edfapi", "** VERSION: EYELINK II 1", ""]
        t = 2_154_000
        for trial, name in enumerate(["", *names]):
            lines += [f"MSG\t{t} TRIALID {trial}", f"START\t{t} \tLEFT\tSAMPLES\tEVENTS"]
            lines.append(f"MSG\t{t} GAZE_COORDS 0.00 0.00 1279.00 1023.00")
            lines.append("SAMPLES\tGAZE\tLEFT\tRATE\t  20.00\tTRACKING\tCR\tFILTER\t2")
            lines.append(f"{t + 10}\t  639.5\t  511.5\t  784.0\t...")
            if name:
                place = f"CENTER images\\{name} 640 512 640 480"
                lines.append(f"MSG\t{t + 30} -10 !V IMGLOAD {place}")
            begin = t + 40
            for i, (x, y) in enumerate(look(10 * p + trial, 2 * HZ)):
                t = begin + i * 50
                px, py = 320 + 640 * x, 272 + 480 * y
                if i % HZ == 0:
                    lines.append(f"SFIX L   {t}")
                blink = i % 17 == 3
                eye = "   .\t   .\t    0.0" if blink else f"{px:7.1f}\t{py:7.1f}\t  784.0"
                lines.append(f"{t}\t{eye}\t...")
                if i % HZ == HZ - 1:
                    fixation = f"{t - 950}\t{t}\t951\t  {px:.1f}\t  {py:.1f}\t 784"
                    lines.append(f"EFIX L   {fixation}")
            lines += [
                f"MSG\t{t} TRIAL_RESULT 0",
                f"END\t{t} \tSAMPLES\tEVENTS\tRES\t  38.1\t  31.2",
            ]
            t += 500
        (root / f"p{p + 1}.asc").write_text("\n".join([*lines, ""]))


EXPORTS = {
    function.__name__: function
    for function in (
        *(pupil_player, pupil_neon, tobii_glasses3, aria_mps),
        *(tobii_pro_lab, gazepoint, eyelink_fixation_report, eyelink_asc),
    )
}

if __name__ == "__main__":
    for name, write in EXPORTS.items():
        write(Path(sys.argv[1]) / name)
