"""What objects that hold people's data or secrets show of themselves: sizes, and no value."""

import numpy as np
import torch

import vergence as vg
from vergence.api.from_objects import InMemory
from vergence.core.federation import Population
from vergence.deployment.resident_node import ResidentConnection
from vergence.privacy.secure_aggregation.client_checkpoint import Pending


def made(rows=120):
    return {"x": np.full((rows, 8), 0.4242), "y": np.full((rows, 1), 0.4242)}


def test_a_federation_shows_sizes_and_no_data():
    people = vg.Federation.from_arrays({f"p{i}": made() for i in range(5)})
    said = "Federation arrays: 5 people, 72/24/24 samples each, x [8], y [1]"
    assert repr(people) == said
    assert "42" not in repr(InMemory(people))
    one = people.people["p0"]
    assert repr(one) == "Splits: 72/24/24 samples, x [8], y [1]"
    assert repr(one.train) == "Samples: 72, x [8], y [1]"
    unequal = vg.Federation.from_arrays({"a": made(10), "b": made(20)})
    assert "2 people, 6-12/2-4/2-4 samples each" in repr(unequal)
    assert "arrays: 1 person, 6/2/2" in repr(vg.Federation.from_arrays({"a": made(10)}))


def test_rows_that_samples_share_are_shown_by_their_shape():
    bank = vg.SharedRows(torch.full((9, 3, 4), 0.4242), "frame")
    held = vg.Samples({"frame": torch.arange(5)}, {"image": bank})
    assert repr(held) == "Samples: 5, frame [], shared image [3, 4]"
    assert repr(bank) == "SharedRows: 9, each [3, 4], by 'frame'"
    assert repr(vg.Samples({})) == "Samples: 0, no columns"


def test_people_made_on_demand_are_not_made_to_be_shown():
    def never(number):
        raise AssertionError(f"person {number} was made")

    people = vg.Federation("crowd", Population(1_000_000, never, "a recipe"))
    assert repr(people) == "Federation crowd: 1,000,000 people made on demand"
    assert people._repr_html_() == "<p>Federation crowd: 1,000,000 people made on demand</p>"


def test_a_notebook_shows_the_first_people_and_their_numbers_of_samples():
    people = vg.Federation.from_arrays({f"<{n}>": made(10 + n) for n in range(12)})
    page = people._repr_html_()
    assert page.count("<tr>") == 11
    assert "<td>&lt;0&gt;</td><td>6</td><td>2</td><td>2</td>" in page
    assert "and 2 more" in page
    assert "more" not in people.only(people.clients[:10])._repr_html_()


def test_keys_are_not_shown():
    secret = b"0123456789abcdef" * 2
    kept = Pending(None, 1, secret, secret, secret, (), {"p1": secret}, ("p0", "p1"))
    assert "0123" not in repr(kept)
    assert "p1" in repr(kept)
    assert "0123" not in repr(ResidentConnection(secret))
