"""Plan of a run: rounds, seeds, evaluation, checkpoints, and all other settings.

Used in most packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from vergence.core.naming import plural
from vergence.core.options import NamedOptions, check_ranges
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import VALIDATION, EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.silos import Silos
from vergence.errors import ConfigError
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.poisoning.updates import Poison
from vergence.system.processes import cpu_count
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

Point = Literal["P0", "P1", "P2"]
MOST_ROUNDS, PATIENCE, FIXED_ROUNDS = 200, 8, 20
"""Where nobody chose a number of rounds: the most of them, the evaluations without a gain after
which a run ends, and the rounds where validation may not end it."""
# Seeds lie below: torch takes a negative seed for another, positive one, and two seeds of a run
# would be the same.
SEEDS = 2**63


@dataclass(frozen=True)
class Plan(NamedOptions):
    """Settings of a run, such as rounds, seeds, evaluation and checkpoints.

    Args:
        rounds: number of rounds; 0 only measures the model that a run starts from (`model.start`).
            20 is a `Plan`'s own default in Python; an experiment that names none trains until
            scores on validation samples stop gaining, 200 rounds at most.
        seeds: seeds from 0 to 2^63 - 1; each has a whole run. A seed fixes initial parameters,
            batches and cohorts.
        split_seeds: two or more seeds. The experiment runs once for each seed, on another split of
            its data.
        engine: `simulator`; `bytes`: one process, in which all messages and states are turned into
            bytes and back; `ray`: Ray's workers, which train on CPUs.
        solver: how clients are trained: one by one (`sequential`), or many at once as one batched
            network (`stacked`). `auto` tries which is faster before the first round. The choice is
            kept with the run, and is part of its fingerprint.
        precision: `tf32` is float32 whose products a GPU rounds to 10 bits after the point; a CPU
            has no such format. `bf16` trains in bfloat16 where torch deems it safe. `half` also
            keeps weights in bfloat16, beside float32 parameters. `auto` is `half` if the processor
            or GPU has instructions for it and the network gains from them; else it is `fp32`. This
            choice, too, is kept with the run.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`, which is a GPU if torch sees one. A GPU that is
            asked for by name is refused with Ray and `privacy.cut`, which train on the processor.
        workers: number of worker processes; 0: one per core, or with the engine `ray` one per CPU
            that Ray has. The number does not change results.
        evaluate_every: rounds between evaluations; 0: at the end only.
        evaluate_people: number of people who are evaluated, the same people each time; 0:
            everybody.
        checkpoint_every: rounds between checkpoints; 0: at the end only. `auto` is 1 for networks
            of at most four million numbers; a larger one has a checkpoint every
            `checkpoint_seconds`, and in a deployment after every round.
        checkpoint_seconds: seconds after which a checkpoint is due at the end of a round, besides
            those of `checkpoint_every`; 0: none is. With `checkpoint_every` = 0 there is none.
        points: evaluation points, that is, which models are evaluated for each person. P0 is the
            model with which the client predicts after the round's download, P1 the model after
            local training, P2 the server's model.
        presence: which clients take part in a round.
        delivery: which replies a round waits for.
        wire: compression of uploaded updates.
        pruning: pruning while a run trains.
        early_stopping: when a run ends before its last round.
        privacy: protections beyond what the method does.
        poison: people who attack on purpose.
        silos: labs: clients with many people inside; or a mapping, lab -> names of its people.
    """

    rounds: Annotated[int, Interval(ge=0, le=10_000_000)] = 20
    seeds: tuple[int, ...] = (0,)
    split_seeds: tuple[int, ...] = ()
    engine: Literal["simulator", "bytes", "ray"] = "simulator"
    solver: Literal["auto", "sequential", "stacked"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "half", "auto"] = "fp32"
    device: str = "auto"
    workers: Annotated[int, Ge(0)] = 0
    evaluate_every: Annotated[int, Ge(0)] = 5
    evaluate_people: Annotated[int, Ge(0)] = 0
    checkpoint_every: Annotated[int, Ge(0)] | Literal["auto"] = "auto"
    checkpoint_seconds: Annotated[float, Ge(0)] = 30.0
    points: tuple[Point, ...] = ("P0",)
    presence: Participation = field(default_factory=Participation)
    delivery: Delivery = Delivery()
    wire: Compression = field(default_factory=Compression)
    pruning: Gradual = Gradual(0.0)
    early_stopping: EarlyStopping = EarlyStopping()
    privacy: Privacy = Privacy()
    poison: Poison | None = None
    silos: Silos = Silos()

    def __post_init__(self) -> None:
        check_ranges(self, "run")
        if isinstance(self.silos, Mapping):
            object.__setattr__(self, "silos", Silos({k: tuple(v) for k, v in self.silos.items()}))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(
                f"run: seeds must be different numbers, at least one; got {self.seeds}"
            )
        check_seeds(self.seeds, "run")
        if self.split_seeds and len(set(self.split_seeds)) < max(len(self.split_seeds), 2):
            raise ConfigError(
                f"run: split_seeds must be two or more different numbers; got {self.split_seeds}"
            )
        unknown = [p for p in self.points if p not in ("P0", "P1", "P2")]
        if unknown or "P0" not in self.points:
            raise ConfigError(f"run: points must hold P0 and may add P1, P2; got {self.points}")
        if self.pruning.amount:
            self.pruning.check(self.rounds)
        if self.early_stopping.patience and not self.evaluate_every:
            raise ConfigError(
                "early_stopping looks at people's validation samples when they are evaluated, and "
                "run.evaluate_every = 0 evaluates at the end only: set it to 1 or more"
            )
        # Imported here, since the table of incompatibilities is written in terms of a plan.
        from vergence.engine.compatibility import agree

        agree(self)

    def asked(self, people: int) -> int:
        """Return the largest number of replies that one request of a round waits for."""
        most = min(self.presence.size(people), people)
        return min(most, self.delivery.replies) if self.delivery.name == "quorum" else most

    def secrecy(self, people: int) -> SecureAggregationConfig | None:
        """Return the settings of secure sums; fill in the smallest number of people in a sum.

        `people` is the number of people in the run. None: the plan has no secure sums.

        Raises:
            ConfigError: the noise of a client would be in several sums over different people.
        """
        policy = self.privacy.aggregation
        if policy is None:
            return None
        people = max(people, policy.clients or 0)
        # A person in two sums of one round would be charged once, and the noise of both averaged
        # away. Each client helps to open one sum only, so two of more than half cannot both open.
        if policy.name == "pairwise" and self.privacy.user is not None:
            return policy.most_of(people, self.asked(people))
        return policy.among(self.asked(people))

    def known(self, people: int) -> Plan:
        """Return a copy of the plan: settings that depend on the number of people are filled in."""
        return replace(self, privacy=replace(self.privacy, aggregation=self.secrecy(people)))

    def progress(self, round: int) -> float:
        """Return the fraction of rounds that is done, in [0, 1), for learning-rate schedules."""
        # A step after the last round (`finish`) starts a schedule anew, at the full rate.
        return round / max(self.rounds, 1) % 1.0

    def evaluates(self, done: int) -> bool:
        """Return whether people are evaluated after `done` rounds; always true after the last."""
        every = self.evaluate_every
        return done == self.rounds or (bool(every) and done % every == 0)

    def checkpoint_due(self, done: int, large: bool, seconds: float) -> bool:
        """Return whether a checkpoint is due after `done` rounds, `seconds` after the last one.

        `large` says whether the network has more than four million numbers, and whoever runs it may
        repeat rounds, as no client of a deployment can.
        """
        every = (0 if large else 1) if self.checkpoint_every == "auto" else self.checkpoint_every
        timed = bool(self.checkpoint_every and self.checkpoint_seconds)
        return bool(every and done % every == 0) or (timed and seconds >= self.checkpoint_seconds)

    @property
    def needed_evaluations(self) -> int:
        """Rounds between the evaluations that decide when the run ends; 0: none decides."""
        return self.evaluate_every if self.early_stopping.patience else 0

    @property
    def length(self) -> str:
        """How long a run trains, in words."""
        rule = self.early_stopping
        if not rule.patience:
            return plural(self.rounds, "round")
        every = plural(self.evaluate_every, "round")
        best = "; the models of the best one stay" if rule.restore_best else ""
        return (
            f"until {rule.metric or 'the score'} on validation samples has not gained for "
            f"{plural(rule.patience, 'evaluation')} (one every {every}{best}), "
            f"{self.rounds} rounds at most"
        )

    @property
    def final_points(self) -> tuple[str, ...]:
        """The evaluation points after the last round."""
        # P1 is measured inside a turn, where the trained model is.
        return tuple(p for p in self.points if p != "P1")

    def points_at(self, done: int) -> tuple[str, ...]:
        """Return the evaluation points (such as P0) between rounds, when `done` rounds are done.

        P1 is never among them, as it is evaluated inside turns.
        """
        rule = self.early_stopping
        # After the last round it is too late to end a run, but not to be the best evaluation.
        watched = (VALIDATION,) if rule.restores or (rule.patience and done < self.rounds) else ()
        return (*self.final_points, *watched) if self.evaluates(done) else ()

    def points_in(self, round: int) -> tuple[Point, ...]:
        """Return the evaluation points inside the turns of a round: P1, or none."""
        every = bool(self.evaluate_every)
        return ("P1",) if every and "P1" in self.points and self.evaluates(round + 1) else ()

    @property
    def most_turns(self) -> int:
        """Largest number of turns that one client may take in asynchronous delivery."""
        replies = self.delivery.replies if self.delivery.name == "fedbuff" else 1
        # Turns whose replies are lost have numbers as well: twice as many as are expected.
        more = 2 / (1 - self.presence.lost) if self.presence.lost else 1
        return math.ceil(self.rounds * replies * more)

    @property
    def hands(self) -> int:
        """Number of worker processes: the number asked for, else one per core."""
        return self.workers or cpu_count()


def until_no_gain(
    plan: Plan, closed_form: bool = False, validated: bool = True
) -> tuple[Plan, str]:
    """Return the plan of a run for which nobody chose a number of rounds, and a line on it.

    The run goes on until scores on validation samples have not improved for `PATIENCE` evaluations,
    `MOST_ROUNDS` rounds at most. Where validation may not end a run it has `FIXED_ROUNDS`.

    Args:
        plan: all other settings; `early_stopping` stays if it ends runs.
        closed_form: whether no method takes gradient steps, so that one round is enough.
        validated: whether anybody has validation samples.
    """
    if closed_form:
        return replace(plan, rounds=1), "1 round, as all is computed in closed form"
    rule, why = plan.early_stopping, ""
    try:
        if plan.delivery.timed:
            # A round is then one reply or a few: scores would be compared much too often.
            why = "replies come one by one (delivery)"
        elif not validated:
            why = "nobody has validation samples"
        else:
            rule = rule if rule.patience else EarlyStopping(PATIENCE)
            ending = replace(plan, rounds=MOST_ROUNDS, early_stopping=rule)
            return ending, f"{ending.length}, as run.rounds names no number"
    except ConfigError as refusal:
        why = str(refusal).partition(";")[0]
    fixed = replace(plan, rounds=FIXED_ROUNDS)
    return fixed, f"{fixed.length}, as run.rounds names no number and validation ends no run: {why}"


def check_seeds(seeds: tuple[int, ...], where: str) -> None:
    """Refuse seeds that torch's generators do not accept, or confuse with another seed.

    Raises:
        ConfigError: a seed is not in 0 to 2^63 - 1; the message names it.
    """
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise ConfigError(
                f"{where}: seeds must be whole numbers from 0 to 2^63 - 1 = {SEEDS - 1}; got {seed}"
            )
