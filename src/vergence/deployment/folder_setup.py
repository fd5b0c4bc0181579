"""Creation of a deployment's folders, and of the keys of a node that makes its own keys.

Used by `cli.deploy` and `deployment.flower_app`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.core.files import make_durable_folder, write_whole
from vergence.deployment import folders, own_code
from vergence.deployment.diagnostics import host_and_port, listen_address
from vergence.deployment.folders import (
    EVERYBODY,
    EXPERIMENT,
    MAIN,
    NODE,
    ClientSide,
    ServerSide,
)
from vergence.errors import ConfigError, StateError
from vergence.experiment.code_names import parse

if TYPE_CHECKING:
    from vergence.experiment.schema import Experiment

PUBLIC, AGGREGATORS = "public", "aggregators"
"""Names of two folders: the public keys of one machine, and the folders of the aggregators."""
README = """\
server/          stays here, or goes to {host}: vergence deploy serve server
clients/NAME/    goes to NAME's machine, and nowhere else (it holds a private key):
                 vergence deploy join NAME --data FOLDER
Delete clients/ here once every folder is where it belongs.
"""
README_OWN = """\
server/          stays here, or goes to {host}: vergence deploy serve server
clients/NAME/    its files go beside NAME's own key; nothing in them is secret:
                 vergence deploy join NAME --data FOLDER
"""
README_MAIN = """\
main/            goes to the main server's machine: vergence deploy join main
Whoever has main/ or clients/ reads what server/ must not: make all this on a
machine of its own, and delete both there.
"""
README_OWN_MAIN = """\
main/            its files go beside the main server's own key: vergence deploy join main
"""
README_ADDS = """\
aggregators/NAME/  goes to NAME's machine, of another owner than server/ and the other
                 aggregators: vergence deploy join NAME
Whoever has all of aggregators/ can take their place and read every reply: delete it here.
"""
README_OWN_ADDS = """\
aggregators/NAME/  its files go beside NAME's own key: vergence deploy join NAME
"""


def make_key(folder: Path) -> None:
    """Make a node's private keys in a folder, and the public keys in its subfolder `public`.

    Raises:
        StateError: the folder has keys already.
    """
    from vergence.core.files import saving
    from vergence.deployment.keys import BOX, make_box_key, make_node_key

    if (folder / NODE).exists():
        raise StateError(f"{folder} has a key already; choose another folder")
    with saving(folder):
        # For its owner alone: whoever reads the private key can answer in this client's place.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        public = folder / PUBLIC
        public.mkdir(exist_ok=True)
        name = folder.resolve().name
        make_node_key(folder / NODE, public / f"{name}.pub")
        make_box_key(folder / BOX, public / f"{name}.box")


def init(
    experiment: Experiment,
    clients: Sequence[str],
    address: str,
    out: Path,
    main: bool = False,
    keys: Path | None = None,
    listen: str = "",
) -> None:
    """Write the folders of a server, its clients, aggregators and, if asked for, a main server.

    Args:
        experiment: the experiment.
        clients: names of the clients.
        address: HOST:PORT at which clients reach the server.
        out: a new directory for the folders.
        main: whether there is a main server for split learning.
        keys: folder with the public keys of all nodes; None: all keys are made on this machine.
        listen: address on which the server listens (see `diagnostics.listen_address`).

    Raises:
        ConfigError: the experiment cannot be deployed, or an argument is not allowed.
        StateError: the directory is not empty.
    """
    from vergence.core.files import saving
    from vergence.deployment.keys import PARTIES, known_keys, make_certificates
    from vergence.deployment.launcher import check_flower

    check_flower()
    (host, _), listen = host_and_port(address), listen_address(address, listen)
    experiment = fit_to_deploy(experiment, clients, main)
    if keys is not None:
        check_public_keys(keys, [*clients, *([MAIN] if main else [])], main)
        check_public_keys(keys, experiment.plan.privacy.aggregators, False)
    if out.exists() and any(out.iterdir()):
        raise StateError(f"{out} is not empty; choose another --out")
    # A new random name of the run: clients bind their privacy budgets to it, and no run of another
    # deployment may go on with them.
    server, run = out / "server", secrets.token_hex(8)
    (table, code), parties = own_code.portable(experiment), experiment.plan.privacy.aggregators
    with saving(out):
        server.mkdir(parents=True, mode=0o700)
        (server / "keys").mkdir(mode=0o700)
        make_certificates(server, host)
        ends, adders, served = end_folders(out, clients, parties, address, run, main)
        for end in [*ends, *adders, *([served] if main else [])]:
            end.make(server, keys)
            hand_out(end.folder, table, code)
        public = known_keys(server)
        if experiment.plan.privacy.aggregation is not None:
            copy_public_keys([*ends, *adders], "keys", {name: public[name] for name in clients})
        if adders:
            copy_public_keys([*ends, *adders], PARTIES, {name: public[name] for name in parties})
        if main:
            exchange_box_keys(served, ends, keys)
        side = ServerSide(tuple(clients), address, run, listen, main=main)
        folders.write_settings(server, replace(side, answer_bytes=answer_limit(experiment)))
        hand_out(server, table, code)
        text = instructions(host, main, bool(adders), keys is None, code)
        (out / "README.txt").write_text(text, encoding="utf-8", newline="\n")


def add(server: Path, client: str, out: Path, keys: Path | None = None) -> int:
    """Add a client to a deployment whose server is stopped, and write the client's folder.

    Args:
        server: the server's folder.
        client: name of the new client.
        out: a new directory for the client's folder.
        keys: folder with the public key that the client made itself; None: its key pair is made on
            this machine.

    Returns:
        The first round, from 0, in which the client takes part.

    Raises:
        ConfigError: a client cannot be added to this experiment; the message says why.
        StateError: the server is running, the run is finished, or the directory exists.
    """
    from vergence.core.files import saving
    from vergence.deployment.keys import PARTIES, known_keys
    from vergence.experiment.schema import load
    from vergence.experiment.trust import trust_in_deployment, under

    side = folders.settings(server, ServerSide)
    folders.refuse_running(server)
    with under(trust_in_deployment(server, side.accepted)):
        experiment = load(server / EXPERIMENT)
    everybody = (*side.clients, client)
    experiment = fit_to_deploy(experiment, everybody, side.main)
    refuse_addition(experiment, side, keys)
    begins = first_free_round(experiment, server / "run")
    if keys is not None:
        check_public_keys(keys, [client], False)
    if out.exists():
        raise StateError(f"{out} exists already; choose another --out")
    privacy = experiment.plan.privacy
    # The others still know the keys of revoked clients, and the rosters must be the same.
    public = {**known_keys(server, "revoked"), **known_keys(server)}
    secure = privacy.aggregation is not None
    new = EndFolder(out, ClientSide(client, side.address, side.run, client, unconfirmed=secure))
    with saving(out):
        new.make(server, keys)
        hand_out(out, *own_code.portable(experiment))
        if secure:
            names = {name: public[name] for name in side.clients}
            names[client] = server / "keys" / f"{client}.pub"
            copy_public_keys([new], "keys", names)
        if privacy.aggregators:
            copy_public_keys([new], PARTIES, {name: public[name] for name in privacy.aggregators})
        joins = {**side.joins, client: begins}
        folders.write_settings(server, replace(side, clients=everybody, joins=joins))
    return begins


def refuse_addition(experiment: Experiment, side: ServerSide, keys: Path | None) -> None:
    """Refuse to add a client where results, noise or secure sums rest on who was there before.

    Raises:
        ConfigError: a client cannot be added; the message says why, and what to do.
    """
    plan = experiment.plan
    sums, presence = plan.privacy.aggregation, plan.presence
    setup = [label for label, method in experiment.methods.items() if method.setup_verbs]
    for refused, why in (
        (side.main, "a main server and its clients exchange keys at the start"),
        (plan.privacy.user is not None, "the noise of privacy.user was made for fewer clients"),
        (presence.trace or presence.rhythm, "presence names the rounds of each client already"),
        (
            isinstance(presence.cohort, int),
            "presence.cohort is a number of clients: rounds that are repeated would ask others; "
            "give the share of clients in a new experiment",
        ),
        (setup, f"method '{setup[0] if setup else ''}' asks all clients before the first round"),
        (
            sums is not None and (sums.clients or 0) <= len(side.clients),
            "secure sums were made for the clients of the start: privacy.aggregation.clients of a "
            "new experiment leaves room for more",
        ),
        (
            sums is not None and keys is None,
            "with secure sums a client makes its own key, which the server's machine must not "
            "know: `vergence deploy key NAME` there, and --keys here",
        ),
    ):
        if refused:
            raise ConfigError(f"no client can be added: {why}")


def first_free_round(experiment: Experiment, run: Path) -> int:
    """Return the first round, from 0, that the unfinished methods of a run cannot have begun.

    Raises:
        StateError: the run is finished, or has no such round.
    """
    from vergence.deployment.server_run import unfinished_runs

    every, open_runs = experiment.plan.checkpoint_every, unfinished_runs(experiment, run)
    if not open_runs:
        raise StateError(f"{run} is finished: a new client needs a new `vergence deploy init`")
    if every == 0 and any(run.rglob("turns.csv")):
        raise StateError(
            "run.checkpoint_every = 0: a server that was stopped begins anew, so no client can be "
            "added once a round has begun"
        )
    # A server that was stopped repeats the rounds since its last checkpoint. In these rounds it
    # must ask the same clients: for others, no client opens a sum a second time.
    more = 1 if every == "auto" else every
    begun = [manifest["round"] + more for manifest in open_runs.values() if manifest]
    begins = max(begun, default=0)
    if begins >= experiment.plan.rounds:
        raise StateError(f"{run} has no round left for a new client, of {experiment.plan.rounds}")
    return begins


def admit(folder: Path, key: Path | None, roster: str) -> str:
    """Let a client or an aggregator trust the key of an added client, or the keys in its folder.

    Args:
        folder: the folder of the client or aggregator.
        key: file NAME.pub of the added client; None: the folder is the added client's own.
        roster: digest of all keys, as the operator of another client names it; "": change nothing.

    Returns:
        The digest of all keys that this folder then trusts.

    Raises:
        StateError: the digest is another one, the key's name is known already, the folder has a key
            under its own name that is not its own, or there are no secure sums.
        ConfigError: a file holds no public key, or its name cannot be a client's.
    """
    from vergence.deployment.keys import PARTIES, known_keys, refuse_false_key, roster_digest

    side = folders.settings(folder, ClientSide)
    known = {
        f"{whose}/{name}": path
        for whose in ("keys", PARTIES)
        for name, path in known_keys(folder, whose).items()
    }
    if not known:
        raise StateError(f"{folder} trusts no other client's key: only secure sums need this")
    refuse_false_key(folder, side)
    if key is not None:
        name = checked_name(key.stem)
        # Whoever could replace a key could answer in another client's place.
        if {f"keys/{name}", f"{PARTIES}/{name}"} & known.keys():
            raise StateError(f"{folder} has a key of '{name}' already, and keeps it")
        known[f"keys/{name}"] = key
    digest = roster_digest(side.run, known)
    if roster not in ("", digest):
        raise StateError(
            f"the keys here have the digest {digest}, and not {roster[:64]}: somebody gave this "
            "client or the other one a wrong key; do not go on before you know who"
        )
    if roster and key is not None:
        shutil.copyfile(key, folder / "keys" / f"{key.stem}.pub")
    if roster and side.unconfirmed:
        folders.write_settings(folder, replace(side, unconfirmed=False))
    return digest


def checked_name(name: str) -> str:
    """Return the name of a client or an aggregator.

    Raises:
        ConfigError: it has other characters than letters, digits, _ and -.
    """
    # Names become folders and parts of file names: a path in one would lead out of the deployment.
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"a name must be letters, digits, _ and -; got '{name}'")
    return name


def answer_limit(experiment: Experiment) -> int:
    """Return the largest size in bytes of an answer, before it is known what clients are asked."""
    from vergence.deployment.protocol import LIMIT_IN_MODELS, LIMIT_SLACK

    model = experiment.task(experiment.plan.seeds[0]).init().flat.nbytes
    return LIMIT_IN_MODELS * model + LIMIT_SLACK


def end_folders(
    out: Path, clients: Sequence[str], parties: Sequence[str], address: str, run: str, main: bool
) -> tuple[list[EndFolder], list[EndFolder], EndFolder]:
    """Return the folders to make: the clients', the aggregators', and the main server's.

    `parties` are the aggregators' names. `main` says whether there is a main server.
    """
    return (
        [
            EndFolder(out / "clients" / c, ClientSide(c, address, run, c, main=main))
            for c in clients
        ],
        [
            EndFolder(out / AGGREGATORS / name, ClientSide(name, address, run, adds=True))
            for name in parties
        ],
        EndFolder(out / MAIN, ClientSide(MAIN, address, run, serves=True)),
    )


def hand_out(folder: Path, table: Mapping[str, Any], code: Mapping[str, bytes]) -> None:
    """Write an experiment's table, and the Python files that it names, into a folder."""
    from vergence.results.write import write_toml

    write_toml(folder / EXPERIMENT, table)
    for name, text in code.items():
        make_durable_folder(folder / own_code.FOLDER)
        write_whole(folder / name, text)


def instructions(
    host: str, main: bool, aggregators: bool, made: bool, code: Mapping[str, bytes]
) -> str:
    """Return the text of README.txt, which says on which machine each folder belongs.

    Args:
        host: the server's host.
        main: whether there is a main server.
        aggregators: whether there are aggregators.
        made: whether the private keys were made here and are in the folders.
        code: content of the Python files in every folder, by name.
    """
    parts = [
        (README, README_OWN, True),
        (README_MAIN, README_OWN_MAIN, main),
        (README_ADDS, README_OWN_ADDS, aggregators),
    ]
    text = "".join(with_keys if made else own for with_keys, own, there in parts if there)
    return text.format(host=host) + code_lines(code)


def code_lines(files: Mapping[str, bytes]) -> str:
    """Return a text with the digests of the Python files in every folder; "" without files."""
    if not files:
        return ""
    # By another way: whoever could change the code on its way could change the digest beside it.
    lines = "".join(f"    {name}  {own_code.digest(text)}\n" for name, text in files.items())
    return (
        "Every folder brings Python code, which an end runs once its operator has accepted it:\n"
        f"{lines}Tell everybody these digests by another way; an end adds --accept-code DIGEST\n"
        "to its first `serve` or `join`.\n"
    )


@dataclass(frozen=True)
class EndFolder:
    """The folder of a client, an aggregator or a main server, and the settings to write there."""

    folder: Path
    side: ClientSide

    def make(self, server: Path, keys: Path | None) -> None:
        """Make the folder with the certificate of the deployment's authority, and the settings.

        If `keys` is None, a key pair is made; otherwise the node's public key is copied from
        `keys` to the folder `server`.
        """
        from vergence.deployment.keys import make_node_key

        self.folder.mkdir(parents=True, mode=0o700)
        public = server / "keys" / f"{self.side.client}.pub"
        place_key(make_node_key, self.folder / NODE, public, keys)
        shutil.copy(server / "ca.crt", self.folder / "ca.crt")
        folders.write_settings(self.folder, self.side)


def place_key(
    make: Callable[[Path, Path], None], private: Path, public: Path, keys: Path | None
) -> None:
    """Write a node's public key to the file `public`.

    If `keys` is None, `make` makes the key pair, with the private key in the file `private`;
    otherwise the public key is copied from the folder `keys`.
    """
    if keys is None:
        make(private, public)
    else:
        shutil.copyfile(keys / public.name, public)


def copy_public_keys(ends: Sequence[EndFolder], whose: str, keys: Mapping[str, Path]) -> None:
    """Copy public keys into the subfolder `whose` of the folder of every client and aggregator.

    `keys` holds the file of each key, by its owner.
    """
    # They come from here and not from the server: a malicious one could name made-up clients with
    # keys of its own, and subtract their known replies from a secure sum.
    for end in ends:
        known = end.folder / whose
        known.mkdir()
        for name, key in keys.items():
            shutil.copyfile(key, known / f"{name}.pub")


def exchange_box_keys(main: EndFolder, clients: Sequence[EndFolder], keys: Path | None) -> None:
    """Exchange the public keys for encryption between the main server and every client."""
    from vergence.deployment.keys import BOX, make_box_key

    peers, public = main.folder / "peers", main.folder / f"{MAIN}.box"
    peers.mkdir(mode=0o700)
    place_key(make_box_key, main.folder / BOX, public, keys)
    for client in clients:
        own = peers / f"{client.side.client}.box"
        place_key(make_box_key, client.folder / BOX, own, keys)
        shutil.copy(public, client.folder / "main.box")
    # This was a copy to hand out: the main server itself needs only the private half.
    public.unlink()


def check_public_keys(keys: Path, names: Sequence[str], main: bool) -> None:
    """Check that the folder `keys` holds a usable public key of every node in `names`.

    With `main`, keys for encryption are needed, too.

    Raises:
        ConfigError: a key is missing or unusable; the message names its owner, and says what to do.
    """
    from vergence.deployment.keys import is_box_key, is_node_key

    kinds = {".pub": is_node_key, **({".box": is_box_key} if main else {})}
    for name in names:
        for ending, good in kinds.items():
            file = f"{name}{ending}"
            if not good(keys / file):
                raise ConfigError(
                    f"no usable key of '{name}' at {keys / file}: `vergence deploy key {name}` on "
                    f"its machine makes {name}/{PUBLIC}/{file}; copy that file there"
                )


def refuse_names(silos: Mapping[str, Any]) -> None:
    """Refuse names of people that the option `join --people` of a lab could not accept.

    `silos` maps each lab (a client with several people) to its people's names.

    Raises:
        ConfigError: a name is `all`, contains a comma, begins or ends with a blank, or reads as the
            name of Python code.
    """
    for lab, members in silos.items():
        for name in members if isinstance(members, list | tuple) else ():
            if not isinstance(name, str):
                continue
            fault = ""
            if name == EVERYBODY:
                fault = "stands for everybody in `vergence deploy join --people all`"
            elif "," in name:
                fault = "has a comma, which parts names in `vergence deploy join --people`"
            elif name != name.strip():
                fault = "begins or ends with a blank"
            elif parse(name) is not None:
                fault = "reads as the name of Python code"
            if fault:
                raise ConfigError(
                    f"silos.{lab}: the person's name {name!r} {fault}; give them another name, in "
                    "the data and here"
                )


def fit_to_deploy(experiment: Experiment, clients: Sequence[str], main: bool) -> Experiment:
    """Return an experiment with a number of rounds, if it and its clients' names can be deployed.

    Raises:
        ConfigError: the experiment cannot be deployed, or a name is not allowed; the message says
            what to do.
    """
    from vergence.deployment.joined_node import deployable, with_fixed_rounds
    from vergence.engine.secure_sums import SERVER, sums_for

    aggregators, labs = experiment.plan.privacy.aggregators, experiment.plan.silos.labs
    refuse_names(labs)
    if labs and set(clients) != set(labs):
        raise ConfigError(
            f"--clients must be the labs of the experiment's silos, {', '.join(labs)}; got "
            f"{', '.join(clients)}"
        )
    for client in (*clients, *aggregators):
        checked_name(client)
    if len(set(clients)) != len(clients) or not clients:
        raise ConfigError(f"--clients must be different names, at least one; got {list(clients)}")
    if aggregators and (same := {*clients, SERVER, MAIN} & {*aggregators} or {SERVER} & {*clients}):
        raise ConfigError(
            f"privacy.aggregation: '{min(same)}' would stand for two ends of this "
            "deployment; call a client or an aggregator otherwise"
        )
    for method in deployable(experiment).methods.values():
        sums_for(experiment.plan, method, len(clients))
    if main and not any(method.served for method in experiment.methods.values()):
        raise ConfigError(
            "--main-server: no method of this experiment cuts its network; leave it "
            "out, or use splitfed"
        )
    handing = [label for label, method in experiment.methods.items() if method.passes_layers_on]
    if main and handing:
        raise ConfigError(
            f"--main-server: method '{handing[0]}' hands clients' layers on by "
            "way of the main server, which must not have them"
        )
    if main and MAIN in clients:
        raise ConfigError(f"a client cannot be called '{MAIN}' beside a main server")
    return with_fixed_rounds(experiment)
