"""SplitGuard for gaze: a client detects hijacking servers by falsifying labels now and then.

A server that trains the task answers false labels with another gradient than true labels. A server
that hijacks the client's layers ignores labels, so its answers do not differ. In every block of
`every` batches the client falsifies the labels of one batch (the lie), at a position that only the
client knows. It takes no training step with the answer to the lie. It checks whether this answer is
the odd one out: the answer that is furthest from the mean of the others.

**How labels of a regression are falsified.** All targets of the batch are shifted by `by` standard
deviations of the batch in every column, up or down at random. In classification any wrong label
would do. Here exchanged or mirrored labels would not: the gradient of an absolute error is the sign
of the residual, and over a batch about as many signs change from plus to minus as back. A common
shift changes the signs in one direction.

**What it promises.** If answers do not depend on labels, the odd one out is the answer to the lie
in one of `every` blocks on average, apart from the effect of the step that the client leaves out. A
server that ignores labels from the start is trusted with a probability of at most `missed`, even if
it ends rounds early or repeats them (`split_guard_client.py` says how such blocks count). A block
that is unfinished when the run ends is not judged: fewer than 2 * `every` batches. A server that
used labels until it was nearly trusted, and then ignores them, may still be trusted once.

An honest server whose answer to a lie is the odd one out with probability `expected` or more is
accused with a probability of at most `accused`, however long the run is. For this, a new test
begins after each verdict `trusted`, and the k-th test has the fraction 6 / (pi k)^2 of `accused`;
over all k the fractions add up to 1.

Used by `engine.protections.split_guard`, `experiment.privacy.schema`, `privacy.config` and
`privacy.split.split_guard_client`.

Source: Erdogan, Küpçü and Cicek, "SplitGuard: detecting and mitigating training-hijacking attacks
in split learning", WPES 2022, Sections 3 and 4: the falsified batches and what they show. Bounds:
Wald, "Sequential tests of statistical hypotheses", 1945, and Ville's inequality.
Differs: a test of ranks stands in for the source's score of angles and lengths, which has
thresholds to be tuned; labels are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from vergence.core.options import check_ranges
from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import NoiseStream

Verdict = Literal["open", "trusted", "accused"]
FOUND, NOT_FOUND, AGAIN = 1, 0, 2
"""Result of a block: the answer to false labels was the odd one out, or was not, or was the odd one
out in a repeated block, which does not count."""


@dataclass(frozen=True)
class SplitGuard:
    """Options of SplitGuard's test: how often a client sends false labels, and error probabilities.

    An answer of the server is the gradient of a batch's smashed data.

    Attributes:
        every: number of batches in a block; one of them has false labels.
        by: number of standard deviations by which labels are shifted.
        expected: probability that an honest server's answer to false labels differs most from the
            other answers of its block.
        missed: largest probability of trusting a server that ignores labels.
        accused: largest probability of accusing an honest server, over all tests.
    """

    every: Annotated[int, Ge(3)] = 10
    by: Annotated[float, Gt(0)] = 1.0
    expected: Annotated[float, Interval(gt=0, lt=1)] = 0.6
    missed: Annotated[float, Interval(gt=0, lt=1)] = 0.01
    accused: Annotated[float, Interval(gt=0, lt=1)] = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, "split_guard")
        if self.expected * self.every <= 1:
            raise ConfigError(
                f"split_guard: expected = {self.expected:g} is no more than chance, one in "
                f"{self.every}; raise expected or every"
            )

    def falsified(self, labels: Tensor, draws: NoiseStream) -> Tensor:
        """Return false labels for a batch, `[samples, columns]`.

        In each column all labels are shifted by the same amount, up or down at random.
        """
        ways = torch.from_numpy(draws.uniform(labels.shape[1])) < 0.5
        moves = self.by * labels.std(0) * torch.where(ways, -1.0, 1.0).to(labels.dtype)
        return labels + moves

    def block(self, number: int, of: int) -> tuple[int, int]:
        """Return the first batch and the size of the block with batch `number` of a round.

        The round has `of` batches. Its last block also contains the batches that are left over. In
        a longer block the lie (the batch with false labels) is found by chance less often than
        `evidence` assumes; both error bounds still hold.
        """
        start = min(number // self.every, max(of // self.every, 1) - 1) * self.every
        last = start + 2 * self.every > of
        return start, of - start if last else self.every

    @property
    def evidence(self) -> tuple[float, float]:
        """Log likelihood ratios of a block whose lie was found, and of one whose lie was not found.

        The lie is the batch with false labels; it is found if its answer is the odd one out.

        A ratio is the probability under an honest server, divided by the probability under a server
        that ignores labels.
        """
        found_ratio = math.log(self.expected * self.every)
        return found_ratio, math.log((1 - self.expected) / (1 - 1 / self.every))

    def accuses(self, ratio: float, trusted: int) -> bool:
        """Return whether a log likelihood ratio is so low that the server is accused.

        `trusted` is the number of earlier tests that ended in the verdict `trusted`.
        """
        return ratio <= math.log(self.accused * 6 / (math.pi * (trusted + 1)) ** 2)


@dataclass(frozen=True)
class SplitGuardConfig(SplitGuard):
    """Batches with false labels by which a client tests whether its server uses labels.

    Args:
        every: number of batches in a block; one of them has false labels.
        by: number of standard deviations by which labels are shifted.
        expected: probability that an honest server's answer to false labels differs most from the
            other answers of its block.
        missed: largest probability of trusting a server that ignores labels.
        accused: largest probability, over a whole run, of accusing an honest server. After the
            verdict `trusted` a new test begins; the k-th test has the fraction 6 / (pi k)^2 of this
            probability.
        act: what a client does when it accuses its server. `report`: it continues; results.json and
            the screen show the verdict. `stop`: it takes no further part in the run; turns.csv says
            `quarantined: accused` with the number of batches and the likelihood ratio.
    """

    act: Literal["report", "stop"] = "report"

    def read(self, blocks: Iterable[int]) -> tuple[Verdict, int, float]:
        """Return the verdict on the server from the results of blocks.

        After the verdict `trusted` a new test begins; the verdict `accused` is final.

        Args:
            blocks: results in order: `FOUND`, `NOT_FOUND` or `AGAIN`.

        Returns:
            The verdict, the number of blocks that count, and the likelihood ratio of the last test.
        """
        for_found, for_not_found = self.evidence
        verdict: Verdict = "open"
        ratio, count, trusted = 0.0, 0, 0
        for block in blocks:
            # In a repeated block a server may know from the first time where the lie is.
            if block == AGAIN:
                continue
            count += 1
            ratio += for_found if block == FOUND else for_not_found
            if self.accuses(ratio, trusted):
                return "accused", count, math.exp(ratio)
            if ratio >= -math.log(self.missed):
                verdict, ratio, trusted = "trusted", 0.0, trusted + 1
        return verdict, count, math.exp(ratio)


@dataclass
class SplitGuardTest:
    """A client's test of one server in memory: read `lies` before each batch, then call `observe`.

    Attributes:
        plan: options of the test.
        draws: the client's secret random numbers. A server that could predict which batches have
            false labels would behave honestly on those batches alone.
        verdict: `open` until there is enough evidence. After `trusted` a new test begins, as a
            server may become malicious later; `accused` is final.
        batches: number of observed answers.
        trusted: number of tests that ended in `trusted`.
    """

    plan: SplitGuard
    draws: NoiseStream
    verdict: Verdict = "open"
    batches: int = 0
    ratio: float = 0.0
    trusted: int = 0
    place: int = field(init=False)
    block: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = self._draw_place()

    @property
    def lies(self) -> bool:
        """True if the next batch gets false labels; the client takes no step with the answer."""
        return len(self.block) == self.place

    def observe(self, gradient: Tensor) -> Verdict:
        """Record the server's answer to a batch; return the verdict.

        `gradient` is the gradient of the batch's smashed data, `[samples, ...]`.
        """
        self.batches += 1
        self.block.append(gradient.detach().sum(0).flatten().double())
        if len(self.block) < self.plan.every:
            return self.verdict
        for_found, for_not_found = self.plan.evidence
        is_found = odd_one_out(torch.stack(self.block)) == self.place
        self.ratio += for_found if is_found else for_not_found
        self.block, self.place = [], self._draw_place()
        if self.verdict == "accused" or self.plan.accuses(self.ratio, self.trusted):
            self.verdict = "accused"
        elif self.ratio >= -math.log(self.plan.missed):
            self.verdict, self.ratio, self.trusted = "trusted", 0.0, self.trusted + 1
        return self.verdict

    def _draw_place(self) -> int:
        return int(self.draws.uniform(1)[0] * self.plan.every)


def odd_one_out(answers: Tensor) -> int:
    """Return the index of the answer that is furthest from the mean of the others.

    `answers` is `[answers, entries]`.
    """
    # a_i - (sum - a_i) / (n - 1) = n / (n - 1) (a_i - mean): the order is that of a_i - mean.
    return int((answers - answers.mean(0)).norm(dim=1).argmax())
