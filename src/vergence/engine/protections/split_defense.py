"""Defence at the cut in a run: training of a client's layers, and noise on what leaves them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from vergence.core.stages import CutPoint, Staged
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
    held,
)
from vergence.privacy.split.pixel_dp import promise
from vergence.privacy.split.sent_images import Released, book_of
from vergence.training.steps import Trainer, Trainers

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

BACK = "gradient"
"""The tree in which a client's layers get what they learn from."""
PICTURE = "the same pictures of a client, one replaced by any other"
PIXEL = "the same pictures of a client, one changed by 1 in L1: a pixel from black to white"
AGAINST = "whoever sees smashed data, the server too"
LEARNT = "updates of the clients' layers, "
SENT = "labels and whatever else is sent beside smashed data"


@dataclass(frozen=True)
class DefenseForecast:
    """Forecast of a run at its cut: how often it releases a picture, with which noise."""

    releases: int
    noise_spec: NoiseSpec | None
    still: bool = False
    """Whether the clients' layers are never trained: the same picture is the same release."""


def outlook(plan: Plan, method: Method, task: Task, federation: Federation) -> DefenseForecast:
    """Forecast of a run, the same for all its clients: as for who has fewest samples.

    Raises:
        ConfigError: the network is not cut where the defence holds, or the run spends too much.
    """
    defence = plan.privacy.cut
    assert defence is not None
    assert isinstance(method, Cutting)
    defence.check(method.front(task))
    few, local = federation.clients[:1], method.local
    still = defence.still or method.fixed
    if local.steps is not None and not still:
        federation.refuse_many("counting how often a picture is sent")
        few = federation.clients
    trained = [federation.people[client].train for client in few]
    passes = max(sweeps(local, len(samples)) for samples in trained)
    releases = 1 if still else plan.rounds * passes
    moves = gain(task, trained[0]) if isinstance(defence, PixelCut) else 1.0
    noise_spec = defence.noise_spec(releases, moves)
    if noise_spec is not None:
        spent = defence.amounts(releases * defence.cost(noise_spec.multiple))
        if not spent <= defence.allowed * (1 + 1e-6):
            raise ConfigError(
                f"privacy.cut: a picture is sent {releases} times, which with this noise spends "
                f"epsilon {spent:.3g}, and {defence.allowed:g} is allowed; take fewer rounds or "
                "epochs, or leave out noise"
            )
    return DefenseForecast(releases, noise_spec, still)


def sweeps(local: LocalTraining, samples: int) -> int:
    """Largest number of times a client with so many samples sends one of them in a round."""
    if local.steps is None:
        return local.epochs
    return math.ceil(local.steps / math.ceil(samples / local.batch))


class DefendedTrainer(ClientHooks):
    """Answers what a client asks of its own layers, and lets predictions pass the cut.

    The secret and the books lie in the folder of states; neither goes with a checkpoint, so that
    whatever is done again is the same release, or a further one that counts.
    """

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

    def answer(self, ask: Any, turn: Turn, then: Callable[[Any], Any]) -> Any:
        """Answer what a client asks of its own layers.

        Raises:
            DpSgdBudgetSpent: a picture's budget does not allow that it is sent again.
        """
        site = turn.site
        if ask.on(self.task) != self.front:
            return self.others.answer(ask, site.progress)
        if isinstance(ask, Forward):
            return self._released(ask, site)
        if self.defence.still:
            return StepResult(ask.params, ask.optimiser, 0.0)
        done = self.trainer.step(ask, site.progress)
        self.guarded.keep(self.trainer.module, ask.batch)
        return done

    def _released(self, ask: Forward, site: ClientContext) -> Tensor:
        """Smashed data of a batch as they leave a client, written down before they do."""
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
        """Write a release into the client's log, if the pictures' budget allows it."""
        book = self.books.get(client)
        if book is None or not book.current:
            path = self.folder / book_of(self.task.seed, client)
            book = self.books[client] = Released(path, self.defence.cost)
        new = book.new(images, mark)
        if not new:
            return
        after, planned = book.after(new, multiple), self.defence.cost(multiple)
        if not after <= self.outlook.releases * planned * (1 + 1e-9):
            spent = self.defence.amounts(after)
            if not spent <= self.defence.allowed:
                raise DpSgdBudgetSpent(
                    f"budget: a picture sent again would make epsilon {spent:.3g}, and "
                    f"{self.defence.allowed:g} is allowed"
                )
        book.enter(new, mark, multiple)

    def noisy_output(self, params: Params, batch: Batch) -> Tensor:
        """Output that some layers would give for a batch, with noise that is nobody's."""
        smashed = self.trainer.forward(Forward(params, batch, lambda task: task))
        return self._noisy(smashed)

    def measuring(self, client: str, round: int) -> None:
        """Draw the noise of a client's predictions anew."""
        if self.secret is not None:
            self.draws = self.secret.child("predictions", client, round).draws()

    def attach(self, network: nn.Module) -> None:
        """Let what a whole network predicts pass the cut as it does in training.

        Nobody but the server has its layers, so that this is what predictions are made of.
        """
        assert isinstance(network, Staged)
        assert isinstance(self.front.network, CutPoint)
        mine, plain = self.front.network.of, network.stage

        def stage(name: str, x: Tensor, *beside: Tensor) -> Tensor:
            if name == mine[0]:
                self.defence.keep(held(network, mine), *x.shape[-2:])
            found = plain(name, x, *beside)
            return self._noisy(self.defence.shaped(found)) if name == mine[-1] else found

        network.stage = stage

    def _noisy(self, smashed: Tensor) -> Tensor:
        noise_spec = self.outlook.noise_spec
        if noise_spec is None or self.draws is None:
            return smashed
        return noise_spec.fresh(smashed, self.draws)


def defended_trainer(
    plan: Plan, method: Method, task: Task, federation: Federation, state: Path
) -> DefendedTrainer | None:
    """Defence at the cut of a run, None where nothing stands there or nobody is here."""
    defence = plan.privacy.cut
    if defence is None or not federation.clients:
        return None
    seen = outlook(plan, method, task, federation)
    assert isinstance(method, Cutting)
    return DefendedTrainer(defence, seen, method, task, state)


class SplitDefenseProtection(BudgetedProtection):
    """A defence where a network is cut."""

    policy: SplitDefense
    kind = "cut"

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Pictures, or pixels of them."""
        return "picture" if isinstance(self.policy, BottleneckCut) else "pixel"

    def client(self, run: ProtectedRun) -> DefendedTrainer | None:
        """Hooks of clients' layers, where people are here."""
        given = (self.plan, run.method, run.task, run.federation, run.state)
        return defended_trainer(*given) if run.here else None

    def forecast(self, run: ProtectedRun) -> list[Promise]:
        """Treatment of smashed data, and the epsilon that a run will spend."""
        heading = "What is done to pictures before they are sent."
        return [Promise(self._promise(run), heading)] if run.here else []

    def _promise(self, run: ProtectedRun) -> str:
        defence, method = self.policy, run.method
        seen = outlook(self.plan, method, run.task, run.federation)
        samples = run.federation.people[run.federation.clients[0]].train
        if isinstance(defence, NoPeekCut):
            return (
                f"pictures: {defence.weight:g} times the distance correlation of pictures and "
                "smashed data is part of the clients' loss; this promises nothing: see `vergence "
                "privacy audit`"
            )
        often = f"a picture is sent {seen.releases} times, through other layers each time"
        if seen.still:
            often = "clients do not train their layers, so that a picture is released once"
        if isinstance(defence, PixelCut):
            height, width = samples.columns[IMAGE].shape[-2:]
            return f"pixels: {promise(defence.level, height, width, seen.releases)}; {often}"
        assert isinstance(defence, BottleneckCut)
        assert isinstance(method, Cutting)
        assert seen.noise_spec is not None
        front = method.front(run.task)
        ask = Forward(front.init(), samples.take(slice(0, 1)), method.front)
        features = Trainer(front).forward(ask).numel()
        spent = defence.amounts(seen.releases * defence.cost(seen.noise_spec.multiple))
        return (
            f"pictures: smashed vectors ({features} features) are cut to {defence.clip:g} and get "
            f"noise of {seen.noise_spec.scale:.4g} on every feature, drawn once per picture and "
            f"state of the layers; {often}: epsilon {spent:.3g} at delta {defence.delta:g} per "
            "picture, seed and method, against any other in its place, in smashed data alone, not "
            f"in {SENT if seen.still else LEARNT + SENT}"
        )

    def spent(self, run: ProtectedRun) -> Mapping[str, Any]:
        """Budget that a run spent on its pictures: on the dearest one."""
        defence, paths = self.policy, self.logs(run.state / FOLDER)
        if not paths:
            return {}
        found = defence.amounts(max(Released(path, defence.cost).most for path in paths))
        if isinstance(defence, PixelCut):
            told = {"neighbours": PIXEL, "level": defence.level, "delta": 0.0, "allowed": None}
            told["only"] = ", an obfuscation that promises nothing for a picture"
        else:
            assert isinstance(defence, BottleneckCut)
            told = {"neighbours": PICTURE, "clip": defence.clip, "delta": defence.delta}
            where = SENT if defence.still else LEARNT + SENT
            told |= {"allowed": defence.epsilon, "only": f" in smashed data alone, not in {where}"}
        return {self.unit: {**told, "against": AGAINST, "epsilon": found, "check": None}}

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Cost of every client's dearest picture."""
        logs = self.logs_of(folder, seed)
        costs = [(owner(path), Released(path, self.policy.cost).most) for path in logs]
        return [Spending(self.unit, who, ((dearest, 1.0, 1),)) for who, dearest in costs]

    def epsilon(self, charges: Sequence[tuple[float, float, int]]) -> float:
        """Epsilon of releases of a picture."""
        return self.policy.amounts(sum(cost for cost, _, _ in charges))
