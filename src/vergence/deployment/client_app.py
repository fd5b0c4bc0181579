"""Client application on a machine of its own: its data, its key, and its states on its own disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.deployment.client_node import ClientNode
from vergence.deployment.folders import EVERYBODY, ClientSide, tell
from vergence.deployment.joined_node import JoinedNode
from vergence.deployment.keys import BOX, SealedBox, known_keys, party_identity
from vergence.deployment.teacher_quota import TeacherQuota
from vergence.engine.secure_sums import SecureSum, sums_for
from vergence.errors import DataError, StateError, VergenceError
from vergence.experiment.validation import prepared


class AnsweringClient(JoinedNode):
    """Takes a client's turns, as the server or the main server asks."""

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        self.federation = self.own()
        self.samples = sum(len(splits.train) for splits in self.federation.people.values())

    def own(self) -> Federation:
        """Read the data of this client, or of a lab's people, under their names in the run."""
        whole = replace(self.experiment, proxy=None).federation()  # the server holds those
        names = self.names(whole)
        for name in names.values():
            if name not in whole.people:
                few = ", ".join(list(whole.clients)[:8])
                option = "--people" if self.experiment.plan.silos else "--person"
                raise DataError(
                    f"the data of '{whole.name}' hold nobody named '{name}' (there are: "
                    f"{few}); give {option}, or the right --data"
                )
        task = self.experiment.task(self.experiment.plan.seeds[0])
        ready = prepared(self.experiment, task, whole.only(tuple(names.values())))
        return replace(ready, people={own: ready.people[name] for own, name in names.items()})

    def names(self, whole: Federation) -> dict[str, str]:
        """Name in the run -> name in the data, of everybody whose data are here.

        Raises:
            DataError: a lab has more or fewer people than the experiment says.
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
        """Carry out a request, or one that the main server closed for this client alone."""
        match note["kind"]:
            case "request":
                return self.home(note, closed=False).answer(body)
            case "closed":
                return self.closed(note, body)
        return super().work(note, body)

    def home(self, note: Mapping[str, Any], closed: bool) -> ClientNode:
        """Return the place of one run's states and turns, for one of those who may ask."""
        runner = self.runner(note, self.federation, self.folder / "state")
        worker, plan = runner.worker, self.experiment.plan
        every = plan.checkpoint_every
        identity = party_identity(self.folder, note, self.sign)
        side = self.side
        count = TeacherQuota(self.folder, side.answers_in_all, side.answers_a_minute).count
        if not closed:
            barred = self.not_for_the_server(worker.method)
            return ClientNode(
                runner,
                side.client,
                runner.store.folder,
                every=every,
                barred=barred,
                identity=identity,
                count=count,
                plan=plan,
            )
        offered = worker.method.offer(worker.method.server(worker.task), side.client)
        # Requests that would show a main server clients' layers, or what they measure.
        summed = [
            verb
            for verb, exposed in worker.method.exposure.items()
            if exposed.reveal == "aggregate"
        ]
        return ClientNode(
            runner,
            side.client,
            runner.store.folder,
            every=every,
            barred=["evaluate", "digest", "say", *summed],
            apart=frozenset(offered),
            channel="closed",
            identity=identity,
            count=count,
            plan=plan,
        )

    def sums(self, method: Method) -> SecureSum | None:
        """Secure sums of this client's replies, among the clients whose keys it has."""
        return sums_for(self.experiment.plan, method, len(known_keys(self.folder)))

    def not_for_the_server(self, method: Method) -> Sequence[str]:
        """Return the verbs that show data, where there is a main server for them."""
        if not (method.served and self.side.main):
            return ()
        return [verb for verb, exposed in method.exposure.items() if exposed.raw]

    def closed(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Carry out what the main server asks; the server sees neither that nor the answer.

        Raises:
            StateError: there is no main server, it is not from it, or it cannot be done.
        """
        if not self.side.main:
            raise StateError("this deployment has no main server")
        length = note["beside"]
        if type(length) is not int or not 0 <= length <= len(body):
            raise StateError("it does not say what goes beside it")
        beside, request = body[:length], body[length:]
        box = SealedBox(self.folder / BOX, self.folder / "main.box", self.side.client)
        about = about_of(note)
        opened = box.open(request, f"{about} request")
        try:
            answer = self.home(note, closed=True).answer(opened, beside)
        except VergenceError as error:  # what it says is not for the server between the two
            tell(self.folder, f"a request of the main server: {error}", "error")
            raise StateError(
                "this client did not do what the main server asked; its events.log says why"
            ) from None
        return box.close(answer, f"{about} answer to {hashlib.sha256(request).hexdigest()}")


def about_of(note: Mapping[str, Any]) -> str:
    """Return the words that tell one run's boxes from another's."""
    return f"{note['run']} {note['label']} {note['seed']}"
