"""Numbers of clips in the FedCPF paper, compared with those in the official lists.

Used by `data.gaze_video.ego4d` and `data.gaze_video.egtea`.

Source: FedCPF, section 3.1 (6,456 + 8,140 clips for training, 1,404 + 2,035 for testing).
"""

from __future__ import annotations

from vergence.data.io.checks import Check

STATED = {"egtea": ("EGTEA Gaze+", 6456, 1404), "ego4d": ("Ego4D", 8140, 2035)}


def paper_counts(
    name: str, lists: dict[str, int], pieces: dict[str, int] | None = None, tried: str = ""
) -> Check:
    """Return a line of `vergence data check` that states the paper's numbers of clips.

    The line never fails, because no tried rule on the official lists gives these numbers.

    Args:
        name: the data set, egtea or ego4d.
        lists: "train" and "test" -> number of clips in the official list, for the lists that are
            there.
        pieces: number of whole stretches of 5 s in these clips, by list; None: not stated.
        tried: a remark on the rules that come nearest to the paper's numbers.
    """
    # No rule on the official lists that was tried gives the paper's counts.
    _, train, test = STATED[name]
    counts = _both(lists) + (f"; whole 5 s in them: {_both(pieces)}" if pieces else "")
    nearest = f" ({tried})" if tried else ""
    other, more, most = next(row for key, row in STATED.items() if key != name)
    return Check(
        "clips of the FedCPF paper (told, not checked)",
        f"official lists: {counts}" if lists else "no official lists here",
        f"{train:,} train, {test:,} test, of a choice that the paper does not state",
        True,
        f"cannot be met: no rule on the official lists that was tried gives both numbers{nearest}; "
        f"with {more:,} and {most:,} of {other} the paper has {train + more:,} and {test + most:,}",
    )


def _both(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {part}" for part, number in counts.items())
