"""Presets: what makers' exports call their columns, and where that is written.

A preset is a named set of options of the data sets `gaze_table` and `stimuli`. Where a maker has
changed its names there are several sets of columns, and the first that a file has is taken. Exports
that are more than one table (scene video, frame times, camera) are read by the data set of their
own, named in `reader`. Names were taken from the pages in `source`; no original files of
`tobii_pro_lab`, `eyelink_asc`, `eyelink_fixation_report`, `gazepoint` and `tobii_glasses3` were at
hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vergence.data.gaze_video.gaze_columns import GazeColumns

PresetName = Literal[
    "",
    "pupil_player",
    "pupil_neon",
    "tobii_glasses3",
    "tobii_pro_lab",
    "eyelink_asc",
    "eyelink_fixation_report",
    "gazepoint",
    "aria_mps",
]


DACS = ("DACS px", "DACS px", "px", "px")
OLD_DACS = (" (DACSpx)", " (DACSpx)", "", "")
"""What follows the names of the picture's edges on the screen."""


@dataclass(frozen=True)
class GazePreset:
    """Options that fit a maker's export.

    Attributes:
        title: the export, in words.
        data: the data set that reads it.
        source: the page or repository where the format is described.
        files: the pattern of the tables' paths.
        columns: sets of columns, tried in this order; none where a reader of its own does it.
        known_by: a name of a file, or names of columns, that no other export has.
        place: where gaze counts from, see `stimuli`; "" = the files do not tell.
        reader: the data set whose reader is used.
    """

    title: str
    data: Literal["gaze_table", "stimuli"]
    source: str
    files: str
    columns: tuple[GazeColumns, ...] = ()
    known_by: tuple[str, ...] = ()
    place: str = ""
    reader: str = ""


def _pro_lab() -> tuple[GazeColumns, ...]:
    """Sets of columns of Tobii Pro Lab, old and new, the picture's own coordinates first.

    Time was in milliseconds and is in microseconds today. A medium is a file; a stimulus is what
    the timeline calls it.
    """
    shown = "Presented Media"
    edges = ("position X", "position Y", "width", "height")
    new = (f"{shown} {edge} [{unit}]" for edge, unit in zip(edges, DACS, strict=True))
    old = (f"{shown} {edge}{unit}" for edge, unit in zip(edges, OLD_DACS, strict=True))
    places: dict[str, tuple[str, ...]] = {
        "Gaze point X [MCS norm]": (),
        "Gaze point X (MCSnorm)": (),
        "Gaze point X [MCS px]": (),
        "Gaze point X [DACS px]": tuple(new),
        "Gaze point X": tuple(old),
    }
    return tuple(
        GazeColumns(
            t="Recording timestamp",
            x=x,
            y=x.replace(" X", " Y"),
            unit="fraction" if "norm" in x else "px",
            t_unit="auto",
            event="Eye movement type",
            fixation="Eye movement type index",
            person="Participant name",
            stimulus=stimulus,
            trial="Recording name",
            media=media,
            rows=("Sensor", "Eye Tracker"),
            missing=(-1.0,),
        )
        for x, media in places.items()
        for stimulus in (f"{shown} name", "Presented Stimulus name")
    )


PRESETS: dict[str, GazePreset] = {
    "pupil_player": GazePreset(
        "Pupil Player export (Pupil Core, Invisible)",
        "gaze_table",
        "https://docs.pupil-labs.com/core/software/pupil-player",
        "**/gaze_positions.csv",
        known_by=("gaze_timestamp", "world_index", "norm_pos_x"),
        reader="pupil",
    ),
    "pupil_neon": GazePreset(
        "Pupil Cloud time series with scene video (Neon, Invisible)",
        "gaze_table",
        "https://docs.pupil-labs.com/neon/data-collection/data-format",
        "**/gaze.csv",
        known_by=("timestamp [ns]", "gaze x [px]", "gaze y [px]"),
        reader="pupil",
    ),
    "tobii_glasses3": GazePreset(
        "Tobii Pro Glasses 3 recording",
        "gaze_table",
        "https://github.com/tobiipro/g3pylib",
        "**/gazedata.gz",
        reader="tobii",
    ),
    "aria_mps": GazePreset(
        "Project Aria MPS eye gaze",
        "gaze_table",
        "https://facebookresearch.github.io/projectaria_tools/docs/data_formats/mps/mps_eye_gaze",
        "**/*eye_gaze.csv",
        known_by=("tracking_timestamp_us", "pitch_rads_cpf"),
        reader="aria",
    ),
    "tobii_pro_lab": GazePreset(
        "Tobii Pro Lab data export (screen project)",
        "stimuli",
        "https://gazeplotter.com/docs/upload-data/tobii-pro-lab and the Tobii Pro Lab user manual, "
        "appendix on the data export",
        "**/*.tsv",
        _pro_lab(),
        ("Recording timestamp", "Participant name"),
        "picture",
    ),
    "eyelink_asc": GazePreset(
        "EyeLink ASC file (edf2asc)",
        "stimuli",
        "EyeLink 1000 Plus user manual, section 4.9 (The ASC File Format): "
        "https://manualshive.com/en/manual/eyelink/1000-plus/2457587?page=128; EyeLink Data Viewer "
        "user manual, Protocol for EyeLink Data to Viewer Integration (TRIALID, !V IMGLOAD)",
        "**/{person}.asc",
        (GazeColumns(unit="px", t_unit="ms"),),
    ),
    "eyelink_fixation_report": GazePreset(
        "EyeLink Data Viewer fixation report",
        "stimuli",
        "EyeLink Data Viewer user manual, Fixation Report: "
        "https://manualzilla.com/doc/6905659/eyelink-data-viewer-user-s-manual",
        "**/*.txt",
        (
            GazeColumns(
                t="CURRENT_FIX_START",
                x="CURRENT_FIX_X",
                y="CURRENT_FIX_Y",
                unit="px",
                t_unit="ms",
                fixation="CURRENT_FIX_INDEX",
                person="RECORDING_SESSION_LABEL",
                trial="TRIAL_INDEX",
            ),
        ),
        ("CURRENT_FIX_X", "CURRENT_FIX_Y"),
    ),
    "gazepoint": GazePreset(
        "Gazepoint Analysis export",
        "stimuli",
        "https://pmc.ncbi.nlm.nih.gov/articles/PMC7994908/table/Tab2/ and "
        "https://cran.r-project.org/web/packages/gp3tools/index.html",
        "**/{person}_all_gaze.csv",
        (
            GazeColumns(
                t="TIME",
                x="FPOGX",
                y="FPOGY",
                unit="fraction",
                t_unit="s",
                valid="FPOGV",
                fixation="FPOGID",
                stimulus="MEDIA_NAME",
            ),
        ),
        ("FPOGX", "FPOGY", "FPOGV"),
    ),
}
assert set(PRESETS) == set(get_args(PresetName)) - {""}
