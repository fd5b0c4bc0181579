"""What comes back from a copy: a client's folder, a file in it, and what messages say of it."""

import pytest

from tests.adversary.lies import circle, method, opened, question, turn
from vergence.core.local_training import LocalTraining
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.teacher_quota import FILE, TeacherQuota
from vergence.engine.plan import Plan
from vergence.errors import StateError
from vergence.privacy.config import UserLevelConfig
from vergence.privacy.release_log import FOLDER
from vergence.studies.sweep_budget import Spendings

SGD = LocalTraining(optimizer="sgd", epochs=1, batch=8)
USER = UserLevelConfig(clip=0.5, epsilon=8.0)


def stale_advice(error):
    """Whether a message advises to put a file back, which would forget what was done since."""
    return "restore" in error or "from a copy" in error or "start a new run" not in error


@pytest.mark.parametrize(
    "file",
    ["sum.spent", "ledger.seed0.json", f"{FOLDER}/seed0.sums.csv", f"{FOLDER}/secret"],
)
def test_no_message_advises_to_put_a_book_back(file, tmp_path):
    """A server could otherwise ask again what the copy does not know."""
    made = circle(method("fedavg", SGD), tmp_path, 5, user=USER)
    for client in made.names:
        turn(made, client, ClientRequest("turn", client, question(made, 0), "0.1"))
    opened(made, question(made, 0), dict.fromkeys(made.names, "0.1"))
    path = made.place("p01") / file
    path.write_bytes(path.read_bytes()[:-9] + b"\xff garbage\n")
    with pytest.raises(StateError, match="damaged") as refused:
        turn(made, "p01", ClientRequest("turn", "p01", question(made, 1), "1.1", progress=1 / 3))
    assert not stale_advice(str(refused.value)), refused.value


def test_no_message_advises_to_put_a_list_of_questions_back(tmp_path):
    (tmp_path / FILE).write_text("something,else\n")
    with pytest.raises(StateError, match="damaged") as refused:
        TeacherQuota(tmp_path).entries()
    assert "restore" not in str(refused.value)
    assert "start a new one" in str(refused.value)


def test_no_message_advises_to_put_a_sweeps_spending_back(tmp_path):
    path = tmp_path / "spent.csv"
    path.write_text("something,else\n1,2\n")
    with pytest.raises(StateError, match="damaged") as refused:
        Spendings(path, Plan())
    assert "restore" not in str(refused.value)
    assert "another --out" in str(refused.value)
