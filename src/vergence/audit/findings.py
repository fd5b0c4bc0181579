"""Findings of `vergence privacy audit`, which are printed and written below the run directory.

Used by `audit.run`, `audit.smashed_data` and `reports.ethics.attack_findings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from torch import Tensor

from vergence.audit.images import draw_grid
from vergence.core.files import write_text
from vergence.results.figure_style import save
from vergence.results.text_tables import TextTable, csv_text

PICTURES, RATES, NOT_TRIED = "audit.csv", "people.csv", "not_tried.csv"


@dataclass(frozen=True)
class AuditFindings:
    """Findings of an audit.

    Attributes:
        pictures: table of reconstructed pictures; None where the data have none.
        shown: reconstructed pictures by the attacker's knowledge, for the grid.
        rates: table of rates at which people are recognised, beside rates by chance.
        not_tried: attacks that were not tried, each with the reason.
    """

    pictures: TextTable | None = None
    shown: Mapping[str, Tensor] = field(default_factory=dict)
    rates: TextTable | None = None
    not_tried: Sequence[tuple[str, str]] = ()

    def write(self, place: Path) -> None:
        """Write tables and pictures into a folder; files of an earlier audit are removed."""
        not_tried = "".join(f"- Not tried: {attack}: {why}.\n" for attack, why in self.not_tried)
        picture = "![pictures](audit.png)\n" if self.shown else ""
        pages = [block.markdown() for block in (self.pictures, self.rates) if block is not None]
        texts = {
            "audit.md": "\n".join([*pages[:1], picture, *pages[1:], not_tried]),
            NOT_TRIED: csv_text([{"attack": a, "why": why} for a, why in self.not_tried]),
            PICTURES: "" if self.pictures is None else self.pictures.csv(),
            RATES: "" if self.rates is None else self.rates.csv(),
        }
        for name, text in texts.items():
            # A file of an earlier audit with other options would pass for one of this audit.
            if not text:
                (place / name).unlink(missing_ok=True)
                continue
            write_text(place / name, text)

        (place / "audit.png").unlink(missing_ok=True)
        if self.shown:
            save(draw_grid(self.shown), place / "audit.png")

    def show(self, console: Console) -> None:
        """Print the tables."""
        for block in (self.pictures, self.rates):
            if block is not None:
                block.show(console)
        for attack, why in self.not_tried:
            console.print(f"not tried: {attack}: {why}", highlight=False, soft_wrap=True)
