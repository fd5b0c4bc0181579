"""The table `study` of an experiment: answers for an ethics board that no other setting gives.

Used by `cli.privacy`, `experiment.schema` and `reports.ethics.page`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError
from vergence.experiment.table_binding import record_from_table

LONGEST = 2000
"""Largest number of characters of one answer."""
QUESTIONS = {
    "title": "What the study is called",
    "responsible": "Who is responsible",
    "contact": "Whom participants can ask",
    "participants": "How many people take part",
    "duration": "How long it lasts, and how long data are kept",
    "lawful_basis": "Lawful basis for processing the data",
    "withdrawal": "How somebody withdraws, and what is deleted then",
}


@dataclass(frozen=True)
class StudyDescription(NamedOptions, label="study"):
    """Description of a study for an ethics board, which does not affect training.

    Attributes:
        title: name of the study.
        responsible: person and institution.
        contact: whom participants can write to or call.
        participants: number of people who are to take part; None: not given.
        duration: how long the study lasts, and how long its data are kept.
        lawful_basis: legal basis for processing the data, such as consent.
        withdrawal: how somebody withdraws, and what is deleted then.
    """

    title: str = ""
    responsible: str = ""
    contact: str = ""
    participants: Annotated[int, Ge(1)] | None = None
    duration: str = ""
    lawful_basis: str = ""
    withdrawal: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, text in self._texts().items():
            if len(text) > LONGEST or not all(c.isprintable() or c == "\n" for c in text):
                raise ConfigError(
                    f"study: {name} must be at most {LONGEST} printable characters, got {len(text)}"
                )

    def _texts(self) -> dict[str, str]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: "" if value is None else str(value) for name, value in values.items()}

    @property
    def answers(self) -> list[list[str]]:
        """Pairs of an ethics board's question and the study's answer; "" for a missing answer."""
        return [[QUESTIONS[name], text.strip()] for name, text in self._texts().items()]


def read_description(file: Path) -> StudyDescription:
    """Return the table `study` of a TOML file.

    Raises:
        ConfigError: there is no such file or table, or a key or value is wrong.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); mend it") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    if "study" not in table:
        raise ConfigError(f"{file} has no table [study]; its keys are {', '.join(QUESTIONS)}")
    return record_from_table(StudyDescription, table["study"], "study")
