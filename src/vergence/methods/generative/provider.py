"""The provider of PE-ZSL and SG-ZSL: a generator and a student that learn from owners' answers.

The provider is the server. The methods define what an owner answers, and what of its data that has:
`vergence.methods.generative.pe_zsl`, `vergence.methods.generative.sg_zsl`.

Used by `audit.model_extraction`, `audit.teacher_membership` and `methods.generative.teacher`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from vergence.core.conversation import Conversation, collect, forward, step
from vergence.core.data import Batch
from vergence.core.identifiers import ClientId
from vergence.core.local_training import FRESH, LocalTraining, OptimizerState
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Method
from vergence.core.options import T
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Network
from vergence.core.stages import PULL, SMASHED, Piece
from vergence.core.tags import tagged
from vergence.core.task import Task
from vergence.data.zero_shot.semantics import of_task
from vergence.methods.generative.losses import (
    SCORES,
    STUDENT,
    Classification,
    Distillation,
    FeatureGenerator,
    Guidance,
    NoNetwork,
    Regulariser,
    Synthesis,
    Verification,
)
from vergence.methods.generative.sample_generator import (
    KIND,
    MEANING,
    NOISE,
    classifier,
    judge_outputs,
)

NOTHING = Params(torch.zeros(0), Params.of(NoNetwork().build()).layout)
"""The parameters of a network that has none."""


@tagged("Provided", score_shape="said")
@dataclass(frozen=True)
class Provided:
    """The student as `model`, the generator, Adam's moments of both, and the lesson.

    `meaning` holds A, `vectors` `[classes, d]`, and `knows` their fingerprint; `known` holds
    `classes` `[classes]`, 1 if a teacher knows the class. `score_shape` is the shape of a sample's
    scores. `lesson` holds, once it exists, `scores` `[samples, *score_shape]` of the samples from
    which the student learns, and `kept` `[samples]`, 1 where the teachers recognise the class.
    """

    model: Params
    generator: Params
    making: OptimizerState
    learning: OptimizerState
    meaning: Params
    knows: str
    known: Params
    score_shape: tuple[int, ...]
    lesson: Params | None = None
    round: int = 0


@dataclass(frozen=True)
class Taught(Method[Provided, T]):
    """Base of the methods' provider: rounds of the generator, then of the student.

    Args:
        guide: how the generator learns: by `gradients` of the teacher (white box); else by scores
            alone (black box): `scores`, Equation 5.5; `student`, the gradient of a student that
            learns beside it; `estimates`, the teacher's gradient estimated by more questions.
        regulariser: distance that pulls made-up samples to real ones: `kl`, as printed, `mmd`,
            `moments`, of means and standard deviations of every feature, or `none`.
        alpha: weight of the regulariser.
        generator_rounds: T_g; the rounds after them are the student's, T_s.
        samples: number of samples made up per class in a round.
        batch: number of samples in one question, and in one step.
        rate: learning rate of Adam, for generator and student; the thesis has 0.00001.
        verify: whether students learn only from samples whose class the teacher recognises.
        noise: entries of z.
        hidden: width of the generator.
        semantics: source of the vectors A, as in `ap_fl`.
        prompt: text for a text model, with a class name in place of {}.
        directions: number of further samples per sample, with `estimates`.
        radius: scale of the distance of the further samples from the sample.
        classifier_rounds: passes of the classifier where teachers do not know every class.
        knows: which classes an owner says its teacher knows: those of its samples (`own`), which
            reveals them; those that the task calls `seen`; or `all`.
    """

    guide: Literal["gradients", "scores", "student", "estimates"] = "gradients"
    regulariser: Regulariser = "kl"
    alpha: Annotated[float, Ge(0)] = 0.5
    generator_rounds: Annotated[int, Ge(1)] = 50
    samples: Annotated[int, Ge(1)] = 400
    batch: Annotated[int, Ge(2)] = 500
    rate: Annotated[float, Gt(0)] = 1e-3
    verify: bool = True
    noise: Annotated[int, Ge(1)] = 20
    hidden: Annotated[int, Ge(1)] = 4096
    semantics: str = "names"
    prompt: str = "{}"
    directions: Annotated[int, Ge(1)] = 4
    radius: Annotated[float, Gt(0)] = 0.05
    classifier_rounds: Annotated[int, Ge(1)] = 20
    knows: Literal["own", "seen", "all"] = "own"

    resident: ClassVar[bool] = False
    unfit_for_statistics: ClassVar[str] = (
        "its network learns from made-up samples, whose means and variances are nobody's"
    )

    @property
    @abstractmethod
    def verb(self) -> str:
        """Return the kind of requests (verb) to an owner during the generator's training."""

    def meanings(self, task: Task) -> tuple[Tensor, str]:
        """Return the vectors `[classes, d]` of the names of classes, and their fingerprint."""
        names = of_task(task, self.semantics, self.prompt)
        return names.vectors, names.fingerprint

    def judge(self, task: Task) -> Piece:
        """Return the piece of the network that made-up samples enter."""
        return classifier(task)

    def distillation(self, task: Task) -> Distillation:
        """Return the training objective of the student."""
        return Distillation(task.network, task.seed, whole=task)

    def classification(self, task: Task) -> Classification:
        """Return the training objective of a classifier."""
        return Classification(task.network, task.seed, whole=task)

    def verification(self, task: Task) -> Verification:
        """Return the check of scores: their losses, and whether they predict the class."""
        return Verification(NoNetwork(), 0, whole=task)

    def synthesis(self, task: Task) -> Synthesis:
        """Return the training objective of the generator."""
        shape, _, _ = task.input_range()
        width = self.meanings(task)[0].shape[1]
        made = FeatureGenerator(self.noise, width, shape, self.hidden)
        return Synthesis(made, task.seed, judge=classifier(task))

    def guidance(self, task: Task) -> Guidance:
        """Return the objective that an owner computes on made-up samples."""
        return Guidance(NoNetwork(), 0, self.alpha, self.regulariser, judge=classifier(task))

    @property
    def steps(self) -> LocalTraining:
        """Return the training settings of generator and student."""
        return LocalTraining(
            batch=self.batch, optimizer="adam", lr=self.rate, weight_decay=0.0, clip=0.0
        )

    def check(self, task: Task) -> None:
        """Refuse a task without classes."""
        super().check(task)
        task.labelled(torch.zeros(1, dtype=torch.int64))

    def server(self, task: Task) -> Provided:
        """Return the first state: the initial model as the student, and a new generator."""
        (vectors, knows), judge = self.meanings(task), classifier(task)
        one = torch.zeros(1, *task.input_range()[0])
        scores = judge_outputs(judge, task.init().flat, one).detach()
        return Provided(
            task.init(),
            self.synthesis(task).init(),
            FRESH,
            FRESH,
            Params.named(vectors=vectors),
            knows,
            Params.named(classes=torch.zeros(len(vectors))),
            tuple(scores.shape[1:]),
        )

    def setup(self, s: Provided, clients: Sequence[ClientId]) -> Conversation[Provided]:
        """Let owners train their teachers, and collect the classes that these know."""
        replies = yield from collect(
            "teach", {c: Message("teach") for c in clients}, like={"known": s.known}
        )
        known = [reply.trees["known"].total.flat for _, reply in sorted(replies.items())]
        if not known:
            return s
        return replace(s, known=s.known.like(torch.stack(known).amax(0).clamp(0, 1).round()))

    def round(self, s: Provided, cohort: Sequence[ClientId]) -> Conversation[Provided]:
        """Train the generator for a pass over its samples, or, after its rounds, the student."""
        before, owners = s, sorted(cohort)
        if not s.known.flat.any():
            return s
        if s.round < self.generator_rounds:
            s = yield from self.generator_round(s, owners)
        else:
            s = yield from self.score_samples(s, owners)
            s = yield from self.student_round(s)
        return before if s is before else replace(s, round=before.round + 1)

    def generator_round(self, s: Provided, owners: Sequence[ClientId]) -> Conversation[Provided]:
        """Train the generator, and in a black box also the student: T_g of Algorithm 2."""
        answered = False
        for at, made_of in enumerate(self.generator_inputs(s, "generator", s.round)):
            samples = yield from forward(s.generator, made_of, on=self.synthesis)
            answer = yield from self.ask_owners(s, owners, at, self.verb, samples, made_of[KIND])
            if answer is None:
                continue
            # Steps change parameters in place, and these may be the checkpoint's.
            if not answered:
                s, answered = copy_state(s), True
            scores, pull = answer
            if self.guide == "estimates":
                estimate = yield from self.estimated_gradient(
                    s, owners, at, samples, made_of[KIND], scores
                )
                pull = estimate if pull is None else pull + estimate
            batch = made_of if pull is None else {**made_of, PULL: pull}
            if self.guide == "scores":
                batch |= {STUDENT: s.model.flat.clone(), SCORES: scores}
            if self.guide in ("scores", "student"):
                s = yield from self.student_step(
                    s, {SMASHED: samples, SCORES: scores}, self.distillation
                )
            if self.guide == "student":
                batch |= {STUDENT: s.model.flat}
            done = yield from step(s.generator, s.making, batch, self.steps, on=self.synthesis)
            s = replace(s, generator=done.params, making=done.optimiser)
        return s

    def student_step(self, s: Provided, batch: Batch, on: Network) -> Conversation[Provided]:
        """Take a step of the student."""
        done = yield from step(s.model, s.learning, batch, self.steps, on)
        return replace(s, model=done.params, learning=done.optimiser)

    def ask_owners(
        self,
        s: Provided,
        owners: Sequence[ClientId],
        at: int,
        verb: str,
        samples: Tensor,
        kinds: Tensor,
    ) -> Conversation[tuple[Tensor, Tensor | None] | None]:
        """Ask owners about samples; return mean scores and mean gradients.

        Return None if no owner with a teacher answers.
        """
        trees = {"made": Params.named(made=samples)}
        if "kinds" in (self.exposure[verb].down or ()):
            trees["kinds"] = Params.named(kinds=kinds.float())
        message = Message(verb, trees, {"question": at})
        scores = Params.named(scores=torch.zeros(len(samples), *s.score_shape))
        like = {"scores": scores, "gradients": trees["made"]}
        like = {name: like[name] for name in self.exposure[verb].trees}
        replies: dict[ClientId, SealedReply] = yield from collect(
            verb, dict.fromkeys(owners, message), like=like
        )
        trees = [replies[c].trees for c in owners if c in replies]
        answers = [t for t in trees if t["scores"].weight]
        if not answers:
            return None
        means = {name: torch.stack([t[name].total.flat for t in answers]).mean(0) for name in like}
        mean_of = {name: like[name].like(mean) for name, mean in means.items()}
        pull = mean_of["gradients"]["made"] if "gradients" in mean_of else None
        return mean_of["scores"]["scores"], pull

    def estimated_gradient(
        self,
        s: Provided,
        owners: Sequence[ClientId],
        at: int,
        samples: Tensor,
        kinds: Tensor,
        scores: Tensor,
    ) -> Conversation[Tensor]:
        """Return the gradient of the teacher's loss by samples, by random differences.

        sum_j (L(T(x + r u_j), y) - L(T(x), y)) u_j / (r directions), u_j ~ N(0, I).

        Source: Nesterov, Spokoiny, "Random gradient-free minimization of convex functions", 2017,
        Equation 26.
        """
        rng, n = RandomStream("provider", "directions", s.round, at).torch(), self.directions
        moves = torch.randn(n, *samples.shape, generator=rng)
        moved = (samples + self.radius * moves).flatten(0, 1)
        # Negative numbers: questions of the estimates must not share an owner's random stream with
        # those of the round.
        answer = yield from self.ask_owners(s, owners, -1 - at, "judge", moved, kinds)
        if answer is None:
            return torch.zeros_like(samples)
        before = yield from forward(NOTHING, {SCORES: scores, KIND: kinds}, on=self.verification)
        after = {SCORES: answer[0], KIND: kinds.repeat(n)}
        after = yield from forward(NOTHING, after, on=self.verification)
        rise = (after[:, 0].unflatten(0, (n, -1)) - before[:, 0]) / (self.radius * n * len(kinds))
        return (rise.reshape(n, -1, *[1] * (samples.ndim - 1)) * moves).sum(0)

    def generator_inputs(
        self, s: Provided, what: str, number: int, every: bool = False
    ) -> Iterator[Batch]:
        """Yield a pass of noise, vectors and classes in batches: of all classes, or known ones."""
        rng = RandomStream("provider", what, number).torch()
        # The student learns known classes only; the final classifier learns all from the generator.
        classes = torch.arange(len(s.known.flat)) if every else s.known.flat.nonzero()[:, 0]
        kinds = classes.repeat_interleave(self.samples)
        kinds = kinds[torch.randperm(len(kinds), generator=rng)]
        for part in kinds.split(self.batch):
            noise = torch.randn(len(part), self.noise, generator=rng)
            # The same stream in every round: the lesson's samples are made again, and not stored.
            yield {KIND: part, NOISE: noise, MEANING: s.meaning["vectors"][part]}

    def score_samples(self, s: Provided, owners: Sequence[ClientId]) -> Conversation[Provided]:
        """Collect the teachers' scores of the samples from which the student learns: Equation 5.3.

        Samples of a question without an answer are left out. Without any answer, all questions are
        asked again in the next round.
        """
        if s.lesson is not None:
            return s
        answered, scores, valid = False, [], []
        for at, made_of in enumerate(self.generator_inputs(s, "lesson", 0)):
            samples = yield from forward(s.generator, made_of, on=self.synthesis)
            kinds = made_of[KIND]
            answer = yield from self.ask_owners(s, owners, at, "judge", samples, kinds)
            if answer is None:
                scores.append(torch.zeros(len(kinds), *s.score_shape))
                valid.append(torch.zeros(len(kinds)))
                continue
            checked = yield from forward(
                NOTHING, {SCORES: answer[0], KIND: kinds}, on=self.verification
            )
            answered = True
            scores.append(answer[0])
            valid.append(checked[:, 1] if self.verify else torch.ones(len(kinds)))
        if not answered:
            return s
        return replace(s, lesson=Params.named(scores=torch.cat(scores), kept=torch.cat(valid)))

    def student_round(self, s: Provided) -> Conversation[Provided]:
        """Train the student for a pass over the lesson's valid samples: T_s of Algorithm 2."""
        if s.lesson is None:
            return s
        s, scores, valid = copy_state(s), s.lesson["scores"], s.lesson["kept"]
        for made_of, their_scores, flags in zip(
            self.generator_inputs(s, "lesson", 0),
            scores.split(self.batch),
            valid.split(self.batch),
            strict=True,
        ):
            rows = flags.nonzero()[:, 0]
            if len(rows):
                inputs = {name: column[rows] for name, column in made_of.items()}
                samples = yield from forward(s.generator, inputs, on=self.synthesis)
                batch = {SMASHED: samples, SCORES: their_scores[rows]}
                s = yield from self.student_step(s, batch, self.distillation)
        return s

    def finish(self, s: Provided, clients: Sequence[ClientId]) -> Conversation[Provided]:
        """Train a classifier of all classes, if teachers do not know every class: Equation 6.6."""
        if s.known.flat.all() or not s.known.flat.any():
            return s
        # The classifier is another objective: the student's moments do not carry over.
        s = replace(copy_state(s), learning=FRESH)
        for number in range(self.classifier_rounds):
            for made_of in self.generator_inputs(s, "classifier", number, every=True):
                samples = yield from forward(s.generator, made_of, on=self.synthesis)
                batch = {SMASHED: samples, KIND: made_of[KIND]}
                s = yield from self.student_step(s, batch, self.classification)
        return s


def copy_state(s: Provided) -> Provided:
    """Return a copy of a state in its own memory: steps change parameters in place."""
    making, learning = (
        OptimizerState({name: slot.copy() for name, slot in o.slots.items()}, o.steps)
        for o in (s.making, s.learning)
    )
    model, generator = s.model.copy(), s.generator.copy()
    return replace(s, model=model, generator=generator, making=making, learning=learning)
