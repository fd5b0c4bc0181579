"""Base class of all nodes that join a server: reads an experiment, and signs its answers.

Used by `cli.deploy`, `deployment.client_app`, `deployment.flower_app`,
`deployment.folder_setup`, `deployment.resident_node` and `deployment.server_run`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vergence.core.federation import Federation
from vergence.core.files import make_durable_folder
from vergence.core.method import Method
from vergence.core.randomness import RandomStream
from vergence.deployment import own_code
from vergence.deployment.client_registry import reply
from vergence.deployment.folders import EXPERIMENT, NODE, ClientSide, facts, tell
from vergence.deployment.keys import signer
from vergence.deployment.protocol import unframed
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.plan import FIXED_ROUNDS, Plan
from vergence.engine.protections.dp_sgd import refuse_own_prior
from vergence.engine.protections.setup import client_hooks
from vergence.engine.round_loop import device_for, records_of, runner_for
from vergence.engine.secure_sums import SecureSum, server_deals
from vergence.engine.storage.client_states import ClientStateStore
from vergence.errors import ConfigError, StateError, VergenceError
from vergence.experiment.public_data import ReleasedSamples
from vergence.experiment.run import refuse_several_splits
from vergence.experiment.schema import Experiment, load, with_length
from vergence.experiment.trust import trust_in_deployment, under
from vergence.privacy.folder_marks import FolderMark
from vergence.privacy.secure_aggregation.session import FEWEST


def with_fixed_rounds(experiment: Experiment) -> Experiment:
    """Return an experiment for a deployment, whose clients agree to a number of rounds beforehand.

    It differs only if the experiment names no number and validation would end its run.
    """
    if not (experiment.default_length and experiment.plan.early_stopping.patience):
        return experiment
    plan = replace(experiment.plan, rounds=FIXED_ROUNDS, early_stopping=EarlyStopping())
    table = {key: part for key, part in experiment.table.items() if key != "early_stopping"}
    return replace(
        experiment,
        plan=plan,
        table=with_length(table, plan),
        default_length=f"{plan.length}, as run.rounds names no number and clients of a deployment "
        "agree to one beforehand",
    )


def deployable(experiment: Experiment) -> Experiment:
    """Return an experiment with the settings of a deployment: each client is a separate process.

    Raises:
        ConfigError: the experiment has an option that a deployment does not support.
    """
    refuse_several_splits(experiment, "a deployment")
    experiment = with_fixed_rounds(experiment)
    plan = replace(experiment.plan, solver="sequential", device="cpu")
    for refused, why in _refusals(experiment, plan):
        if refused:
            raise ConfigError(why)
    device_for(plan)
    for label, method in experiment.methods.items():
        if method.pooled:
            raise ConfigError(f"method '{label}' collects everybody's data: leave it out")
    task = experiment.task(plan.seeds[0])
    for method in experiment.methods.values():
        method.check(task)
    if plan.privacy.solver is not None:
        refuse_own_prior(task)
    if (policy := plan.privacy.aggregation) is not None:
        for label, method in experiment.methods.items():
            if server_deals(method, plan.privacy):
                raise ConfigError(
                    f"privacy.aggregation: people share different entries by '{label}'; with 2 "
                    f"aggregators ({', '.join(plan.privacy.aggregators)}) the server of a "
                    "deployment would make the tables that close what few share, and could have "
                    "it opened; name a third aggregator"
                )
            trees = method.known_trees(method.server(task))
            for verb in method.exposure:  # a client must know how long a row is
                SecureSum(policy.among(0), FEWEST, most=plan.silos.most).form(method, verb, trees)
    return replace(experiment, plan=plan)


def _refusals(experiment: Experiment, plan: Plan) -> Sequence[tuple[object, str]]:
    """Return options that a deployment lacks: whether each is used, and the message."""
    return (
        (
            plan.delivery != type(plan.delivery)(),
            "delivery: a deployment waits for everybody's reply: leave it out",
        ),
        (
            plan.early_stopping.patience,
            "early_stopping: clients of a deployment agree to a number of rounds beforehand; leave "
            "it out, and choose run.rounds",
        ),
        (
            plan.precision == "auto",
            "run.precision = 'auto' looks at the processor that trains, and those of a deployment "
            "differ; name 'fp32', 'bf16' or 'half'",
        ),
        (
            experiment.model.start is not None,
            "model.start: a deployment's clients have no runs of this machine; start in the "
            "simulator, or leave start out",
        ),
        (
            experiment.poison is not None,
            "poison: a deployment has real people, who lie or do not: leave it out",
        ),
        (
            plan.privacy.output_range is not None,
            "privacy.output_range: the server of a deployment has nobody's pictures to tell the "
            "range from; leave it out, or simulate",
        ),
        (
            plan.privacy.aggregation is not None and plan.privacy.aggregation.groups,
            "privacy.aggregation: sums of groups are simulated only; leave out groups and "
            "privacy.robust, or simulate",
        ),
        (
            isinstance(experiment.proxy, ReleasedSamples),
            "proxy: people of a deployment give up nothing to its server; name a data set that it "
            "holds, or simulate",
        ),
    )


class JoinedNode:
    """Base of nodes that answer a server's requests; `samples` counts a node's training samples."""

    samples = 0
    role = "client"
    """This node's role, as messages to the operator name it."""
    fit = staticmethod(deployable)
    """Function that checks and adapts the experiment in the folder."""

    def __init__(self, folder: Path, side: ClientSide) -> None:
        torch.set_num_threads(1)
        self.folder, self.side = folder, side
        self.mark = FolderMark(folder, side.run, side.client)
        sets = [] if side.data is None else [f"federation.root={json.dumps(side.data)}"]
        with under(trust_in_deployment(folder, side.accepted)):
            self.experiment = self.fit(load(folder / EXPERIMENT, sets))
        self.sign = self.signer()
        own = own_code.combined_digest(self.experiment.files(self.experiment.table))
        self.facts = facts(self.experiment.table, own)

    def signer(self) -> Callable[[bytes], str]:
        """Return the function that signs this node's answers."""
        return signer(self.folder / NODE)

    def answer(self, asked: bytes) -> bytes:
        """Return the signed answer to a request; an error is answered by one line of text."""
        begun = time.monotonic()
        try:
            body, error = self.carry_out(asked), ""
        except VergenceError as fault:
            body, error = b"", str(fault)
        except Exception as fault:
            # The text of an unexpected error may hold a person's data or paths: it stays in this
            # folder's log, and the server gets the error's class alone.
            tell(self.folder, f"error: {type(fault).__name__}: {fault}", "error")
            body, error = b"", f"{type(fault).__name__} at the client; its events.log says more"
        return reply(asked, self.side.client, self.sign, body, error, time.monotonic() - begun)

    def carry_out(self, asked: bytes) -> bytes:
        """Carry out a request, and return the body of the answer."""
        note, body = unframed(asked)
        match note["kind"]:
            case "hello":
                return json.dumps({**self.facts, "train": self.samples}).encode()
            case "welcome":
                tell(self.folder, f"the server knows this {self.role}", "welcome")
            case "refused":
                line = f"the server refuses this {self.role}: {note['text'][:300]}"
                tell(self.folder, line, "refused")
            case "bye":
                tell(self.folder, "finished", "finished")
            case _:
                return self.work(note, body)
        return b""

    def work(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Carry out a request of a kind that only nodes of this role get; subclasses override this.

        `note` is the request's JSON header. Return the body of the answer.
        """
        raise StateError(f"a request of unknown kind '{note['kind']}'")

    def runner(self, note: Mapping[str, Any], federation: Federation, folder: Path) -> ClientRunner:
        """Return the object that trains and evaluates in one run, with the data of given people.

        Args:
            note: JSON header of a request, which names run, method and seed.
            federation: the people's data.
            folder: the node's folder for clients' states.

        Raises:
            StateError: the request does not name a run of this experiment.
        """
        state, plan = self.state(note, folder), self.experiment.plan
        label, seed = note["label"], note["seed"]
        method, task = self.experiment.methods[label], self.experiment.task(seed)
        assert plan.precision != "auto"  # see `deployable`
        worker = ClientExecutor(
            method,
            task,
            LocalData(federation, federation),
            RandomStream("run", seed),
            Computation(plan.precision, wire=plan.wire),
            client_hooks(plan, method, task, federation, state, self.tell_verdict),
        )
        store = ClientStateStore(state, seed, records_of(plan, method, task), lasting=True)
        return runner_for(plan, worker, store, self.sums(method))

    def tell_verdict(self, line: str) -> None:
        """Record a protection's finding in this node's own log, which no server reads."""
        tell(self.folder, line, "verdict")

    def state(self, note: Mapping[str, Any], folder: Path) -> Path:
        """Return the folder of one run's states below `folder`; make it if it is missing.

        `note` is the JSON header of a request, which names run, method and seed.

        Raises:
            StateError: the request belongs to another deployment, or does not name a run of this
                experiment.
        """
        run, label, seed = note["run"], note["label"], note["seed"]
        # Privacy budgets and sums are recorded per run: a malicious server that announces a new run
        # would have all of them afresh.
        if run != self.side.run:
            raise StateError(
                f"this {self.role} takes part in run '{self.side.run}' alone, not in "
                f"'{run}': a new run wants new folders (`vergence deploy init`)"
            )
        known = label in self.experiment.methods and seed in self.experiment.plan.seeds
        # 0.0 equals 0 in Python, but names other files: with it a server would get empty ledgers.
        if not known or type(seed) is not int:
            raise StateError(f"no method '{label}' with seed {seed} in this experiment")
        state = folder / run / label
        make_durable_folder(state)
        return state

    def sums(self, method: Method) -> SecureSum | None:
        """Return the rules of secure sums of this node's replies; None without secure sums."""
        return None
