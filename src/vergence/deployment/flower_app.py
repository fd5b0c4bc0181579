"""An experiment as an ordinary Flower app, for users who run Flower already.

No part of Flower is replaced or added: there is no admission control and no signature, and clients
do not get the name of a run in advance. Flower's SuperLink decides who is a client. Protections
that need more are refused (`engine/compatibility.py`, "a stock Flower app").

Used by `cli.deploy`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from vergence.core.files import make_durable_folder, saving, write_whole
from vergence.core.serialization import printable
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import reply
from vergence.deployment.folder_setup import fit_to_deploy
from vergence.deployment.folders import (
    EXPERIMENT,
    ClientSide,
    ServerSide,
    running,
    write_settings,
)
from vergence.deployment.joined_node import deployable, with_fixed_rounds
from vergence.deployment.server_run import ServerRun, run_folder
from vergence.deployment.transport import flower
from vergence.engine import compatibility_check
from vergence.engine.compatibility import agree
from vergence.errors import ConfigError, StateError, VergenceError
from vergence.experiment import provenance
from vergence.experiment.schema import Experiment
from vergence.results.write import write_toml

PACKAGE = "vergence_app"
"""Name of the Python package in an app; it holds ServerApp, ClientApp and the experiment."""
MODULE = '''\
"""{end} of this Flower app, which runs the experiment beside it."""

from pathlib import Path

from vergence.deployment.flower_app import {function}

app = {function}(Path(__file__).with_name("{experiment}"))
'''
README = """\
# {title}

An ordinary Flower app of an experiment (`{package}/{experiment}`). Every end needs Flower, and the
same version of vergence ({version}) and torch, which the server compares.

Once, with a certificate for HOST that `ca.crt` signed (nothing need be installed at run time):

    flower-superlink --host 0.0.0.0 --port 8000 --disable-runtime-dependency-installation \\
      --ssl-certfile server.pem --ssl-keyfile server.key --ssl-ca-certfile ca.crt \\
      --enable-supernode-auth

and in `~/.flwr/config.toml` of whoever starts runs:

    [superlink.lab]
    address = "HOST:8000"
    root-certificates = "/absolute/path/of/ca.crt"

Each client ({clients}) makes a key, whose public half is registered under the client's name, and
starts a SuperNode:

    ssh-keygen -t ecdsa -b 384 -N "" -f p00
    flwr supernode register p00.pub lab --name p00
    flower-supernode --superlink HOST:8000 --root-certificates ca.crt \\
      --auth-supernode-private-key p00 --node-config 'client="p00" data="/data/eyes"'

`data` is laid out as the experiment's data set is; without it, they lie where the experiment says.
`person` says who in them the client is (default: its name), `folder` where its states lie (default:
`vergence-NAME` where flower-supernode was started). Then, and again to go on with a stopped run:

    flwr run . lab --stream

Results lie in `{results}/RUN/run`, where flower-superlink was started.
`--run-config 'run="another"'` begins another run. Whoever may start runs sends clients the code
that they run: that is Flower's way. The server sees single replies. Experiments that promise
clients more want `vergence deploy init`.
"""
RESULTS = "vergence-runs"


def fit_to_app(experiment: Experiment) -> Experiment:
    """Return the experiment with the settings of a run in an ordinary Flower app.

    `write_app` calls this.

    Raises:
        ConfigError: the experiment cannot run in such an app, or needs a protection that Flower
            alone cannot give.
    """
    agree(experiment.plan, app=True)
    for method in experiment.methods.values():
        compatibility_check.check(experiment.plan, method, app=True)
    return deployable(experiment)


def write_app(experiment: Experiment, clients: Sequence[str], out: Path) -> None:
    """Write the files of a Flower app that runs an experiment into the new directory `out`.

    `clients` names the clients; if it is empty, all people in the data are clients.

    Raises:
        ConfigError: the experiment cannot run in an app, or a client's name is not allowed.
        StateError: the directory is not empty.
    """
    experiment = with_fixed_rounds(experiment)
    fit_to_app(experiment)
    names = tuple(clients) or experiment.plan.silos.clients(experiment.federation().clients)
    fit_to_deploy(experiment, names, main=False)
    if out.exists() and any(out.iterdir()):
        raise StateError(f"{out} is not empty; choose another --out")
    package = out / PACKAGE
    title = f"{', '.join(experiment.methods)} on {experiment.table['federation']['name']}"
    project = {
        "project": {
            "name": "vergence-app",
            "version": "1.0.0",
            "description": title,
            "license": "Apache-2.0",
            # Flower would install these at run time; every machine has vergence already.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "vergence",
                    "components": {
                        "serverapp": f"{PACKAGE}.server_app:app",
                        "clientapp": f"{PACKAGE}.client_app:app",
                    },
                    "config": {
                        "run": secrets.token_hex(8),
                        "clients": ",".join(names),
                        "results": RESULTS,
                    },
                }
            }
        },
    }
    with saving(out):
        package.mkdir(parents=True)
        (out / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8", newline="\n")
        write_toml(package / EXPERIMENT, experiment.table)
        (package / "__init__.py").write_text(f'"""{title}."""\n', encoding="utf-8", newline="\n")
        for end in ("server", "client"):
            text = MODULE.format(end=end.title(), function=f"{end}_app", experiment=EXPERIMENT)
            (package / f"{end}_app.py").write_text(text, encoding="utf-8", newline="\n")
        text = README.format(
            title=title,
            package=PACKAGE,
            experiment=EXPERIMENT,
            version=provenance.version("vergence"),
            clients=", ".join(names),
            results=RESULTS,
        )
        (out / "README.md").write_text(text, encoding="utf-8", newline="\n")


def named(what: str, table: Mapping[str, Any], where: str) -> str:
    """Return the entry `what` of one of Flower's config tables; a folder can have this name.

    `where` says in the error message where to set the name.

    Raises:
        ConfigError: the name is missing, or has characters that are not allowed.
    """
    name = table.get(what, "")
    # Whoever starts a run chooses it: a path such as ../x would let them write anywhere here.
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,64}", name):
        raise ConfigError(
            f"{what} must be letters, digits, _ and -, got {json.dumps(name)[:80]}: "
            f"{where} '{what}=\"NAME\"'"
        )
    return name


def server_app(experiment: Path) -> Any:
    """Return Flower's ServerApp, which runs an experiment."""
    return flower.server_app(partial(lead, experiment))


def lead(experiment: Path, line: flower.GridTransport, context: Any) -> None:
    """Run an experiment to its end, in the folder that Flower's run config names."""
    config = context.run_config
    run = named("run", config, "--run-config")
    folder = Path(config["results"]) / run
    make_durable_folder(folder)
    with running(folder):
        write_settings(folder, ServerSide(tuple(config["clients"].split(",")), "", run))
        write_whole(folder / EXPERIMENT, experiment.read_bytes())
        run_folder(folder, line, AppServer)


class AppServer(ServerRun):
    """The server in a Flower app; Flower, not a signature, tells it which node sent an answer."""

    fit = staticmethod(fit_to_app)

    def __init__(self, folder: Path, line: flower.GridTransport) -> None:
        super().__init__(folder, line)
        # Flower starts an interpreter for each message: notes that no user reads are not sent.
        self.registry.registered, self.registry.informs = line.name, False

    def genuine(self, client: str, data: bytes, signature: str) -> bool:
        """Return True: Flower has already checked which node sent an answer."""
        return True

    def revoked(self, client: str) -> bool:
        """Return False: Flower itself refuses a node whose key was unregistered."""
        return False

    def awaited(self) -> int:
        """Return the number of clients for which a run waits: all of them."""
        return len(self.side.clients)

    def tell(self, line: str, event: str = "note", **about: Any) -> None:
        """Record an event for the operator, and write its line to Flower's log of the run."""
        super().tell(line, event, **about)
        print(printable(line), flush=True)

    def transport(self) -> dict[str, Any]:
        """Return a description of the transport, for provenance.json."""
        own = super().transport()
        return {"engine": f"stock {own['engine']}", "run": own["run"], "signed answers": False}


def client_app(experiment: Path) -> Any:
    """Return Flower's ClientApp; the node's config names the client for which it answers."""
    return flower.client_app(partial(answer, experiment))


def answer(experiment: Path, asked: bytes, context: Any) -> bytes:
    """Return a client's answer to a request, as bytes.

    A client that cannot start answers with the reason in one line.
    """
    config, client = context.node_config, ""
    try:
        client = named("client", config, "--node-config")
        folder = Path(config.get("folder", f"vergence-{client}"))
        make_durable_folder(folder)
        write_whole(folder / EXPERIMENT, experiment.read_bytes())
        data = config.get("data")
        side = ClientSide(
            client,
            "",
            named("run", context.run_config, "--run-config"),
            str(config.get("person", client)),
            None if data is None else str(Path(data).expanduser().resolve()),
        )
        return AppClient(folder, side).answer(asked)
    except VergenceError as error:
        return reply(asked, client, unsigned, error=str(error))


class AppClient(AnsweringClient):
    """A client in a Flower app, which trains on its own data and keeps its own states."""

    fit = staticmethod(fit_to_app)

    def signer(self) -> Callable[[bytes], str]:
        """Return a function that makes empty signatures: Flower knows which node sent an answer."""
        return unsigned


def unsigned(_: bytes) -> str:
    """Return an empty signature."""
    return ""
