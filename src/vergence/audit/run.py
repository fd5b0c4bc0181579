"""`vergence privacy audit`: attacks on a finished run by its server, and by an outsider.

The server sees smashed data of a split network (`smashed_data`), or model updates (`updates`). An
outsider has the model that unseen clients get, and infers from it whether a person or a picture was
in the training data (`membership`). If owners keep teachers, these are attacked as well
(`teacher_membership`), and copied (`model_extraction`).

Used by `cli.privacy`.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from vergence.audit import disclosed_statistics, replay, smashed_data, teacher_membership
from vergence.audit import membership as audit_members
from vergence.audit import updates as audit_updates
from vergence.audit.findings import AuditFindings
from vergence.audit.identity import table
from vergence.audit.model_extraction import extraction_rates
from vergence.core.federation import Federation
from vergence.core.files import refuse_links
from vergence.experiment import checksums
from vergence.experiment.run import progress_bar
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.methods.generative.teacher import TeacherMethod
from vergence.results.read import read
from vergence.results.text_tables import TextTable


def audit(
    folder: Path, console: Console, quick: bool = False, person: str | None = None
) -> AuditFindings:
    """Attack a finished run; print the tables, and write them with pictures to `folder`/audit.

    Args:
        folder: run directory of one method.
        console: console that the tables are printed to.
        quick: use fewer pictures, steps and shadow runs.
        person: the victim, whose pictures are reconstructed; default the first person.

    Raises:
        ConfigError: the person is unknown.
        StateError: the run is unfinished or damaged, its directory holds symbolic links to other
            places, or its data have changed since the training.
    """
    # Pictures of people are written below the folder: a link could lead them to a shared place.
    refuse_links(folder)
    saved = read_run(folder)
    # The findings are filed with this run: they must not be about files that somebody changed.
    checksums.check(folder)
    data = saved.trained_on
    saved.refuse_unknown_person(person, data.clients)
    with progress_bar() as bar:
        if smashed_data.sends_smashed(saved.method):
            findings = smashed_data.audit_smashed_data(saved, data, person, quick, bar)
        else:
            findings = audit_updates_and_model(saved, data, person, quick, bar)
    findings.write(folder / "audit")
    findings.show(console)
    console.print(
        f"tables and pictures, which may show real people: {folder / 'audit'}", soft_wrap=True
    )
    return findings


def audit_updates_and_model(
    saved: TrainedRun, data: Federation, person: str | None, quick: bool, bar: Progress
) -> AuditFindings:
    """Attack the updates that clients sent, and the final model."""
    size = audit_updates.QUICK if quick else audit_updates.WHOLE
    line = bar.add_task("updates", total=None, score="")
    seen = audit_updates.ObservedRounds()
    if saved.method.pooled:
        seen.not_tried.append(
            (
                "pictures and people",
                "everybody's recordings lie at one place, and whoever works there needs no attack",
            )
        )
    elif replay.update_tree(saved) is None:
        seen.not_tried.append(("pictures and people", replay.no_update_reason(saved.method)))
    else:
        seen = audit_updates.attack_updates(
            saved, data, person, size, lambda what: bar.update(line, advance=1, score=what)
        )
    bar.update(line, total=1, completed=1)
    line = bar.add_task("members", total=None, score="")
    taught = isinstance(saved.method, TeacherMethod)
    asked = teacher_membership if taught else audit_members
    rates, more = asked.membership_rates(
        saved, data, quick, lambda done, all_: bar.update(line, completed=done, total=all_)
    )
    numbers, numbers_not_tried = disclosed_statistics.audit_statistics(saved, data)
    if taught:
        seeds = read(saved.folder).runs[0].seeds
        rates += extraction_rates([read_run(saved.folder, seed) for seed in seeds], data, quick)
    lines = [*seen.rates, *numbers, *rates]
    notes = [*NOTES, *(disclosed_statistics.NOTES if numbers else ())]
    second = table(lines, "audit: whose it was, and who was in", notes) if lines else None
    return AuditFindings(
        pictures(seen), seen.shown, second, [*seen.not_tried, *numbers_not_tried, *more]
    )


NOTES = (
    "Bounds: Clopper and Pearson, 95 %. Chance for a name is one in the people known; for "
    "membership, the share of others who are called by mistake.",
)


def pictures(seen: audit_updates.ObservedRounds) -> TextTable | None:
    """Return the table of reconstructed pictures, None if there are none."""
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
    return TextTable(
        f"audit: pictures of {seen.who} from updates",
        ["what the server has", "seen", "MSE", "SSIM"],
        cells,
        keys=2,
        notes=[
            "The attacker knows the model that clients start from, and other people's pictures. "
            "The worst case is an update that one picture made in one step, with its label known. "
            "From an update that many pictures made, one picture is reconstructed and compared "
            "with several of the person's.",
            "No attack found is no proof that there is none.",
        ],
        records=seen.lines,
    )
