"""`vergence video`: videos made from videos.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from vergence.console import out
from vergence.errors import ConfigError
from vergence.experiment.trust import ask_for_trust

video = App(name="video", help="Videos made from videos.")


@video.command
@ask_for_trust
def summarise(
    video: Path,
    summary: Path,
    *,
    budget: str = "15%",
    model: Path | None = None,
    person: str | None = None,
) -> None:
    """Cut a video to its best shots within a budget; everything stays on this machine.

    Writes the shots with their scores (.json) and a contact sheet (.png) beside the summary.

    Args:
        video: a video that FFmpeg can decode.
        summary: the new video (.mp4).
        budget: length of the summary: a share of the frames such as 15%, or a time such as 20s.
        model: a run of task `summary`, which scores the shots; by default a shot's score is its
            gain in coverage of the video.
        person: score as this participant of the run; default: as a newcomer.
    """
    from vergence.video.shot_scores import load_scorer
    from vergence.video.summarise import interval_s
    from vergence.video.summarise import summarise as cut

    if model is None:
        if person is not None:
            raise ConfigError("--person is a participant of a run: give --model")
        result = cut(video, summary, budget)
    else:
        by = f"{model.name} as {person}" if person else model.name
        result = cut(video, summary, budget, load_scorer(model, person), by)
    frames, step = len(result.frames), interval_s(result.video)
    out.print(
        f"summary: {summary} ({frames} of {len(result.video.times_s)} frames, the budget allows "
        f"{result.room}; {frames * step:.1f} s, {result.in_summary.sum()} of "
        f"{len(result.in_summary)} shots)",
        soft_wrap=True,
        highlight=False,
    )
    out.print(f"shots:   {summary.with_suffix('.json')}", soft_wrap=True, highlight=False)
    out.print(f"sheet:   {summary.with_suffix('.png')}", soft_wrap=True, highlight=False)
