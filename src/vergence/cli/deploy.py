"""The commands of `vergence deploy`: one experiment on many machines.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from vergence.cli.app import Flag, OutFolder
from vergence.console import note, out
from vergence.experiment.trust import allow_own_code, trust_in_deployment, under

if TYPE_CHECKING:
    from vergence.experiment.schema import Experiment

deploy = App(name="deploy", help="Run an experiment on many machines: a server and its clients.")


@deploy.command
@allow_own_code
def init(
    config: Path,
    *,
    clients: str,
    address: str,
    out_: OutFolder,
    main_server: Flag = False,
    keys: Path | None = None,
    listen: str = "",
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Write a folder for the server and each client and aggregator: experiment, certificates, keys.

    Args:
        config: the experiment (TOML).
        clients: the clients' names, with commas; a client has the data of the person of this name,
            or, where the experiment has silos, is the lab of this name.
        address: HOST:PORT at which clients reach the server.
        out_: a new directory.
        main_server: one more folder, for split learning in three roles: a main server that alone
            sees smashed data, while the server averages the clients' layers.
        keys: a folder of public keys, NAME.pub for each client and aggregator, made by themselves
            (`vergence deploy key`); with a main server also NAME.box, and main.pub, main.box.
        listen: where the server listens: 127.0.0.1, on its own machine alone, or 0.0.0.0, on all
            its addresses. Default: 127.0.0.1 if that is the address, else 0.0.0.0.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    # Imported here and not above: `vergence deploy --help` should not load torch.
    from vergence.deployment.diagnostics import HERE
    from vergence.deployment.folder_setup import init as write
    from vergence.deployment.folder_setup import refuse_names
    from vergence.deployment.folders import ServerSide, settings
    from vergence.deployment.own_code import refuse_modules
    from vergence.deployment.remote_clients import remote_people
    from vergence.experiment.packaged import locate
    from vergence.experiment.privacy.spent import noise_outlook
    from vergence.experiment.schema import override, read

    names = [name.strip() for name in clients.split(",") if name.strip()]
    table = read(locate(config))
    for item in set_:
        override(table, item)
    # Both look at the raw table, before `load` imports code that the experiment names: a deployment
    # copies files alone, and code that no other machine can get should not run here first.
    refuse_names(table.get("silos") or {})
    refuse_modules(table)
    experiment = load_for_deployment(config, set_)
    write(experiment, names, address, out_, main_server, keys, listen)
    note_length(experiment)
    out.print(
        (out_ / "README.txt").read_text(encoding="utf-8").rstrip(), soft_wrap=True, highlight=False
    )
    side = settings(out_ / "server", ServerSide)
    who = "this machine alone" if side.listen == HERE else "whoever reaches this machine"
    out.print(
        f"The server will listen on {side.listen}, for {who}.", soft_wrap=True, highlight=False
    )
    for line in noise_outlook(experiment, remote_people("clients", dict.fromkeys(names, 1))):
        note(line)


def load_for_deployment(config: Path, sets: list[str]) -> Experiment:
    """Load an experiment to deploy, with a number of rounds."""
    from vergence.deployment.joined_node import with_fixed_rounds
    from vergence.experiment.schema import load

    return with_fixed_rounds(load(config, sets))


def note_length(experiment: Experiment) -> None:
    """Print how long the experiment trains, if it does not say that itself."""
    if experiment.default_length:
        note(f"trains {experiment.default_length}")


@deploy.command
def app(
    config: Path,
    *,
    out_: OutFolder,
    clients: str = "",
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Write a Flower app of the experiment, which an unchanged Flower runs with `flwr run`.

    Args:
        config: the experiment (TOML).
        out_: a new directory.
        clients: the clients' names, with commas; default: all people of the experiment's data.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.deployment.flower_app import write_app

    names = [name.strip() for name in clients.split(",") if name.strip()]
    with under(trust_in_deployment()):
        experiment = load_for_deployment(config, set_)
        write_app(experiment, names, out_)
    note_length(experiment)
    out.print(f"{out_ / 'README.md'} says how it is run", soft_wrap=True, highlight=False)


@deploy.command
def key(folder: Path) -> None:
    """Make a machine's own keys: private ones stay there, public ones go to `init --keys`.

    Args:
        folder: a new folder, named as the client.
    """
    from vergence.deployment.folder_setup import make_key

    make_key(folder)
    out.print(
        f"{folder}: send {folder / 'public'} to whoever runs `vergence deploy init`; copy "
        "what comes back into this folder, then `vergence deploy join`",
        soft_wrap=True,
        highlight=False,
    )


@deploy.command
def serve(
    folder: Path,
    *,
    accept_code: list[str] = [],  # noqa: B006
    insecure: Flag = False,
) -> None:
    """Run the server until the experiment is done; called again, it goes on where it stopped.

    Args:
        folder: DIR/server.
        accept_code: the SHA-256 of a Python file that the deployment brings and that may run here;
            may be given several times. Kept in the folder.
        insecure: no TLS and no node authentication; the results say so.
    """
    from vergence.deployment.launcher import serve as run

    run(folder, out, insecure, accept_code)


@deploy.command
def join(
    folder: Path,
    *,
    data: str | None = None,
    person: str | None = None,
    people: str | None = None,
    accept_code: list[str] = [],  # noqa: B006
    restored: Flag = False,
    insecure: Flag = False,
) -> None:
    """Run a client, an aggregator or a main server until the server ends the experiment.

    Args:
        folder: DIR/clients/NAME, DIR/aggregators/NAME, DIR/main, or a copy of it.
        data: this client's data, laid out as the experiment's data set; kept in the folder.
        person: the person in these data whom the client serves; default its name. Kept in the
            folder.
        people: for a lab, the people in these data, with commas and in the order of the
            experiment's silos, or `all`; default: the names in silos. Kept in the folder.
        accept_code: the SHA-256 of a Python file that the deployment brings and that may run here;
            may be given several times. Kept in the folder.
        restored: the folder came back from a copy, or was moved here: answer only rounds after the
            last one that is known. Budgets that are not known are refused all the same.
        insecure: no TLS and no node authentication; the server must be insecure, too.
    """
    from vergence.deployment.launcher import join as run

    run(folder, out, insecure, data, person, people, accept_code, restored)


@deploy.command
def status(folder: Path, *, lines: int = 10) -> None:
    """Show the state of a folder, running or not, and its last events.

    Args:
        folder: a server's or a client's.
        lines: how many events.
    """
    from vergence.deployment.launcher import status as show

    show(folder, out, lines)


@deploy.command
def add(
    folder: Path,
    client: str,
    *,
    out_: OutFolder,
    keys: Path | None = None,
) -> None:
    """Add a client to a deployment whose server is stopped; it takes part from a later round on.

    Args:
        folder: DIR/server.
        client: the new client's name.
        out_: a new directory for the client's folder.
        keys: a folder with the key NAME.pub that the client made itself (`vergence deploy key`);
            secure sums need it.
    """
    from vergence.deployment.folder_setup import add as write

    begins = write(folder, client, out_, keys)
    more = (
        f"; each client and aggregator needs {client}.pub first (`vergence deploy admit`)"
        if (out_ / "keys").exists()
        else ""
    )
    out.print(
        f"'{client}' takes part from round {begins + 1} on. Copy {out_} to its machine{more}; then "
        f"`vergence deploy serve {folder}`",
        soft_wrap=True,
        highlight=False,
    )


@deploy.command
def admit(folder: Path, key: Path | None = None, *, roster: str = "") -> None:
    """Trust the key of an added client in secure sums, after a comparison with another client.

    Args:
        folder: the folder of a client or an aggregator.
        key: NAME.pub of the added client; left out in the folder of the added client itself.
        roster: the digest that this command printed for the operator of another client. Without
            it, the digest is printed, and nothing changes.
    """
    from vergence.deployment.folder_setup import admit as trust

    digest = trust(folder, key, roster)
    out.print(f"digest of all keys: {digest}", soft_wrap=True, highlight=False)
    if not roster:
        out.print(
            "Compare it with other clients over a channel that the server does not control. If it "
            "is the same, give it with --roster. Nothing was changed.",
            soft_wrap=True,
            highlight=False,
        )


@deploy.command
def renew(folder: Path) -> None:
    """Make a new certificate for a stopped server; clients then need its new ca.crt.

    Args:
        folder: DIR/server.
    """
    from vergence.deployment.launcher import renew as make

    make(folder)
    out.print(
        f"copy {folder / 'ca.crt'} into each client's and aggregator's folder, over a channel on "
        "which nobody can replace it; then `vergence deploy serve` and `join` again",
        soft_wrap=True,
        highlight=False,
    )


@deploy.command
def revoke(folder: Path, client: str) -> None:
    """Take a client's key away: from now on the server refuses everything it sends.

    Args:
        folder: DIR/server.
        client: its name.
    """
    from vergence.deployment.launcher import revoke as take

    take(folder, client)
    out.print(f"'{client}' is revoked", highlight=False)


@deploy.command
def stop(folder: Path) -> None:
    """Stop the process that runs a folder; finished rounds are kept.

    Args:
        folder: a server's or a client's.
    """
    from vergence.deployment.folders import stop as end

    out.print(f"{folder}: " + ("stopped" if end(folder) else "was not running"), highlight=False)
