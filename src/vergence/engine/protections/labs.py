"""Labs in reports: who sees which data of the people in a lab, and who is trusted with them.

Used by `engine.protections.setup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vergence.core.naming import plural
from vergence.engine.plan import Plan
from vergence.privacy.hooks import ProtectedRun, Protection, Statement


@dataclass(frozen=True)
class LabsProtection(Protection):
    """Labs (clients with several people) as a protection: the server sees no single reply.

    Each lab sends a sum over its people.

    Attributes:
        plan: the plan.
    """

    plan: Plan
    forecasts: ClassVar[bool] = False

    def statements(self, run: ProtectedRun) -> Sequence[Statement]:
        """State in reports what a lab sees of its people, and what the server sees of labs."""
        labs, privacy = self.plan.silos.labs, self.plan.privacy
        few = min(map(len, labs.values()))
        alone = [lab for lab, people in labs.items() if len(people) == 1]
        seen = (
            f"sums over several labs, of no lab alone (each has {plural(few, 'person')} or more)"
            if privacy.least
            else f"each lab's sum over its people, {few} or more"
        )
        statements = [
            Statement(
                "closing table",
                "its own people's data, states and replies, one by one; of other labs what any "
                "client gets",
                "a lab",
            ),
            Statement(
                "closing table",
                f"{seen}; of tests each lab's means",
                "server, over labs",
            ),
            Statement(
                "server",
                "Each lab is trusted with its own people's recordings and with what each of them "
                "learned. It adds that up before anything leaves.",
            ),
            Statement(
                "residual",
                "Inside a lab nothing hides a person from whoever runs it, with any noise: that is "
                "added to sums over people.",
            ),
        ]
        if not privacy.bounded:
            statements.append(
                Statement(
                    "residual",
                    "A lab that lies can send any sum in its people's name, or the one person's "
                    "that it likes: nobody else can tell.",
                )
            )
        if alone and not privacy.least:
            statements.append(
                Statement(
                    "residual",
                    f"The only person of a lab ({', '.join(alone)}): the lab's sum is theirs.",
                )
            )
        return statements
