"""Exports of eye trackers as their makers describe them, with made-up content and usual faults.

`python -m tests.data.fabricated_exports DIR` writes all of them. There is one function for each
preset of `vergence.data.gaze_video.gaze_presets`, which names the pages that the forms were taken
from. Each writes a folder for people `p1`, `p2`, ...; its docstring says what is wrong in it, which
is what a reader has to live with: blinks, gaze outside the picture, other encodings and decimal
signs, samples out of order. Beside the tables of gaze lie the files that makers and labs put there:
tables of fixations, saccades, events and participants, videos of the eyes, notes, copies.
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


def beside(folder: Path, files: dict[str, str | bytes]) -> None:
    """Files that a maker or a lab puts beside tables of gaze."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


LAB = {
    "participants.csv": "id;age;sex\np1;31;f\np2;28;m\n",
    "notes.txt": "p2 wore lenses.\n",
    "._notes.txt": b"\x00\x05\x16\x07",
    ".DS_Store": b"\x00\x00\x00\x01Bud1",
    "Thumbs.db": b"\xd0\xcf\x11\xe0",
    "~$participants.csv": b"\x05anna",
}


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
        tables = {
            "fixations.csv": "id,start_timestamp,duration,norm_pos_x,norm_pos_y,confidence\n"
            + "".join(f"{k},{4000.25 + k:.2f},980,0.5,0.5,0.9\n" for k in range(int(SECONDS))),
            "blinks.csv": "id,start_timestamp,duration,end_timestamp,confidence\n",
            "pupil_positions.csv": "pupil_timestamp,world_index,eye_id,confidence,norm_pos_x\n",
            "export_info.csv": "key,value\nPlayer Software Version,3.5.1\n",
        }
        beside(folder, tables)
        beside(root / f"p{p + 1}", {"info.player.json": "{}", "eye0_timestamps.npy": b"\x93NUMPY"})


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
        tables = {
            "fixations.csv": "section id,recording id,fixation id,start timestamp [ns],"
            "end timestamp [ns],duration [ms],fixation x [px],fixation y [px]\n",
            "blinks.csv": "section id,recording id,blink id,start timestamp [ns]\n",
            "saccades.csv": "section id,recording id,saccade id,start timestamp [ns]\n",
            "imu.csv": "section id,recording id,timestamp [ns],gyro x [deg/s]\n",
            "events.csv": "recording id,timestamp [ns],name,type\nr,1,recording.begin,recording\n",
            "labels.csv": "recording id,timestamp [ns],name\n",
            "info.json": "{}",
        }
        beside(folder, tables)
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
        scene(folder / "eyesvideo.mp4", 2)
        empty = gzip.compress(b"")
        beside(folder, {"imudata.gz": empty, "eventdata.gz": empty, "meta/participant": "{}"})


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
        mps = folder / "mps_recording_vrs"
        write_csv(mps / "eye_gaze" / "general_eye_gaze.csv", names, rows)
        tables = {
            "eye_gaze/summary.json": "{}",
            "slam/closed_loop_trajectory.csv": "graph_uid,tracking_timestamp_us,tx_world_device\n",
        }
        beside(mps, tables)


def tobii_pro_lab(root: Path) -> None:
    """UTF-16, tabs, decimal commas, microseconds; -1 for lost eyes, rows of the mouse between.

    Each sample of a fixation has the place of the whole fixation beside its own.
    """
    names = pictures(root / "stimuli")
    header = [
        *("Recording timestamp [μs]", "Sensor", "Participant name", "Recording name", "Event"),
        *("Gaze point X [DACS px]", "Gaze point Y [DACS px]", "Presented Stimulus name"),
        *("Presented Media width [px]", "Presented Media height [px]"),
        *("Presented Media position X [DACS px]", "Presented Media position Y [DACS px]"),
        *("Gaze point X [MCS norm]", "Gaze point Y [MCS norm]"),
        *("Eye movement type", "Eye movement type index"),
        *("Fixation point X [MCS norm]", "Fixation point Y [MCS norm]"),
    ]
    rows = ["\t".join(header)]
    for p in range(PEOPLE):
        t = 12_345_678
        for number, name in enumerate(["Eyetracker Calibration", *names]):
            media = ("640", "480", "320", "272")
            who = ("Eye Tracker", f"p{p + 1}", "Recording1")
            rows.append("\t".join((str(t), "", *who[1:], "ImageStimulusStart", *[""] * 13)))
            seen = look(10 * p + number, 2 * HZ)
            for i, (x, y) in enumerate(seen):
                t += 1_000_000 // HZ
                place = [f"{320 + 640 * x:.0f}", f"{272 + 480 * y:.0f}"]
                norm = [f"{v:.4f}".replace(".", ",") for v in (x, y)]
                kind = ["Fixation", str(1 + i // HZ)] if i % HZ else ["Saccade", str(1 + i // HZ)]
                own = [k for k in range(i // HZ * HZ + 1, i // HZ * HZ + HZ) if k % 13 != 4]
                whole = (
                    [f"{v:.4f}".replace(".", ",") for v in seen[own].mean(0)]
                    if i % HZ
                    else [""] * 2
                )
                if i % 13 == 4:
                    place, norm, kind = ["", ""], ["-1", "-1"], ["EyesNotFound", "1"]
                    whole = ["", ""]
                cells = (str(t), *who, "", *place, name, *media, *norm, *kind, *whole)
                rows.append("\t".join(cells))
                if i % 10 == 0:
                    mouse = (str(t + 3), "Mouse", *who[1:], "", *[""] * 2, name, *media, *[""] * 6)
                    rows.append("\t".join(mouse))
    (root / "Data export - project.tsv").write_bytes("\r\n".join([*rows, ""]).encode("utf-16"))
    metrics = (
        "Recording\tParticipant\tTOI\tInterval\tMedia\tAOI\tTotal_duration_of_whole_fixations\n"
    )
    beside(root, {"Metrics - project.tsv": metrics.encode("utf-16"), **LAB})


def tobii_pro_lab_glasses(root: Path) -> None:
    """One table of all recordings of a glasses project, tabs; a video for each recording.

    Rows of the gyroscope between, gaze mapped to a snapshot, no column of presented media.
    """
    header = [
        *("Recording timestamp [μs]", "Sensor", "Participant name", "Recording name", "Event"),
        *("Gaze point X", "Gaze point Y", "Recording media name", "Recording media width"),
        *("Mapped gaze X [shelf]", "Mapped gaze Y [shelf]"),
        *("Eye movement type", "Eye movement type index", "Fixation point X", "Fixation point Y"),
    ]
    rows = ["\t".join(header)]
    for p in range(PEOPLE):
        scene(root / f"Recording{p + 1}.mp4")
        who = (f"p{p + 1}", f"Recording{p + 1}")
        for i, (x, y) in enumerate(look(p, int(SECONDS * HZ))):
            place = [f"{64 * x:.2f}", f"{48 * y:.2f}"] if i % 29 != 8 else ["", ""]
            kind = ("Fixation", str(1 + i // HZ)) if place[0] else ("EyesNotFound", "1")
            cells = (str(50_000 * i), "Eye Tracker", *who, "", *place, "scene", "64", "300", "200")
            rows.append("\t".join((*cells, *kind, *place)))
            rows.append("\t".join((str(50_000 * i + 7), "Gyroscope", *who, *[""] * 11)))
    (root / "shop Data export.tsv").write_text("\n".join([*rows, ""]), encoding="utf-8-sig")
    beside(root, LAB)


def gazepoint(root: Path) -> None:
    """A file per person with a comma at the end of every line; time begins anew with each media.

    FPOG is the mean of the fixation so far and something else between fixations (FPOGV is 0);
    NAME_fixations.csv beside it has the last row of each fixation.
    """
    names = pictures(root / "stimuli")
    header = (
        "MEDIA_ID,MEDIA_NAME,CNT,TIME(2024/01/31 12:00:00.000),TIMETICK(f=10000000),FPOGX,FPOGY,"
        "FPOGS,FPOGD,FPOGID,FPOGV,BPOGX,BPOGY,BPOGV,USER,AOI,SACCADE_MAG,SACCADE_DIR,"
    )
    for p in range(PEOPLE):
        rows, fixations = [], []
        for number, name in enumerate(names):
            made = look(10 * p + number, 2 * HZ)
            made[::HZ] = made[HZ // 2 :: HZ] / 2 + 0.2  # the eye is still on its way
            for i, (x, y) in enumerate(made):
                begin, step = i // HZ * HZ, i % HZ
                ended = step >= HZ - 4
                fpog = made[i] if ended else made[begin : i + 1].mean(0)
                place = [f"{v:.5f}" for v in (*fpog, x, y)]
                time = (f"{i / HZ:.5f}", 6_962_163_888 + i)
                fixation = (f"{begin / HZ:.5f}", f"{step / HZ:.5f}", 1 + i // HZ, int(not ended))
                media = (number, name.removesuffix(".png"), i)
                rows.append((*media, *time, *place[:2], *fixation, *place[2:], 1, "", "", 0, 0, ""))
                fixations += [rows[-1]] if step == HZ - 5 else []
        write_csv(root / "result" / f"User {p + 1}_all_gaze.csv", header, rows)
        write_csv(root / "result" / f"User {p + 1}_fixations.csv", header, fixations)
    summary = (
        "Gazepoint Analysis,v5.3.0\nProcessed on,Wed Jan 31 2024\n\nAOI Summary\nMedia ID, Media\n"
    )
    beside(root / "result", {"Data_Summary_export_01-31-24-12.00.00.csv": summary})
    beside(root, LAB)


def imotions(root: Path) -> None:
    """Lines of `#` above the header, a table per respondent; rows of another sensor between."""
    names = pictures(root / "Stimuli")
    for p in range(PEOPLE):
        lines = ["#INFO", "#iMotions,9.3", f"#Respondent Name,R{p + 1}", "#METADATA", "#DATA"]
        lines.append("Row,Timestamp,EventSource,SlideEvent,SourceStimuliName,Gaze X,Gaze Y,GSR")
        t = 0
        for number, name in enumerate(names, 1):
            for x, y in look(10 * p + number, 2 * HZ):
                t += 1000 // HZ
                place = f"{320 + 640 * x:.2f},{272 + 480 * y:.2f}"
                place = "-1,-1" if t % 850 == 0 else place
                lines.append(f"{len(lines)},{t},ET,,{name[:-4]},{place},")
                lines.append(f"{len(lines)},{t + 3},GSR,,{name[:-4]},,,0.4")
        beside(root / "Sensor Data", {f"00{p + 1}_R{p + 1}.csv": "\n".join([*lines, ""])})
    beside(root, {"Respondents.csv": "Name,Age,Gender\nR1,20,F\nR2,22,M\n"})


def tobii_studio(root: Path) -> None:
    """UTF-16 with a tab at the end of every line, one table per recording, names without spaces."""
    names = pictures(root / "Media")
    header = (
        "ExportDate\tParticipantName\tRecordingName\tMediaName\tRecordingTimestamp\tFixationIndex\t"
        "GazeEventType\tFixationPointX (MCSpx)\tFixationPointY (MCSpx)\tGazePointX (MCSpx)\t"
        "GazePointY (MCSpx)\t"
    )
    for p in range(PEOPLE):
        rows, t = [header], 0
        who = f"01/02/2012\tP0{p + 1}\tRec 0{p + 1}"
        for number, name in enumerate(names, 1):
            made = look(10 * p + number, 2 * HZ) * PICTURE_SIZE
            for i, (x, y) in enumerate(made):
                t += 1000 // HZ
                mean = made[i // HZ * HZ :][:HZ].mean(0)
                place = f"{x:.2f}\t{y:.2f}" if i % 15 else "\t"
                cells = f"{name}\t{t}\t{1 + i // HZ}\tFixation\t{mean[0]:.0f}\t{mean[1]:.0f}"
                rows.append(f"{who}\t{cells}\t{place}\t")
        path = root / f"Study_New test_Rec 0{p + 1}_Segment 1.tsv"
        path.write_bytes("\r\n".join(rows).encode("utf-16"))


def smi_begaze(root: Path) -> None:
    """Lines of `##` above the header, tabs; a table per person, rows of messages with few cells."""
    names = pictures(root / "stimuli")
    header = (
        "Time\tType\tTrial\tL POR X [px]\tL POR Y [px]\tR POR X [px]\tR POR Y [px]\tTiming\t"
        "L Event Info\tStimulus"
    )
    for p in range(PEOPLE):
        lines = ["## [BeGaze]", f"## Subject:\tp{p + 1}", "## Sample Rate:\t20", "##", header]
        t = 7_441_672_318
        for trial, name in enumerate(names, 1):
            lines.append(f"{t}\tMSG\t{trial}\t# Message: {name}")
            for i, (x, y) in enumerate(look(10 * p + trial, 2 * HZ)):
                t += 1_000_000 // HZ
                left = [320 + 640 * x - 2, 272 + 480 * y]
                right = [left[0] + 4, left[1]]
                lost = i % 15 == 2
                sides = [0, 0, 0, 0] if lost else [*left, *right]
                place = "\t".join(f"{v:.2f}" for v in sides)
                kind = "Blink" if lost else "Fixation" if i % HZ else "Saccade"
                lines.append(f"{t}\tSMP\t{trial}\t{place}\t0\t{kind}\t{name}")
        path = root / f"p{p + 1} Samples.txt"
        path.write_bytes("\r\n".join([*lines, ""]).encode())
        events = ["## [BeGaze]", "Event Type\tTrial\tNumber\tStart\tEnd\tDuration"]
        beside(root, {f"p{p + 1} Events.txt": "\r\n".join(events)})
    beside(root, LAB)


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
    saccades = "RECORDING_SESSION_LABEL\tTRIAL_INDEX\tCURRENT_SAC_INDEX\tCURRENT_SAC_AMPLITUDE\r\n"
    beside(root, {"saccades.txt": saccades, **LAB})


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
        beside(
            root, {f"p{p + 1}.edf": b"SR_RESEARCH\x00", f"p{p + 1}_log.txt": "trial\tkey\n1\ta\n"}
        )
    beside(root, LAB)


EXPORTS = {
    function.__name__: function
    for function in (
        *(pupil_player, pupil_neon, tobii_glasses3, aria_mps),
        *(tobii_pro_lab, tobii_pro_lab_glasses, tobii_studio, gazepoint, smi_begaze, imotions),
        *(eyelink_fixation_report, eyelink_asc),
    )
}

if __name__ == "__main__":
    for name, write in EXPORTS.items():
        write(Path(sys.argv[1]) / name)
