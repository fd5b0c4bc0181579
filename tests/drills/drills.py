"""What a federation must survive, as a table: `make drills`, or `python -m tests.drills.drills`.

    python -m tests.drills.drills [clients server replies fuzz soak disk readonly clocks forged]
        [--small] [--row right|wrong]

Two processes at a time, each drill's tasks in new ones. Exit code 1 if any row fails.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from tests.drills import targets, test_bad_replies
from tests.drills.deaths import clients, disk, server, soak
from tests.drills.disks import clocks, readonly
from tests.drills.drilling import ROWS, SMALL, Row, Sizes, asked, printed, scratch, spread
from tests.drills.forged import forged
from tests.drills.mutants import Tried

WARM = 1000
"""Inputs after which memory is looked at: by then caches are full."""
ROOM = 256 << 20
"""Bytes of address space that reading inputs may take up, used or not."""


def replied(kinds: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Let a client send each of these; return kind, what was said, and whether all is as wanted."""
    with scratch() as home:
        silence = test_bad_replies.harmed(home / "silence", None)[0]
        found = []
        for number, kind in enumerate(kinds):
            harm, says = test_bad_replies.KINDS[kind]
            sha, said = test_bad_replies.harmed(home / str(number), harm)
            named = [*said] != [] and all(s.startswith(f"quarantined: {says}") for s in said)
            found.append((kind, " ".join(said), named and sha == silence))
        return found


def replies(_: Sizes) -> Iterator[Row]:
    """Send every kind of bad reply; compare with silence."""
    kinds = list(test_bad_replies.KINDS)
    found = [f for part in spread(replied, [(kinds[::2],), (kinds[1::2],)]) for f in part]
    good = sum(good for _, _, good in found)
    for kind, said, fine in found:
        if not fine:
            yield Row(f"bad reply: {kind}", "quarantined, as silence", said, good=False)
    yield Row(
        f"{len(kinds)} kinds of bad reply",
        f"{len(kinds)}/{len(kinds)} named, as silence",
        f"{good}/{len(kinds)}",
        good == len(kinds),
    )


def fuzzed(seed: int, count: int, of_files: bool) -> tuple[dict[str, Tried], float]:
    """Try mutants; return what became of them, by kind, and seconds."""
    with scratch() as home:
        draw, tried = random.Random(seed), targets.counts()
        if of_files:
            feed = targets.files(targets.Files(home), draw, tried)
        else:
            talks = [targets.Talk(name, home / name) for name in targets.METHODS]
            feed = targets.messages(talks, draw, tried)
        warm = min(WARM, count // 2)
        for _ in range(warm):
            next(feed)
        for kind in tried.values():
            kind.worst_kb = 0
        began = time.monotonic()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        for _ in range(count - warm):
            next(feed)
        return tried, time.monotonic() - began


def fuzz(sizes: Sizes) -> Iterator[Row]:
    """Feed mutants to both ends of a line, and to what reads a run's folder."""
    most = 2 * targets.LIMIT >> 10
    for what, total in (("messages", sizes.messages), ("files", sizes.files)):
        parts = [(seed, total // 2, what == "files") for seed in (1, 2)]
        # Large arrays get pages of their own, which go back: what was freed hides nothing.
        with patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):
            found = list(spread(fuzzed, parts))
        kinds = {k: [tried[k] for tried, _ in found] for k in found[0][0]}
        kinds = {k: tried for k, tried in kinds.items() if tried[0].count}
        every = [tried for both in kinds.values() for tried in both]
        crashes, ran = [c for t in every for c in t.crashes], [c for t in every for c in t.ran]
        worst_s, worst_kb = max(t.worst_s for t in every), max(t.worst_kb for t in every)
        count = sum(t.count for t in every)
        told = ", ".join(
            f"{sum(t.count for t in both):,} {kind} ({sum(t.refused for t in both):,} refused)"
            for kind, both in kinds.items()
        )
        for line in crashes[:5] + ran[:5]:
            print(line[:600], file=sys.stderr)
        yield Row(
            f"{count:,} mutated {what}",
            f"no crash, no hang over 1 s, no code run, memory <= {most:,} kB",
            f"{len(crashes)} crashes, {len(ran)} runs of code, worst {worst_s * 1000:.0f} ms and "
            f"{worst_kb:,} kB, {max(s for _, s in found):.0f} s; {told}",
            not crashes and not ran and worst_s < 1 and worst_kb <= most and count >= total,
        )


DRILLS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "clients": clients,
    "server": server,
    "replies": replies,
    "fuzz": fuzz,
    "soak": soak,
    "disk": disk,
    "readonly": readonly,
    "clocks": clocks,
    "forged": forged,
}


def main() -> None:
    """Drill, print a line as it comes, and the table."""
    given = asked(DRILLS, __doc__ or "", sizes=True)
    sizes = SMALL if given.small else Sizes()
    rows = (row for name in given.drills for row in DRILLS[name](sizes))
    printed([ROWS[given.row]] if given.row else rows)


if __name__ == "__main__":
    main()
