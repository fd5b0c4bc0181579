"""`vergence privacy`: attacks on a run, forgetting a person, the page for an ethics board.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from vergence.cli.app import Flag, OutFolder
from vergence.console import out
from vergence.experiment.trust import ask_for_trust

privacy = App(
    name="privacy", help="What a run gives away, who is forgotten, what an ethics board reads."
)


@privacy.command
@ask_for_trust
def audit(
    folder: Path,
    *,
    quick: Flag = False,
    person: str | None = None,
) -> None:
    """Attack a run as its server, or anybody with its model, could; write tables to FOLDER/audit.

    Args:
        folder: a run directory of one method.
        quick: a smaller audit: two minutes of processor time for small runs.
        person: the person whose pictures are reconstructed; default the first.
    """
    from vergence.audit.run import audit as attack

    attack(folder, out, quick, person)


@privacy.command
@ask_for_trust
def forget(
    folder: Path,
    person: str,
    *,
    out_: OutFolder,
    patch: int = 0,
    shadows: int = 8,
    erase: Flag = False,
) -> None:
    """Make a run's model without one person, and test how far the old and the new remember them.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or folds of leave-one-out.
        person: the person to be forgotten.
        out_: a new directory, or one in which the same command was interrupted.
        patch: approximate: that many further rounds of the other people, from the end of the run;
            default 0, exact: the whole experiment again without this person.
        shadows: number of runs without this person, with other seeds, to which the membership
            audit compares the models; 3 or more; 0: no audit.
        erase: once the new model is written, delete this person's states, masks, table rows and
            pictures from FOLDER.
    """
    from vergence.unlearning.forget import ForgetOptions
    from vergence.unlearning.forget import forget as leave

    leave(folder, person, out_, out, ForgetOptions(patch, shadows, erase))


@privacy.command
@ask_for_trust
def ethics(
    folder: Path,
    *,
    out_: OutFolder | None = None,
    method: str | None = None,
    study: Path | None = None,
) -> None:
    """Write what happens to people's data in plain words: a page, the same as JSON, and cards.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or an experiment file that
            has not been run.
        out_: a folder for the page; default FOLDER itself.
        method: label of the method that the page is about, where there are several. In an
            experiment file, the others are then not checked.
        study: a TOML file whose table [study] says who is responsible, how many people take part,
            how long, on which lawful basis, how to withdraw and whom to ask; default that table
            of the experiment.
    """
    from vergence.experiment.privacy.study_description import read_description
    from vergence.reports.ethics.page import ethics as page

    description = None if study is None else read_description(study)
    out.print(f"page: {page(folder, out_, method, description)}", soft_wrap=True)


@privacy.command
@ask_for_trust
def matrix(
    config: Path,
    *,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    style: Annotated[Literal["table", "markdown"], Parameter(name="--format")] = "table",
) -> None:
    """Print which methods and protections can be combined on an experiment's task and network.

    Args:
        config: the experiment (TOML).
        set_: `a.b=c` overrides a value of the file; may be given several times.
        style: how to print.
    """
    from vergence.experiment.schema import load
    from vergence.reports.compatibility_matrix import show

    show(load(config, set_), out, style)


@privacy.command
@ask_for_trust
def share(
    folder: Path,
    *,
    parties: str,
    clients: str,
    out_: OutFolder,
    images: int = 100,
    person: str | None = None,
) -> None:
    """Deal a run's gaze model to two to five parties, who then predict without seeing an eye.

    Args:
        folder: run directory of one method, of task gaze_angle with a network such as lenet.
        parties: NAME=HOST:PORT with commas, each a machine of another owner.
        clients: the names of those who may ask, with commas.
        out_: a new directory: a folder for each party and client.
        images: how many can be asked about in all.
        person: whose model; default what a newcomer gets.
    """
    from vergence.deployment.private_inference.sharing import share as deal

    listed = [item.partition("=") for item in parties.split(",") if item.strip()]
    addresses = {name.strip(): address.strip() for name, _, address in listed}
    names = [name.strip() for name in clients.split(",") if name.strip()]
    dealt = deal(folder, addresses, names, out_, images, person)
    first = next(iter(dealt.parties))
    out.print(
        f"dealt: {dealt.parties[first] / 1e6:.2f} MB an image to '{first}', a seed to the others; "
        f"{dealt.seconds:.3f} s an image",
        soft_wrap=True,
        highlight=False,
    )
    out.print(
        (out_ / "README.txt").read_text(encoding="utf-8").rstrip(), soft_wrap=True, highlight=False
    )


@privacy.command
def party(folder: Path, *, patience: float = 60.0) -> None:
    """Serve one party of a private prediction, until Ctrl-C.

    Args:
        folder: what `vergence privacy share` wrote for it.
        patience: seconds to wait for another party, or for a client.
    """
    from vergence.deployment.private_inference.party import serve

    serve(folder, patience)
