"""SplitGuard for gaze: a client detects hijacking servers by falsifying labels now and then.

A server that trains the task answers false labels with another gradient; one that hijacks the
client's layers answers as always, as it never looks at labels. In every block of `every` batches
the client falsifies the labels of one, at a position that only it knows, takes no step with the
answer to it, and checks whether that answer is the odd one out: the furthest from the mean of the
others.

**How labels of a regression are falsified.** All targets of the batch are moved the same way, by
`by` standard deviations of the batch in every column, up or down by lot. With classes any wrong
label will do. Here exchanged or mirrored labels will not: the gradient of an absolute error is the
sign of the residual, and over a batch as many flip one way as the other. A common shift turns
them all.

**What it promises.** Where answers do not depend on labels, the odd one out is the false one once
in `every` blocks, up to the step that the client leaves out: a server that never listens is trusted
at most with probability `missed`, also if it ends rounds early or serves them twice
(`split_guard_client.py` says how that is counted). What is not judged is the block under way when a
run ends, or begun and never gone on with: fewer than 2 * `every` batches. Who listened until it
was nearly trusted, and then ignores labels, may still be trusted that once. A server that is
honest, and whose answer to a lie is the odd one out with probability `expected` or more, is accused
at most with probability `accused`, however long it is watched: after `trusted` a new test begins,
and the k-th
has the share 6 / (pi k)^2 of `accused`; over all k the shares add up to 1.

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
"""Result of a block: the answer to the lie was the odd one out, or was not, or was in a repetition
that does not count."""


@dataclass(frozen=True)
class SplitGuard:
    """Options of SplitGuard's test: how often a client lies, and its error probabilities.

    Attributes:
        every: batches in a block, one of which has false labels.
        by: number of standard deviations by which labels are moved.
        expected: share of lies whose answer from an honest server differs most from the others of
            its block.
        missed: probability of trusting a server that ignores labels.
        accused: probability of accusing an honest server, over all tests.
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
        """Return a batch's labels `[samples, columns]`, all moved the same way."""
        ways = torch.from_numpy(draws.uniform(labels.shape[1])) < 0.5
        moves = self.by * labels.std(0) * torch.where(ways, -1.0, 1.0).to(labels.dtype)
        return labels + moves

    def block(self, number: int, of: int) -> tuple[int, int]:
        """Return the start and size of a batch's block, in a round of `of` batches.

        The last block also has the batches that are left over. If it is longer, lies are found by
        chance less often than the evidence assumes, and both error bounds still hold.
        """
        start = min(number // self.every, max(of // self.every, 1) - 1) * self.every
        last = start + 2 * self.every > of
        return start, of - start if last else self.every

    @property
    def evidence(self) -> tuple[float, float]:
        """Log likelihood ratios (honest to ignoring labels) of a found and of an unfound block."""
        found_ratio = math.log(self.expected * self.every)
        return found_ratio, math.log((1 - self.expected) / (1 - 1 / self.every))

    def accuses(self, ratio: float, trusted: int) -> bool:
        """Return whether this log likelihood ratio accuses, in the test after `trusted` tests."""
        return ratio <= math.log(self.accused * 6 / (math.pi * (trusted + 1)) ** 2)


@dataclass(frozen=True)
class SplitGuardConfig(SplitGuard):
    """Batches with false labels by which a client tests whether its server uses labels.

    Args:
        every: batches in a block, one of which has false labels.
        by: number of standard deviations by which labels are moved.
        expected: share of lies whose answer from an honest server differs most from the others of
            its block.
        missed: probability of trusting a server that ignores labels.
        accused: probability, over a whole run, of accusing a server whose answers to lies differ
            most as often as `expected`. After the verdict `trusted` a new test begins; the k-th
            test has the share 6 / (pi k)^2 of this probability.
        act: a client that accuses goes on, and results.json and the screen say so (`report`), or
            takes no further turn, and turns.csv says `quarantined: accused` with batches and
            likelihood ratio (`stop`).
    """

    act: Literal["report", "stop"] = "report"

    def read(self, blocks: Iterable[int]) -> tuple[Verdict, int, float]:
        """Return the verdict on blocks, the number of blocks that count, and the likelihood ratio.

        After the verdict `trusted` a new test begins; the verdict `accused` is final.
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
    """A client's test of one server: call `lies` before a batch, and give the answer to `observe`.

    Attributes:
        plan: options of the test.
        draws: the client's secret random numbers. A server that could predict which batches have
            false labels would behave honestly on those alone.
        verdict: `open` until there is evidence. After `trusted` a new test begins, as a server may
            become malicious later; `accused` is final.
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
        """Return whether the next batch gets false labels; its answer is not used for a step."""
        return len(self.block) == self.place

    def observe(self, gradient: Tensor) -> Verdict:
        """Record the gradient of a batch's smashed data, `[samples, ...]`; return the verdict."""
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
    """Return the index of the row of `[answers, entries]` furthest from the mean of the others."""
    # a_i - (sum - a_i) / (n - 1) = n / (n - 1) (a_i - mean): the order is that of a_i - mean.
    return int((answers - answers.mean(0)).norm(dim=1).argmax())
