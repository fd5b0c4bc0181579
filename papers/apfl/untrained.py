"""Table 3.1 of the AP-FL chapter, dealt and drawn: who has which classes. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from vergence.data.images.partition import TABLE_3_1
from vergence.experiment import class_counts
from vergence.experiment.validation import validate
from vergence.results.figure_style import save
from vergence.results.text_tables import TextTable
from vergence.studies import class_partition
from vergence_papers.data_sets import Ground
from vergence_papers.outcome import write_untrained
from vergence_papers.printed import table_parts
from vergence_papers.running import UntrainedTable, Wish, plan


@dataclass(frozen=True)
class Partition(UntrainedTable):
    """Classes of each person, as printed: numbers of tenths of all classes, person by person."""

    uses_data: ClassVar[bool] = True

    table: Sequence[Sequence[int]]

    def write(self, where: Ground | None, wish: Wish, folder: Path, console: Console) -> None:
        """Deal a data set by the table; print who has what; write verdicts.json, page and picture.

        Raises:
            ConfigError: the data set or an override cannot be used.
        """
        assert where is not None
        part = replace(table_parts("apfl")["away_20"], methods=[{"name": "fedavg"}])
        experiment = plan(part, where, wish).experiment
        assert experiment is not None
        federation = validate(experiment).ready
        found = class_counts.counts(federation)
        assert found is not None
        records = compare(self, found)
        sizes = [len(splits.test) for splits in federation.people.values()]
        lines = [
            [
                person,
                record["printed"],
                record["ours"],
                f"{size:,}",
                "yes" if record["verdict"] == "holds" else "no",
            ]
            for person, record, size in zip(found, records, sizes, strict=True)
        ]
        picture = f"{self.id.rpartition('/')[2]}.png"
        shown = TextTable(
            f"{self.id}: {self.title}",
            ["", "printed", "training images", "test images", "as printed"],
            lines,
            notes=[f"data: {where.name}; {federation.about['split']}"],
        )
        stamps = [f"changed settings: {', '.join(wish.sets)}"] if wish.sets else []
        head = {"id": self.id, "title": self.title, "on": where.name, "stamps": stamps, "seeds": 0}
        write_untrained(shown, head, records, folder, console, picture)
        save(class_partition.bubbles(found), folder / picture)


TABLES = (
    Partition(
        "apfl/table3.1", "who has which classes, the last two with one person alone", TABLE_3_1
    ),
)


def compare(table: Partition, counts: class_counts.Counts) -> list[dict[str, Any]]:
    """Return one record per person: the classes printed, those dealt, and whether they agree."""
    runs = 1 + max(number for row in table.table for number in row)
    records = []
    for (person, own), row in zip(counts.items(), table.table, strict=True):
        held = [number for number, count in enumerate(own.values()) if count]
        printed = [n for n in range(len(own)) if n * runs // len(own) in row]
        told = {name: n for name, n in own.items() if n}
        records.append(
            {
                "text": f"{person} has {_listed(row)}",
                "printed": _listed(row),
                "ours": ", ".join(f"{name} {n:,}" for name, n in told.items()),
                "verdict": "holds" if held == printed else "contradicted",
                "reason": "",
            }
        )
    return records


def _listed(row: Sequence[int]) -> str:
    return ", ".join(map(str, row))
