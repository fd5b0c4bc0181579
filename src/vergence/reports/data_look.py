"""The page of `vergence data look`: people's gaze or eye images, measured and drawn.

Used by `cli.data_look`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from vergence.core.federation import Federation
from vergence.core.files import write_text
from vergence.core.naming import by_key
from vergence.core.optional import import_optional
from vergence.data import fixations, gaze_quality
from vergence.data.gaze_tracks import GazeTrack
from vergence.errors import ConfigError, printable
from vergence.reports.plots import gaze_pictures
from vergence.reports.plots.gaze_pictures import Tile
from vergence.results.layout import number

MOST_PEOPLE, MOST_PICTURES, MOST_ROWS = 60, 24, 200
"""Most people and pictures that a page draws, and most recordings that it lists."""


def look_at_gaze(tracks: Sequence[GazeTrack]) -> dict[str, Any]:
    """Measure and draw people's gaze; return values for the page."""
    library, missing = None, ""
    if not all(track.only_fixations for track in tracks):
        try:
            library = import_optional("pymovements", "the detection of fixations", "look")
        except ConfigError as error:
            missing = str(error)
    tracks = sorted(tracks, key=lambda t: t.person)
    by_person = by_key((t.person, t) for t in tracks)
    by_picture = by_key((t.key if t.picture is not None else "", t) for t in tracks)
    single = [(t.id, gaze_quality.quality([t])) for t in by_picture.pop("", [])]
    people = []
    for own in by_person.values():
        found = [fixations.fixations_of(track, library) for track in own]
        people.append(
            {
                "quality": gaze_quality.quality(own),
                "precision": fixations.precision(own),
                "fixations": fixations.summaries(own, found),
                "tiles": _tiles(own, found) if len(people) < MOST_PEOPLE else [],
                "gaps": [
                    (g.t_s, *gaze_quality.gaps(g.t_s, g.valid)) for g in [t.gaze for t in own]
                ],
            }
        )
    most = sorted(by_picture.values(), key=len, reverse=True)[:MOST_PICTURES]
    return {
        "people": people,
        "offsets": gaze_quality.offsets(tracks),
        "pictures": [gaze_pictures.heat(f"{t[0].id}, {len(t)} viewings", t) for t in most],
        "recordings": sorted(single, key=lambda row: row[1].valid)[:MOST_ROWS],
        "missing": missing,
    }


def look_at_eyes(federation: Federation) -> dict[str, Any]:
    """Measure and draw angles of eye images with `gaze`; return values for the page."""
    eyes = []
    for person, splits in federation.people.items():
        parts = [part.columns for part in vars(splits).values() if len(part)]
        # Columns hold (pitch, yaw) in radians.
        deg = np.degrees(np.concatenate([p["gaze"].numpy() for p in parts]))[:, ::-1]
        images = np.concatenate([p["image"].numpy() for p in parts])
        tiles = [gaze_pictures.angles(deg), gaze_pictures.patches(images)]
        ranges = np.percentile(deg, (5, 50, 95), 0).T.tolist()
        eyes.append((person, len(deg), ranges, tiles if len(eyes) < MOST_PEOPLE else []))
    return {"eyes": eyes}


def write_page(path: Path, **values: Any) -> None:
    """Write the page: one HTML file that needs no network.

    Raises:
        PartialRun: the file cannot be written.
    """
    environment = Environment(
        loader=PackageLoader("vergence.reports"),
        # Names of people and files are of others: none may become HTML of the page.
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    constants = vars(gaze_quality) | vars(fixations) | vars(gaze_pictures)
    values = {"eyes": [], "people": [], "number": number, "constants": constants, **values}
    write_text(path, environment.get_template("data_look.html").render(values))


def _tiles(own: Sequence[GazeTrack], marks: Sequence[dict[str, fixations.Fixations]]) -> list[Tile]:
    """Draw one person's gaze on frames of the longest recording, or on three pictures."""
    longest = max(own, key=lambda track: int(track.gaze.valid.sum()))
    if longest.picture is None:
        return [*gaze_pictures.moments(longest), gaze_pictures.heat("all gaze", own)]
    rows = np.unique(np.linspace(0, len(own) - 1, 3).round().astype(int)).tolist()
    # The library's fixations come after the maker's.
    last = [next(reversed(marks[row].values()), np.zeros((0, 4))) for row in rows]
    return [gaze_pictures.path_on(own[row], f) for row, f in zip(rows, last, strict=True)]
