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
    "version": "Version and date of this description",
    "responsible": "Who is responsible",
    "controllers": "Who decides why and how data are used (controllers: GDPR, Article 26)",
    "processors": "Who handles data for them (processors: GDPR, Article 28)",
    "protection_officer": "Data protection officer",
    "contact": "Whom participants can ask",
    "participants": "How many people take part",
    "minors": "Whether children or people under guardianship take part, and who consents for them",
    "duration": "How long it lasts, and how long recordings are kept",
    "retention": "How long models, keys, logs and states of the software are kept",
    "lawful_basis": "Lawful basis for processing the data",
    "special_categories": "Whether data tell of health or identify people (GDPR, Article 9)",
    "impact_assessment": "Data protection impact assessment (GDPR, Article 35)",
    "rights": "How somebody sees, corrects or deletes their data, or objects",
    "withdrawal": "How somebody withdraws, and what is deleted then",
    "transfer": "Whether data or models leave the country or the EU, and on which basis",
    "incidental_findings": "What happens if a recording shows a sign of an illness",
    "model_use": "Who may use the model afterwards, and for what",
}


@dataclass(frozen=True)
class StudyDescription(NamedOptions, label="study"):
    """Description of a study for an ethics board, which does not affect training.

    Attributes:
        title: name of the study.
        version: version and date of this description.
        responsible: person and institution.
        controllers: institutions that decide why and how data are used, such as three hospitals.
        processors: institutions that handle data for the controllers, such as a computing centre.
        protection_officer: data protection officer, with contact.
        contact: whom participants can write to or call.
        participants: number of people who are to take part; None: not given.
        minors: whether children take part, and who consents for them.
        duration: how long the study lasts, and how long its recordings are kept.
        retention: how long models, keys, logs and states of the software are kept.
        lawful_basis: legal basis for processing the data, such as consent.
        special_categories: whether the data tell of health or identify people, and what follows.
        impact_assessment: data protection impact assessment: done when and by whom, or why not.
        rights: how somebody sees, corrects or deletes their data, or objects.
        withdrawal: how somebody withdraws, and what is deleted then.
        transfer: whether data or models leave the country, and on which basis.
        incidental_findings: what happens if a recording shows a sign of an illness.
        model_use: who may use the model afterwards, and for what.
    """

    title: str = ""
    version: str = ""
    responsible: str = ""
    controllers: str = ""
    processors: str = ""
    protection_officer: str = ""
    contact: str = ""
    participants: Annotated[int, Ge(1)] | None = None
    minors: str = ""
    duration: str = ""
    retention: str = ""
    lawful_basis: str = ""
    special_categories: str = ""
    impact_assessment: str = ""
    rights: str = ""
    withdrawal: str = ""
    transfer: str = ""
    incidental_findings: str = ""
    model_use: str = ""

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
