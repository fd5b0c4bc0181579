"""Defence in split learning: changes how clients' layers train, and adds noise to their outputs.

Used by `audit.smashed_data`, `engine.compatibility_check`, `engine.protections.dp_split`,
`engine.protections.output_range`, `engine.protections.setup` and `experiment.trained_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vergence.core.client import ClientContext
from vergence.core.data import Batch
from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.requests import Forward, Step, StepResult
from vergence.core.stages import PartialModel, Staged
from vergence.core.task import Task
from vergence.engine.protections.built_in import BudgetedProtection, Spending, owner
from vergence.errors import ConfigError, StateError
from vergence.methods.split.base import Cutting
from vergence.privacy.dp.dp_sgd_solver import DpSgdBudgetSpent
from vergence.privacy.hooks import ClientHooks, Promise, ProtectedRun, Turn
from vergence.privacy.release_log import FOLDER, secret_in
from vergence.privacy.split.bottleneck import version
from vergence.privacy.split.defense import (
    IMAGE,
    BottleneckCut,
    DefendedPiece,
    NoiseSpec,
    NoPeekCut,
    PixelCut,
    SplitDefense,
    gain,
    stage_layers,
)
from vergence.privacy.split.pixel_dp import promise
from vergence.privacy.split.sent_images import Released, book_of
from vergence.training.steps import Trainer, Trainers

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

BACK = "gradient"
"""Name of the tree with the gradient that the server sends back to a client's layers."""
PICTURE = "the same pictures of a client, one replaced by any other"
PIXEL = "the same pictures of a client, one changed by 1 in L1: a pixel from black to white"
AGAINST = "whoever sees smashed data, the server too"
LEARNT = "updates of the clients' layers, "
SENT = "labels and whatever else is sent beside smashed data"


@dataclass(frozen=True)
class DefenseForecast:
    """Forecast of what a run of split learning releases at the cut of the network.

    Attributes:
        releases: how often the run releases each picture.
        noise_spec: noise on smashed data (outputs of clients' layers); None: no noise.
        frozen: whether the clients' layers are never trained. Then a picture always gives the same
            smashed data, which counts as one release.
    """

    releases: int
    noise_spec: NoiseSpec | None
    frozen: bool = False


def outlook(plan: Plan, method: Method, task: Task, federation: Federation) -> DefenseForecast:
    """Forecast how often a run releases a picture at the cut, and with which noise.

    The forecast holds for all clients.

    Raises:
        ConfigError: the network is not cut where the defence applies, or the run would spend more
            than its budget.
    """
    defence = plan.privacy.cut
    assert defence is not None
    assert isinstance(method, Cutting)
    front = method.front(task)
    defence.check(front)
    few, local = federation.clients[:1], method.local
    # With epochs everybody sends a picture equally often. With steps, whoever has the fewest
    # samples sends each most often, and the noise must do for them.
    frozen = defence.freezes_layers or method.fixed
    if local.steps is not None and not frozen:
        federation.refuse_many("counting how often a picture is sent")
        few = federation.clients
    trained = [federation.people[client].train for client in few]
    passes = max(sweeps(local, len(samples)) for samples in trained)
    releases = 1 if frozen else plan.rounds * passes
    moves = gain(task, trained[0]) if isinstance(defence, PixelCut) else 1.0
    noise_spec = defence.noise_spec(releases, moves)
    if noise_spec is not None:
        multiple = noise_spec.multiple / defence.sensitivity(front)
        noise_spec = replace(noise_spec, multiple=multiple)
        spent = defence.epsilon_of(releases * defence.cost(noise_spec.multiple))
        if not spent <= defence.epsilon_limit * (1 + 1e-6):
            raise ConfigError(
                f"privacy.cut: a picture is sent {releases} times, which with this noise spends "
                f"epsilon {spent:.3g}, and {defence.epsilon_limit:g} is allowed; take fewer rounds "
                "or epochs, or leave out noise"
            )
    return DefenseForecast(releases, noise_spec, frozen)


def sweeps(local: LocalTraining, samples: int) -> int:
    """Return the largest number of times that a client sends the same sample in a round.

    `samples` is the number of the client's training samples.
    """
    if local.steps is None:
        return local.epochs
    return math.ceil(local.steps / math.ceil(samples / local.batch))


class DefendedTrainer(ClientHooks):
    """Computes with clients' layers in split learning, and applies the defence to their outputs."""

    # The secret and the release logs lie in the folder of states and do not go back with a
    # checkpoint: a repeated turn is the same release again, or a further one that is counted.
    answers = (Step, Forward)

    def __init__(
        self,
        defence: SplitDefense,
        outlook: DefenseForecast,
        method: Cutting[Any, Any],
        task: Task,
        state: Path,
    ) -> None:
        self.defence, self.outlook, self.task = defence, outlook, task
        self.front = method.front(task)
        self.guarded = DefendedPiece.of(self.front, defence)
        self.trainer, self.others = Trainer(self.guarded), Trainers(task)
        self.folder = state / FOLDER
        noisy = outlook.noise_spec is not None
        self.secret = secret_in(self.folder).child("cut", task.seed) if noisy else None
        self.books: dict[str, Released] = {}
        self.draws = self.secret and self.secret.child("predictions").draws()

    def answer(self, ask: object, turn: Turn, then: Callable[[object], object]) -> object:
        """Compute a step or a forward pass of a client's layers, with the defence.

        Raises:
            DpSgdBudgetSpent: a picture's budget does not allow sending it again.
        """
        site = turn.site
        assert isinstance(ask, Step | Forward)
        # In a U-shaped split a client has the last layers, too, which the defence leaves alone.
        if ask.on(self.task) != self.front:
            return self.others.answer(ask, site.progress)
        if isinstance(ask, Forward):
            return self._release(ask, site)
        if self.defence.freezes_layers:
            return StepResult(ask.params, ask.optimiser, 0.0)
        result = self.trainer.step(ask, site.progress)
        self.guarded.constrain(self.trainer.module, ask.batch)
        return result

    def _release(self, ask: Forward, site: ClientContext) -> Tensor:
        """Charge the budget, and return a batch's smashed data as they leave the client."""
        smashed, noise_spec = self.trainer.forward(ask), self.outlook.noise_spec
        if noise_spec is None:
            return smashed
        assert self.secret is not None
        if ask.rows is None:
            raise StateError(f"'{site.id}' does not say which pictures it is about to send")
        images, mark = ask.rows.tolist(), version(ask.params)
        self._spend(site.id, images, mark, noise_spec.multiple)
        return noise_spec.bound(smashed, images, self.secret.child(site.id, mark))

    def _spend(self, client: str, images: list[int], mark: str, multiple: float) -> None:
        """Write a release into the client's log, if the pictures' budget allows it.

        Args:
            client: the client.
            images: indices of the pictures to send, among the client's training pictures.
            mark: digest of the layers. The same picture through the same layers is one release.
            multiple: noise, as a multiple of the clip bound.
        """
        book = self.books.get(client)
        if book is None or not book.current:
            path = self.folder / book_of(self.task.seed, client)
            book = self.books[client] = Released(path, self.defence.cost)
        new = book.new(images, mark)
        if not new:
            return
        after, planned = book.after(new, multiple), self.defence.cost(multiple)
        if not after <= self.outlook.releases * planned * (1 + 1e-9):
            spent = self.defence.epsilon_of(after)
            if not spent <= self.defence.epsilon_limit:
                raise DpSgdBudgetSpent(
                    f"budget: a picture sent again would make epsilon {spent:.3g}, and "
                    f"{self.defence.epsilon_limit:g} is allowed"
                )
        book.enter(new, mark, multiple)

    def noisy_output(self, params: Params, batch: Batch) -> Tensor:
        """Return the output of client layers for a batch, with fresh noise.

        The noise is not from any client's secret.
        """
        smashed = self.trainer.forward(Forward(params, batch, lambda task: task))
        return self._noisy(smashed)

    def measuring(self, client: str, round: int) -> None:
        """Restart the noise of a client's predictions: a repeated evaluation gives the same values.

        The engine calls this before each evaluation.
        """
        if self.secret is not None:
            self.draws = self.secret.child("predictions", client, round).draws()

    def attach(self, network: nn.Module) -> None:
        """Make a whole network predict with the defence after the client's layers.

        The executor calls this once with the network that it evaluates.
        """
        assert isinstance(network, Staged)
        assert isinstance(self.front.network, PartialModel)
        own_stages, plain = self.front.network.of, network.stage

        # Only the server has its layers. So predictions, too, are made of smashed data that crossed
        # the cut, and are measured with the defence that they would have there.
        def stage(name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
            if name == own_stages[0]:
                self.defence.constrain(stage_layers(network, own_stages), *x.shape[-2:])
            output = plain(name, x, *side_inputs)
            return self._noisy(self.defence.shaped(output)) if name == own_stages[-1] else output

        network.stage = stage

    def _noisy(self, smashed: Tensor) -> Tensor:
        """Return smashed data with fresh noise; unchanged if the defence has no noise."""
        noise_spec = self.outlook.noise_spec
        if noise_spec is None or self.draws is None:
            return smashed
        return noise_spec.fresh(smashed, self.draws)


def defended_trainer(
    plan: Plan, method: Method, task: Task, federation: Federation, state: Path
) -> DefendedTrainer | None:
    """Make the hooks for a run's defence at the cut; None: no defence, or no data here."""
    defence = plan.privacy.cut
    if defence is None or not federation.clients:
        return None
    planned = outlook(plan, method, task, federation)
    assert isinstance(method, Cutting)
    return DefendedTrainer(defence, planned, method, task, state)


class SplitDefenseProtection(BudgetedProtection):
    """The protection of `privacy.cut`: a defence where split learning cuts a network."""

    policy: SplitDefense
    kind = "cut"

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Unit of data that the defence hides: a picture, or a pixel of one."""
        return "picture" if isinstance(self.policy, BottleneckCut) else "pixel"

    def client(self, run: ProtectedRun) -> DefendedTrainer | None:
        """Return the hooks for clients' layers; None: people's data are on other machines."""
        parts = (self.plan, run.method, run.task, run.federation, run.state)
        return defended_trainer(*parts) if run.here else None

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """State in reports what the defence does to smashed data, and a run's epsilon."""
        heading = "What is done to pictures before they are sent."
        return [Promise(self._promise(run), heading)] if run.here else []

    def _promise(self, run: ProtectedRun) -> str:
        """Return the guarantee of the defence in words."""
        defence, method = self.policy, run.method
        planned = outlook(self.plan, method, run.task, run.federation)
        samples = run.federation.people[run.federation.clients[0]].train
        if isinstance(defence, NoPeekCut):
            return (
                f"pictures: {defence.weight:g} times the distance correlation of pictures and "
                "smashed data is part of the clients' loss; this promises nothing: see `vergence "
                "privacy audit`"
            )
        often = (
            "clients do not train their layers, so that a picture is released once"
            if planned.frozen
            else f"a picture is sent {planned.releases} times, through other layers each time"
        )
        assert planned.noise_spec is not None
        if isinstance(defence, PixelCut):
            height, width = samples.columns[IMAGE].shape[-2:]
            multiple = planned.noise_spec.multiple
            return f"pixels: {promise(multiple, height, width, planned.releases)}; {often}"
        assert isinstance(defence, BottleneckCut)
        assert isinstance(method, Cutting)
        front = method.front(run.task)
        ask = Forward(front.init(), samples.take(slice(0, 1)), method.front)
        features = Trainer(front).forward(ask).numel()
        spent = defence.epsilon_of(planned.releases * defence.cost(planned.noise_spec.multiple))
        return (
            f"pictures: smashed vectors ({features} features) are cut to {defence.clip:g} and get "
            f"noise of {planned.noise_spec.scale:.4g} on every feature, drawn once per picture and "
            f"state of the layers; {often}: epsilon {spent:.3g} at delta {defence.delta:g} per "
            "picture, seed and method, against any other in its place, in smashed data alone, not "
            f"in {SENT if planned.frozen else LEARNT + SENT}"
        )

    def planned(self, run: ProtectedRun) -> list[Spending]:
        """Return the privacy cost of every picture in one seed; none without noise."""
        seen = outlook(self.plan, run.method, run.task, run.federation)
        if seen.noise_spec is None:
            return []
        cost = seen.releases * self.policy.cost(seen.noise_spec.multiple)
        return [Spending(self.unit, "", ((cost, 1.0, 1),))]

    def spent(self, run: ProtectedRun) -> Mapping[str, object]:
        """Return the entry of results.json on epsilon per picture.

        The epsilon is that of the picture with the highest privacy cost. The result is empty if
        nothing was logged.
        """
        paths = self.logs(run.state / FOLDER)
        if not paths:
            return {}
        # Epsilon is promised for every picture, so the one with the highest cost counts.
        highest = max(Released(path, self.policy.cost).most for path in paths)
        epsilon = self.policy.epsilon_of(highest)
        return {self.unit: {**self._terms(), "against": AGAINST, "epsilon": epsilon, "check": None}}

    def _terms(self) -> Mapping[str, object]:
        """Return the terms of a run's epsilon: neighbouring data, bound, delta and limits."""
        defence = self.policy
        if isinstance(defence, PixelCut):
            return {
                "neighbours": PIXEL,
                "level": defence.level,
                "norm": defence.norm,
                "delta": 0.0,
                "allowed": None,
                "only": ", an obfuscation that promises nothing for a picture",
            }
        assert isinstance(defence, BottleneckCut)
        return {
            "neighbours": PICTURE,
            "clip": defence.clip,
            "delta": defence.delta,
            "allowed": defence.epsilon,
            "only": " in smashed data alone, not in "
            + (SENT if defence.freezes_layers else LEARNT + SENT),
        }

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Return, for each client, the privacy cost of its picture with the highest cost."""
        logs = self.logs_of(folder, seed)
        costs = [(owner(path), Released(path, self.policy.cost).most) for path in logs]
        return [Spending(self.unit, client, ((cost, 1.0, 1),)) for client, cost in costs]

    def epsilon(self, charges: Sequence[tuple[float, float, int]]) -> float:
        """Return the epsilon of all `charges` together; each has the privacy cost of a picture."""
        return self.policy.epsilon_of(sum(cost for cost, _, _ in charges))
