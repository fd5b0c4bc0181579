"""Reference for shares with authentication codes, Beaver triples, truncation and comparison.

All parties lie in one process: this is the algebra that private inference rests on, to be tested
with and to count with, not a service. A dealer stands for the offline phase. Parties may deviate in
everything they send: whatever is opened carries a code under a key that nobody knows, and all codes
are checked before a result is told, as in SPDZ.

Source: Beaver 1991; Damgard, Pastro, Smart, Zakarias 2012, "Multiparty computation from somewhat
homomorphic encryption" (SPDZ; the check is that of Damgard et al. 2013); Catrina and de Hoogh 2010,
"Improved primitives for secure multiparty integer computation" (truncation, comparison); Garay,
Schoenmakers, Villegas 2007 (bits).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.mpc.fixed_point import BITS, PRIME, STATISTICAL, Field, drawn
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.session import Aborted

Send = Callable[[str, Field], Field]
"""What the parties really send, of what they should `[party, ...]`, and for which step."""
CHECK = "check"


@dataclass(frozen=True)
class AuthenticatedShare:
    """A secret array: every party's additive share of it, and of its code key * secret.

    Sums, and products with numbers that all know, need no word among the parties.
    """

    shares: Field
    codes: Field

    @property
    def shape(self) -> tuple[int, ...]:
        """The secret's shape."""
        return self.shares.shape[1:]

    def each(self, change: Callable[[Field], Field]) -> AuthenticatedShare:
        """Result of a linear function, such as a sum or a choice of entries, of this array."""
        one, two = (np.stack([change(p) for p in a]) % PRIME for a in (self.shares, self.codes))
        return AuthenticatedShare(one, two)

    def __add__(self, other: AuthenticatedShare) -> AuthenticatedShare:
        return AuthenticatedShare(
            (self.shares + other.shares) % PRIME, (self.codes + other.codes) % PRIME
        )

    def __sub__(self, other: AuthenticatedShare) -> AuthenticatedShare:
        return AuthenticatedShare(
            (self.shares - other.shares) % PRIME, (self.codes - other.codes) % PRIME
        )

    def __mul__(self, known: Field | int) -> AuthenticatedShare:
        return AuthenticatedShare(self.shares * known % PRIME, self.codes * known % PRIME)


class TripleTable:
    """Parties around a table, and what they opened.

    Args:
        parties: how many (>= 2).
        send: what a party that deviates sends; by default everybody sends what they should.

    Attributes:
        triples: how many were used, by what for.
        opens: how many numbers were opened, by what for; results are `reveal`.
    """

    def __init__(self, parties: int, send: Send = lambda _step, honest: honest) -> None:
        if parties < 2:
            raise ConfigError(f"secret shares need at least two parties; got {parties}")
        self.parties, self.send = parties, send
        self.triples: Counter[str] = Counter()
        self.opens: Counter[str] = Counter()
        self._key = drawn((parties,))
        self._unchecked: list[tuple[Field, Field]] = []

    def share(self, secret: Field) -> AuthenticatedShare:
        """Return shares of a secret, as its owner gives them to the parties."""
        return AuthenticatedShare(
            self._split(secret), self._split(secret * (self._key.sum() % PRIME) % PRIME)
        )

    def _split(self, secret: Field) -> Field:
        others = drawn((self.parties - 1, *secret.shape))
        return np.concatenate([(secret - others.sum(0))[None] % PRIME, others])

    def known(self, values: Field) -> AuthenticatedShare:
        """Return shares of numbers that all know: the first party's share is the number."""
        none = np.zeros((self.parties - 1, *values.shape), object)
        key = self._key.reshape(-1, *[1] * values.ndim)
        return AuthenticatedShare(np.concatenate([values[None], none]), key * values % PRIME)

    def open(self, secret: AuthenticatedShare, step: str = "open") -> Field:
        """Return a secret as all see it; not to be trusted before `check`."""
        sent = self.send(step, secret.shares)
        seen = sent.sum(0) % PRIME
        self.opens[step] += seen.size
        self._unchecked.append((seen.reshape(-1), secret.codes.reshape(self.parties, -1)))
        return seen

    def check(self) -> None:
        """Check the codes of all that was opened, in one random combination.

        A wrong opening passes with probability 2^-126. Parties would commit to their parts first.

        Raises:
            Aborted: something was not what it should be.
        """
        if not self._unchecked:
            return
        seen = np.concatenate([values for values, _ in self._unchecked])
        codes = np.concatenate([codes for _, codes in self._unchecked], 1)
        self._unchecked = []
        dice = drawn(seen.shape)
        parts = ((codes - self._key[:, None] * seen) % PRIME * dice).sum(1) % PRIME
        if self.send(CHECK, parts).sum() % PRIME:
            raise Aborted("codes: an opened number is not what was shared; nothing is told")

    def reveal(self, secret: AuthenticatedShare) -> Field:
        """Return a result, after all before it was checked, and it was itself.

        Raises:
            Aborted: somebody sent something wrong.
        """
        self.check()
        seen = self.open(secret, "reveal")
        self.check()
        return seen

    def multiply(
        self, x: AuthenticatedShare, y: AuthenticatedShare, what: str = "product"
    ) -> AuthenticatedShare:
        """Return x * y, entry by entry: a triple and two opened numbers each."""
        a, b = drawn(x.shape), drawn(x.shape)
        one, two, both = self.share(a), self.share(b), self.share(a * b % PRIME)
        self.triples[what] += a.size
        d, e = self.open(x - one, what), self.open(y - two, what)
        return both + two * d + one * e + self.known(d * e % PRIME)

    def truncate(self, x: AuthenticatedShare, bits: int, exact: bool = False) -> AuthenticatedShare:
        """Return x / 2^bits: rounded down, and unless `exact` up where chance says, by one at most.

        One number is opened for each; chance rounds up as often as what is cut off is large. With
        `exact` shared bits are compared, which takes `bits` triples more.
        """
        low, high = drawn(x.shape, bits), drawn(x.shape, BITS + STATISTICAL - bits)
        cut, mask = self.share(low), self.share((low + (high << bits)) % PRIME)
        half = np.full(x.shape, 2 ** (BITS - 1), object)
        step = "comparison" if exact else "truncation"
        seen = self.open(x + self.known(half) + mask, step) % 2**bits
        rest = self.known(seen) - cut
        if exact:
            digits = [self.share(low >> j & 1) for j in range(bits)]
            rest = rest + self._below(seen, digits) * 2**bits
        return (x - rest) * pow(2**bits, -1, PRIME)

    def _below(self, seen: Field, digits: list[AuthenticatedShare]) -> AuthenticatedShare:
        """Return 1 where a number that all see is below one in shared binary digits, else 0."""
        found = self.known(np.zeros_like(seen))
        for j, digit in enumerate(digits):  # the first digit that differs decides; from the lowest
            both = self.multiply(digit, found, "comparison")
            one = seen >> j & 1
            found = both * one + (digit + found - both) * (1 - one)
        return found

    def negative(self, x: AuthenticatedShare) -> AuthenticatedShare:
        """Return 1 where x is below 0, else 0."""
        return self.truncate(x, BITS - 1, exact=True) * -1
