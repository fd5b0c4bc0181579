"""Splits by published lists of clips, and people grouped into a few clients as in a paper.

Used by `data.gaze_video.ego4d` and `data.gaze_video.egtea`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from vergence.core.federation import Federation
from vergence.core.naming import by_key
from vergence.data.gaze_video.recording import (
    CutRecordings,
    GazeWindow,
    Recording,
    WindowOptions,
    split_in_time,
    time_split,
    windows_on_one_clock,
)
from vergence.data.gaze_video.temporal_splits import TEST, TRAIN, VAL, hold_out
from vergence.data.io.checks import Check, Checks, need_file
from vergence.errors import DataError

GLC = "https://github.com/BolinLai/GLC, folder data"
"""Where the lists are published, for error messages."""
# Frame times are not exact: a window may begin or end half a frame outside its clip.
HALF_FRAME_S = 1 / 60


@dataclass(frozen=True)
class OfficialOptions(WindowOptions):
    """Options of data sets with published lists of clips for training and for testing.

    Attributes:
        split: "time": each person's windows are split in time. "official": the published lists say
            which clips are for training and which for testing. The last of each person's training
            windows are then for validation, at least `gap_s` after the others. `shares` then states
            only the ratio of training to validation.
        clients: number of clients among which people are divided; a client has all windows of its
            people. 0: each person is a client.
        deal_seed: seed of the random division of people among clients.
    """

    split: Literal["time", "official"] = "time"
    clients: Annotated[int, Ge(0)] = 0
    deal_seed: Annotated[int, Ge(0)] = 0

    unit: ClassVar[str] = "people"
    """The word for people in messages: "people", or in a data set "subjects" or "videos"."""

    @property
    def validation_share(self) -> float:
        """Fraction of the windows for training and validation that are for validation."""
        train, val, _ = self.shares
        return val / (train + val)

    @property
    def grouping(self) -> str:
        """Description of clients with several people each; "" if each client is one person."""
        if not self.clients:
            return ""
        return (
            f"{self.clients}, each with the data of several {self.unit} (dealt by deal_seed "
            f"{self.deal_seed}); what is said of a person is of one such client"
        )

    def deal(self, people: Iterable[str], tested: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return client -> its people, in groups whose sizes differ by at most one.

        People in `tested`, who have test clips, are spread evenly over the clients.

        Raises:
            DataError: there are fewer people than clients.
        """
        order = sorted(people)
        if not self.clients:
            return {person: (person,) for person in order}
        if len(order) < self.clients:
            raise DataError(
                f"clients = {self.clients} are more than the {len(order)} {self.unit} that there "
                "are; set clients lower, or 0 for a client each"
            )
        shuffled = [order[i] for i in np.random.default_rng(self.deal_seed).permutation(len(order))]
        # People with test clips first, so that each client gets as many of them as any other. The
        # sort is stable, so that both halves stay shuffled.
        shuffled.sort(key=lambda person: person not in tested)
        hands = [shuffled[i :: self.clients] for i in range(self.clients)]
        return {f"group{i}": tuple(sorted(hand)) for i, hand in enumerate(hands, 1)}


class ListedClip(NamedTuple):
    """A clip of a published list.

    `source` is the id of a recording, or the name of its session. `start_s` and `end_s` are its
    times in that source, in seconds. `part` is TRAIN or TEST.
    """

    name: str
    person: str
    source: str
    start_s: float
    end_s: float
    part: int


class OfficialClips:
    """The clips of two published lists, for training and for testing.

    Args:
        lists: file names of the lists for training and for testing.
        clips: all clips of both lists.

    Raises:
        DataError: a clip is in both lists, or twice in a list.
    """

    def __init__(self, lists: tuple[str, str], clips: Sequence[ListedClip]) -> None:
        self.lists, self.clips = lists, clips
        names: set[str] = set()
        for clip in clips:
            if clip.name in names:
                raise DataError(
                    f"clip {clip.name} is twice in {lists[0]} and {lists[1]}; copy both again "
                    f"from {GLC}"
                )
            names.add(clip.name)
        in_time = sorted(clips, key=lambda clip: clip.start_s)
        self.by_source = by_key((clip.source, clip) for clip in in_time)

    def of(self, window: GazeWindow) -> ListedClip | None:
        """Return the listed clip in which all frames of a window lie; None if there is none."""
        recording = window.recording
        own = self.by_source.get(recording.id) or self.by_source.get(recording.session, [])
        at = bisect_right(own, window.start_s + HALF_FRAME_S, key=lambda clip: clip.start_s) - 1
        return own[at] if at >= 0 and window.end_s <= own[at].end_s + HALF_FRAME_S else None

    def people(self, part: int) -> dict[str, int]:
        """Return person -> number of clips in a part (TRAIN or TEST), for people who have any."""
        return Counter(clip.person for clip in self.clips if clip.part == part)

    def split(
        self, person: str, cut: Sequence[GazeWindow], options: OfficialOptions
    ) -> list[list[GazeWindow]]:
        """Return a person's windows for training, validation and test.

        Windows outside the listed clips are left out. `cut` holds all of the person's windows.

        Raises:
            DataError: there are too few training windows to set some aside for validation.
        """
        clips = [self.of(w) for w in cut]
        parts = [None if clip is None else clip.part for clip in clips]
        train, test = (
            [w for w, p in zip(cut, parts, strict=True) if p == k] for k in (TRAIN, TEST)
        )
        if not train:
            return [[], [], test]
        start, end = windows_on_one_clock(train, options.gap_s)
        # The lists have no validation part: it is the end of each person's training windows.
        assigned = hold_out(person, start, end, options.gap_s, options.validation_share)
        both = ([w for w, p in zip(train, assigned, strict=True) if p == k] for k in (TRAIN, VAL))
        return [*both, test]

    def description(
        self, split: Iterable[Sequence[Sequence[GazeWindow]]], validation_share: float
    ) -> str:
        """Return a sentence on the split, with the number of listed clips that have samples.

        `split` holds for each person the windows for training, validation and test.
        """
        used = {clip for parts in split for part in parts for w in part if (clip := self.of(w))}
        sizes = [
            f"{name} (samples of {sum(c.part == part for c in used):,} of "
            f"{sum(c.part == part for c in self.clips):,} clips)"
            for name, part in zip(self.lists, (TRAIN, TEST), strict=True)
        ]
        return (
            f"official lists: {' and '.join(sizes)}; the last {validation_share:.0%} of each "
            "person's training windows validate"
        )


def need_list(path: Path) -> Path:
    """Return the path of a list, after checking that the file exists.

    Raises:
        DataError: the list is missing; the message says where it is published.
    """
    hint = f"split = 'official' needs this list; copy it there from {GLC}, or leave out split"
    return need_file(path, hint)


def dealt_federation(
    options: OfficialOptions,
    recordings: Sequence[Recording],
    where: Path,
    about: Mapping[str, str],
    official: OfficialClips | None,
) -> Federation:
    """Make a federation whose clients may have several people each.

    Recordings are cut into windows, and each person's windows are split in time, or by the lists if
    `official` is given. People are then divided among clients, and frames are decoded. `where` is
    the folder of the recordings, for messages. `about` has entries for `Federation.about`.

    Raises:
        DataError: a recording cannot be used, or a person has too few windows. A client would have
            no windows for training or for testing. There are fewer people than clients.
    """
    cut = CutRecordings.of(options, recordings, where)
    if official is None:
        split = {p: split_in_time(p, own, options) for p, own in cut.windows.items()}
        text, why, tested = time_split(options), "in the gaps", set(split)
    else:
        split = {p: official.split(p, own, options) for p, own in cut.windows.items()}
        text = official.description(split.values(), options.validation_share)
        why, tested = "in no listed clip or in gaps", set(official.people(TEST))
    groups = options.deal(split, tested)
    clients = {
        client: [[w for who in members for w in split[who][k]] for k in (TRAIN, VAL, TEST)]
        for client, members in groups.items()
    }
    for part, what in ((TEST, "testing"), (TRAIN, "training")):
        if without := [client for client, parts in clients.items() if not parts[part]]:
            raise DataError(
                f"{', '.join(without)}: no clip for {what} in the official lists, or none as long "
                f"as a sample; deal the {options.unit} to fewer clients (as clients = 5), or name "
                "others as people"
            )
    notes = {**about, "split": text}
    if options.clients:
        members = (f"{client} ({len(who)}) = {', '.join(who)}" for client, who in groups.items())
        notes |= {"clients": options.grouping, "groups": "; ".join(members)}
    return cut.federation(clients, notes, why)


def check_clients(
    options: OfficialOptions, people: Collection[str], read: Callable[[], OfficialClips]
) -> list[Check]:
    """Return lines of `vergence data check` on each client's people and number of listed clips.

    `read` reads the lists; it is called only if the option `split` is "official".
    """
    out = Checks()
    with out.reading("clients"):
        official = read() if options.split == "official" else None
        # Before the clips are downloaded the lists alone name the people.
        if official is not None and not people:
            people = {clip.person for clip in official.clips}
        everyone = [person for person in people if not options.people or person in options.people]
        tested = everyone if official is None else official.people(TEST)
        groups = options.deal(everyone, tested)
        if options.clients:
            sizes = ", ".join(str(len(members)) for members in groups.values())
            out.append(Check(f"{options.unit} in clients", sizes, "near equal", True))
        for client, members in groups.items() if options.clients or official else ():
            out.append(_clips_of(client, members, official))
    return out


def _clips_of(client: str, members: Sequence[str], official: OfficialClips | None) -> Check:
    who = ", ".join(members)
    if official is None:
        return Check(client, who, "1 or more", bool(members))
    train, test = (
        sum(official.people(part).get(person, 0) for person in members) for part in (TRAIN, TEST)
    )
    counts = f"{who}: {train:,} clips to train, {test:,} to test"
    hint = "deal people to clients (clients = 5), or name others as people"
    ok = bool(train and test)
    return Check(client, counts, "1 or more each", ok, "" if ok else hint)
