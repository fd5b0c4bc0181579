"""Personal masks of a finished run: which parameters are personal, and how people's masks agree.

Used by `reports.plots.masks`, `results.read` and `studies.mask_anatomy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from vergence.core.files import parse_json
from vergence.core.naming import by_key
from vergence.errors import DataError


@dataclass(frozen=True)
class Masks:
    """Personal masks of one run: a bit per parameter, true if the parameter is personal.

    `packed` maps (seed, person) to bits, as uint8 `[ceil(n / 8)]`. `names` and `shapes` describe
    the tensors that make up the flat vector of `n` parameters, in order.
    """

    n: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packed: Mapping[tuple[int, str], NDArray[np.uint8]]

    @property
    def people(self) -> list[str]:
        """People with a mask, in client order."""
        return list(dict.fromkeys(person for _, person in self.packed))

    @property
    def seeds(self) -> list[int]:
        """Seeds with masks, ascending."""
        return sorted({seed for seed, _ in self.packed})

    def bits(self, seed: int, person: str) -> NDArray[np.bool_]:
        """Return one person's mask, `[n]`; true means personal."""
        return np.unpackbits(self.packed[seed, person])[: self.n].astype(bool)

    def counts(self, seed: int, person: str) -> NDArray[np.int64]:
        """Return the number of personal parameters in each named tensor, `[tensors]`."""
        starts = np.concatenate([[0], np.cumsum(self.sizes())[:-1]])
        return np.add.reduceat(self.bits(seed, person), starts, dtype=np.int64)

    def some(self, most: int) -> Masks:
        """Return the masks of at most `most` people, who are spread evenly over all of them."""
        people = self.people
        if len(people) <= most:
            return self
        chosen = {people[i] for i in np.linspace(0, len(people) - 1, most).astype(int)}
        return replace(self, packed={k: v for k, v in self.packed.items() if k[1] in chosen})

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of parameters in each named tensor, `[tensors]`."""
        return np.array([int(np.prod(s)) for s in self.shapes], dtype=np.int64)

    def layers(self, most: int = 28) -> dict[str, list[int]]:
        """Group tensors into at most `most` layers, by the first parts of their dotted names.

        Returns layer -> indices of its tensors.
        """
        depth = max(len(name.split(".")) for name in self.names)
        groups: dict[str, list[int]] = {}
        for keep in range(max(depth - 1, 1), 0, -1):
            groups = {}
            for i, name in enumerate(self.names):
                parts = name.split(".")
                groups.setdefault(".".join(parts[: max(1, min(keep, len(parts) - 1))]), []).append(
                    i
                )
            if len(groups) <= most:
                break
        return groups

    def shares(self, groups: Mapping[str, Sequence[int]]) -> NDArray[np.float64]:
        """Return the personal fraction of each layer's parameters, `[layers, people]`.

        Values are means over seeds. `groups` maps a layer to the indices of its tensors.
        """
        sizes = self.sizes()
        table = np.zeros((len(groups), len(self.people)))
        for j, person in enumerate(self.people):
            seeds = [s for s in self.seeds if (s, person) in self.packed]
            for seed in seeds:
                counts = self.counts(seed, person)
                for i, members in enumerate(groups.values()):
                    share = counts[list(members)].sum() / sizes[list(members)].sum()
                    table[i, j] += share / len(seeds)
        return table

    def totals(self) -> dict[str, float]:
        """Return person -> fraction of all parameters that are personal, mean over seeds."""
        counts = ((who, np.bitwise_count(packed)) for (_, who), packed in self.packed.items())
        shares = by_key((who, int(count.sum()) / self.n) for who, count in counts)
        return {person: float(np.mean(values)) for person, values in shares.items()}

    def overlap(self) -> NDArray[np.float64]:
        """Return the Jaccard index of each pair of masks, `[people, people]`, mean over seeds."""
        people = self.people
        total, count = np.zeros((2, len(people), len(people)))
        for seed in self.seeds:
            at = [i for i, person in enumerate(people) if (seed, person) in self.packed]
            packed = np.stack([self.packed[seed, people[i]] for i in at])
            both = common(packed, packed)
            union = both.diagonal()[:, None] + both.diagonal() - both
            # Two empty masks agree in every entry.
            total[np.ix_(at, at)] += np.divide(both, union, out=np.ones_like(both), where=union > 0)
            count[np.ix_(at, at)] += 1
        return total / np.maximum(count, 1)

    @classmethod
    def load(cls, path: Path, people: Sequence[str]) -> Masks:
        """Read masks.safetensors, which has one packed tensor per "seed/person".

        The masks get the order of `people`.

        Raises:
            DataError: the file is damaged.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata() or {}
                packed = {}
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    seed, person = key.split("/", 1)
                    packed[int(seed), person] = file.get_tensor(key)
            shapes = tuple(tuple(shape) for shape in parse_json(about["shapes"]))
            # The file has an order of its own; tables and figures list people in client order.
            order = {person: i for i, person in enumerate(people)}
            packed = dict(
                sorted(packed.items(), key=lambda item: (item[0][0], order.get(item[0][1], 0)))
            )
            return cls(int(about["n"]), tuple(parse_json(about["names"])), shapes, packed)
        except (SafetensorError, KeyError, ValueError) as error:
            raise DataError(f"{path} is damaged ({error}); run again") from error


def common(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the number of bits that each row of `one` shares with each row of `other`.

    Shapes are `[a, bytes]`, `[b, bytes]` and `[a, b]`.
    """
    both = np.zeros((len(one), len(other)))
    # One product of bits counts for all pairs at once. Parts of 64 MB bound the memory, and have
    # at most 2^24 entries, up to which float32 counts exactly.
    step = max(1, 2**21 // max(both.shape))
    for at in range(0, one.shape[1], step):
        a, b = (
            np.unpackbits(rows[:, at : at + step], axis=1).astype(np.float32)
            for rows in (one, other)
        )
        both += a @ b.T
    return both
