"""`vergence audit`: a finished run attacked as its server could, and whoever has its model.

What a server sees depends on the method: smashed data of a split network (`audit_cut`), or what
clients learned (`audit_updates`). Whether somebody, or a picture, was in the training is asked of
the model that strangers get (`audit_members`), and where owners keep teachers of these
too (`audit_taught`), of which copies are made (`audit_copies`).
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from vergence.app import (
    audit_cut,
    audit_members,
    audit_numbers,
    audit_replay,
    audit_taught,
    audit_updates,
    seals,
)
from vergence.app.audit_copies import copies
from vergence.app.audit_findings import Findings
from vergence.app.audit_people import table
from vergence.app.blocks import Block
from vergence.app.run import digest, load_data, progress_bar
from vergence.app.runs import read
from vergence.app.saved import Saved, read_saved
from vergence.core.site import Federation
from vergence.core.teacher import Guarded
from vergence.errors import ConfigError, StateError, nearest


def audit(
    folder: Path, console: Console, quick: bool = False, person: str | None = None
) -> Findings:
    """Attack a finished run; print the tables, write them with pictures below `folder`/audit.

    Args:
        folder: run directory of one method.
        console: where the tables go.
        quick: less of everything.
        person: whose pictures are looked for; default the first.

    Raises:
        ConfigError: an unknown person.
        StateError: the run is unfinished or damaged, or its data are not those it was trained on.
    """
    saved = read_saved(folder)
    seals.check(folder)
    data = trained_on(saved)
    if person is not None and person not in data.people:
        raise ConfigError(f"{folder}: no person '{person}'{nearest(person, data.clients)}")
    with progress_bar() as bar:
        if audit_cut.sends_smashed(saved.method):
            found = audit_cut.attacked(saved, data, person, quick, bar)
        else:
            found = on_updates(saved, data, person, quick, bar)
    found.write(folder / "audit")
    found.show(console)
    console.print(f"tables and pictures, which may show real people: {folder / 'audit'}",
                  soft_wrap=True)  # fmt: skip
    return found


def trained_on(saved: Saved) -> Federation:
    """Return the data of the people who took part, prepared for the network.

    Raises:
        StateError: what is read now is something else.
    """
    run, ready = read(saved.folder).runs[0], load_data(saved.experiment).ready
    there = set(run.people) <= set(ready.clients)
    for people in (ready, ready.only(run.people) if there else ready):
        if digest(people) == run.provenance["data"]["sha256"]:
            return people
    raise StateError(f"{saved.folder} was trained on other data than what is read now; restore it")


def on_updates(
    saved: Saved, data: Federation, person: str | None, quick: bool, bar: Progress
) -> Findings:
    """Attack what clients learned, and the model."""
    size = audit_updates.QUICK if quick else audit_updates.WHOLE
    line = bar.add_task("updates", total=None, score="")
    seen = audit_updates.Seen()
    if saved.method.pooled:
        seen.not_tried.append(("pictures and people", "everybody's recordings lie at one place, "
                               "and whoever works there needs no attack"))  # fmt: skip
    elif audit_replay.told(saved) is None:
        seen.not_tried.append(("pictures and people", audit_replay.untold(saved.method)))
    else:
        seen = audit_updates.updates_seen(
            saved, data, person, size, lambda what: bar.update(line, advance=1, score=what)
        )
    bar.update(line, total=1, completed=1)
    line = bar.add_task("members", total=None, score="")
    taught = isinstance(saved.method, Guarded)
    asked = audit_taught if taught else audit_members
    rates, more = asked.members(
        saved, data, quick, lambda done, all_: bar.update(line, completed=done, total=all_)
    )
    numbers, untold = audit_numbers.numbers_told(saved, data)
    if taught:
        seeds = read(saved.folder).runs[0].seeds
        rates += copies([read_saved(saved.folder, seed) for seed in seeds], data, quick)
    lines = [*seen.rates, *numbers, *rates]
    notes = [*NOTES, *(audit_numbers.NOTES if numbers else ())]
    second = table(lines, "audit: whose it was, and who was in", notes) if lines else None
    return Findings(pictures(seen), seen.shown, second, [*seen.not_tried, *untold, *more])


NOTES = (
    "Bounds: Clopper and Pearson, 95 %. Chance for a name is one in the people known; for "
    "membership, the share of others who are called by mistake.",
)


def pictures(seen: audit_updates.Seen) -> Block | None:
    """Return the table of pictures."""
    if not seen.lines:
        return None
    cells = [
        [
            str(line["what the server has"]),
            str(line["seen"]),
            f"{line['mse']:.4f}",
            f"{line['ssim']:.3f}",
        ]
        for line in seen.lines
    ]
    return Block(
        f"audit: pictures of {seen.who} from updates",
        ["what the server has", "seen", "MSE", "SSIM"],
        cells,
        keys=2,
        notes=[
            "The attacker knows the model that clients start from and other people's pictures. "
            "One picture in one step is the worst that could be sent, with its label known; from "
            "all of a person's pictures one is drawn, and compared with several of theirs.",
            "No attack found is no proof that there is none.",
        ],
        records=seen.lines,
    )
