"""The commands that turn a video into another one."""

from __future__ import annotations

from pathlib import Path

from vergence.app.screen import out


def summarise(video: Path, summary: Path, *, budget: str = "15%") -> None:
    """Cut a video to its best shots within a budget; everything stays on this machine.

    Writes the shots with their scores (.json) and a contact sheet (.png) beside the summary.

    Args:
        video: any video.
        summary: where it goes (.mp4).
        budget: a share of the frames such as 15%, or a length such as 20s.
    """
    from vergence.app.summarise import interval_s
    from vergence.app.summarise import summarise as cut

    found = cut(video, summary, budget)
    frames, step = len(found.frames), interval_s(found.video)
    out.print(
        f"summary: {summary} ({frames} of {len(found.video.times_s)} frames, the budget allows "
        f"{found.room}; {frames * step:.1f} s, {found.kept.sum()} of {len(found.kept)} shots)",
        soft_wrap=True,
        highlight=False,
    )
    out.print(f"shots:   {summary.with_suffix('.json')}", soft_wrap=True, highlight=False)
    out.print(f"sheet:   {summary.with_suffix('.png')}", soft_wrap=True, highlight=False)
