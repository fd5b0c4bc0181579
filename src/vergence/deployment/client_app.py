"""Client node: it has a person's data, its own signing key, and its states on its own disk.

Used by `deployment.flower_app`, `deployment.main_server_node` and `deployment.server_run`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.deployment.client_node import ClientChannel, ClientNode
from vergence.deployment.folders import EVERYBODY, ClientSide, tell
from vergence.deployment.joined_node import JoinedNode
from vergence.deployment.keys import BOX, SealedBox, known_keys, party_identity
from vergence.deployment.teacher_quota import TeacherQuota
from vergence.engine.secure_sums import SecureSum, sums_for
from vergence.errors import DataError, StateError, VergenceError
from vergence.experiment.validation import prepare_data


class AnsweringClient(JoinedNode):
    """Node that carries out a client's work, at the request of the server.

    In split learning, the requests can also come from a main server, which trains the server's part
    of the network.
    """

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        self.federation = self.read_own_data()
        self.samples = sum(len(splits.train) for splits in self.federation.people.values())

    def read_own_data(self) -> Federation:
        """Read the data of this client's people, and prepare them for the task.

        A client is one person, or a lab with several people. People get their names in the run.
        """
        whole = replace(self.experiment, proxy=None).federation()  # proxy data are the server's
        names = self.names_in_data(whole)
        for name in names.values():
            if name not in whole.people:
                few = ", ".join(list(whole.clients)[:8])
                option = "--people" if self.experiment.plan.silos else "--person"
                raise DataError(
                    f"the data of '{whole.name}' hold nobody named '{name}' (there are: "
                    f"{few}); give {option}, or the right --data"
                )
        task = self.experiment.task(self.experiment.plan.seeds[0])
        ready = prepare_data(self.experiment, task, whole.only(tuple(names.values())))
        return replace(ready, people={own: ready.people[name] for own, name in names.items()})

    def names_in_data(self, whole: Federation) -> dict[str, str]:
        """Return a mapping from each person's name in the run to the name in this node's data.

        Raises:
            DataError: a lab has more or fewer people than the experiment says, or two people of
                the same name.
        """
        inside = self.experiment.plan.silos.labs.get(self.side.client)
        if inside is None:
            return {self.side.client: self.side.person}
        people = self.side.people or inside
        if people == (EVERYBODY,):
            people = tuple(whole.clients)
        if len(people) != len(inside) or len(set(people)) != len(people):
            raise DataError(
                f"lab '{self.side.client}' has {plural(len(inside), 'person')} in the "
                f"experiment's silos ({', '.join(inside)}), and "
                f"--people names {len(people)}: name each of them once, in that order"
            )
        return dict(zip(inside, people, strict=True))

    def work(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Handle a request of the server, or an encrypted request of the main server.

        `note` is the request's JSON header. Return the bytes of the answer.
        """
        match note["kind"]:
            case "request":
                return self.client_node(note, closed=False).answer(body)
            case "closed":
                return self.answer_main_server(note, body)
        return super().work(note, body)

    def client_node(self, note: Mapping[str, Any], closed: bool) -> ClientNode:
        """Return the client node for the run that a request's header `note` names.

        With `closed`, the node allows what the main server may request, otherwise what the server
        may request.
        """
        runner = self.runner(note, self.federation, self.folder / "state")
        method, side, plan = runner.worker.method, self.side, self.experiment.plan
        if closed:
            offered = method.offer(method.server(runner.worker.task), side.client)
            # The main server sees smashed data. With the clients' layers, which requests of these
            # kinds and verbs would show it, it could compute the images back.
            summed = [v for v, exposed in method.exposure.items() if exposed.reveal == "aggregate"]
            barred = ["evaluate", "digest", "say", *summed]
            channel = ClientChannel("closed", barred, frozenset(offered))
        else:
            channel = ClientChannel("open", self.verbs_of_main_server(method))
        return ClientNode(
            runner,
            side.client,
            plan=plan,
            channel=channel,
            every=1 if plan.checkpoint_every == "auto" else plan.checkpoint_every,
            identity=replace(party_identity(self.folder, note, self.sign), mark=self.mark),
            admit_turn=TeacherQuota(
                self.folder, side.answers_in_all, side.answers_a_minute, mark=self.mark
            ).count,
        )

    def sums(self, method: Method) -> SecureSum | None:
        """Return the rules of secure sums of clients' replies; None without secure sums.

        All clients whose public keys are in this node's folder can take part.
        """
        return sums_for(self.experiment.plan, method, len(known_keys(self.folder)))

    def verbs_of_main_server(self, method: Method) -> Sequence[str]:
        """Return the kinds of request (verbs) that only the main server may make.

        Replies to them contain smashed data: activations at the cut of the network. The list is
        empty without a main server.
        """
        # Else the aggregator, which has the clients' layers, could ask for smashed data as well.
        if not (method.served and self.side.main):
            return ()
        return [verb for verb, exposed in method.exposure.items() if exposed.raw]

    def answer_main_server(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Carry out an encrypted request of the main server, and return the encrypted answer.

        The aggregator relays request and answer, and can read neither.

        Raises:
            StateError: there is no main server, the request is not from the main server, or the
                request cannot be carried out.
        """
        if not self.side.main:
            raise StateError("this deployment has no main server")
        length = note["attachment"]
        if type(length) is not int or not 0 <= length <= len(body):
            raise StateError("this request does not say how long its attachment is")
        beside, request = body[:length], body[length:]
        box = SealedBox(self.folder / BOX, self.folder / "main.box", self.side.client)
        about = run_words(note)
        opened = box.open(request, f"{about} request")
        try:
            answer = self.client_node(note, closed=True).answer(opened, beside)
        except VergenceError as error:
            # The error may quote the request, which the aggregator between the two must not read.
            tell(self.folder, f"a request of the main server: {error}", "error")
            raise StateError(
                "this client did not do what the main server asked; its events.log says why"
            ) from None
        return box.close(answer, f"{about} answer to {hashlib.sha256(request).hexdigest()}")


def run_words(note: Mapping[str, Any]) -> str:
    """Return the text that binds an encrypted message to one run, method and seed."""
    return f"{note['run']} {note['label']} {note['seed']}"
