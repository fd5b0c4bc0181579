"""What a deployment sends to its clients is what `explain` says that it sends."""

from pathlib import Path

import pytest

from tests.conformance.test_methods import build, task_of
from tests.deployment.test_remote_clients import ELSEWHERE, PEOPLE, QUICK, Loop, there
from tests.engine.toys import mostly_slow
from vergence.core.serialization import unpack
from vergence.deployment.protocol import ClientRequest
from vergence.engine.plan import Plan
from vergence.reports.explain import flow, others
from vergence.reports.traffic import TO_MEASURE, carried, named


def sent_to(method, tmp_path):
    """Kind of a request -> the names of all trees that clients are sent in one; by the requests."""
    line, found = Loop(method, tmp_path / "homes"), {}
    there(method, tmp_path, line)
    for _, request in line.asked:
        what = unpack(request, ClientRequest)
        for message in (what.message, *what.then):
            found.setdefault(what.kind, set()).update(message.trees)
    return found


@pytest.mark.parametrize("name", mostly_slow(ELSEWHERE, *QUICK, "splitfed", "splitfed_u", "pe_zsl"))
def test_clients_are_sent_what_explain_names_and_nothing_else(name, tmp_path):
    """Whoever keeps all requests to a client finds no tree that no row is about."""
    method = build(name)
    task = task_of(method)
    found = sent_to(method, tmp_path)
    rows = [row for row in carried(Plan(), method, task, PEOPLE) if not row.up]
    told = {row.what.removesuffix(TO_MEASURE): row.verb for row in rows}
    crossed = {named(method, task, tree) for trees in found.values() for tree in trees}
    assert crossed == {*told}
    trained = {named(method, task, tree) for tree in found["turn"]}
    assert {what for what, verb in told.items() if verb != "evaluate"} == trained


@pytest.mark.parametrize("name", ["split", "splitfed", "splitfed_u", "smashed_average"])
def test_a_measured_client_of_split_learning_has_the_whole_model_and_all_texts_say_so(
    name, tmp_path
):
    method = build(name)
    task = task_of(method)
    found = sent_to(method, tmp_path)
    assert "tail" not in found["turn"]
    assert found["evaluate"] == {*method.prediction_trees(method.server(task), "")}
    assert "tail" in found["evaluate"]
    assert "tail (0.00 MB); in a deployment it goes to each client that is measured" in flow(
        method, task, Plan().privacy
    )
    assert others(method, task).endswith("in a deployment, where it is measured, tail too")
    page = Path(f"docs/reference/methods/{name}.md").read_text(encoding="utf-8")
    assert "deployment that evaluates" in page
    assert "never tail" not in page.lower()
