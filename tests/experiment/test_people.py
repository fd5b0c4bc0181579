"""People from arrays, torch data sets and frames: split by a known rule, or refused by name."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import vergence as vg
from tests.experiment.made_up import arrays
from vergence.core.arrays import split_rows


def parts(federation, person):
    return {name: part.columns for name, part in vars(federation.people[person]).items()}


def rows(count=10):
    return {"x": np.arange(2.0 * count).reshape(count, 2), "y": np.arange(count)}


def test_sixty_twenty_twenty_in_the_order_given():
    made = vg.Federation.from_arrays({"a": rows(), "b": rows(7)})
    assert {n: c["y"].tolist() for n, c in parts(made, "a").items()} == {
        "train": [0, 1, 2, 3, 4, 5],
        "val": [6, 7],
        "test": [8, 9],
    }
    assert [len(part) for part in vars(made.people["b"]).values()] == [4, 1, 2]
    assert made.about["split"] == "60/20/20 in the order given"
    assert made.clients == ("a", "b")


def test_other_shares_shuffled_with_a_seed():
    first, again, other = (
        vg.Federation.from_arrays({"a": rows(), "b": rows()}, split=(0.5, 0.3, 0.2), shuffle=seed)
        for seed in (1, 1, 2)
    )
    assert [len(part) for part in vars(first.people["a"]).values()] == [5, 3, 2]
    drawn = [parts(f, p)["test"]["y"].tolist() for f in (first, again, other) for p in "ab"]
    assert drawn[:2] == drawn[2:4] != drawn[4:]
    assert drawn[0] != drawn[1], "everybody's rows are drawn for themselves"
    whole = torch.cat([part["y"] for part in parts(first, "a").values()])
    assert sorted(whole.tolist()) == list(range(10))
    assert first.about["split"] == "50/30/20 at random with seed 1"


def test_parts_that_are_given_stay_as_they_are():
    given = {"a": {"train": rows(4), "val": rows(3), "test": rows(1)}}
    made = vg.Federation.from_arrays(given, about={"licence": "ours"})
    assert [len(part) for part in vars(made.people["a"]).values()] == [4, 3, 1]
    assert made.about == {"licence": "ours", "citation": "not said", "split": "as given"}
    with pytest.raises(vg.DataError, match=r"'a' comes in parts .* 'b' does not"):
        vg.Federation.from_arrays({**given, "b": rows()})
    with pytest.raises(vg.DataError, match=r"without samples: a \(val\)"):
        vg.Federation.from_arrays({"a": {**given["a"], "val": rows(0)}})


def test_numbers_are_copied_into_types_that_networks_take():
    images = np.zeros((5, 3, 3), np.uint8)
    given = {"x": images, "y": np.arange(5, dtype=np.int16), "z": [0.5, 1, 2, 3, 4]}
    made = parts(vg.Federation.from_arrays({"a": given}), "a")["train"]
    images[:] = 9
    assert {n: c.dtype for n, c in made.items()} == {
        "x": torch.uint8,
        "y": torch.int64,
        "z": torch.float32,
    }
    assert not made["x"].any()


@pytest.mark.parametrize(
    "given",
    [
        lambda x, y: (x, y),
        lambda x, y: TensorDataset(torch.tensor(x), torch.tensor(y)),
        lambda x, y: pd.DataFrame({"x": x[:, 0], "y": y}),
    ],
    ids=["a pair", "a tensor data set", "a frame"],
)
def test_one_persons_data_come_in_many_ways(given):
    data = rows()
    made = parts(vg.Federation.from_arrays({3: given(data["x"], data["y"])}), "3")
    assert made["test"]["y"].tolist() == [8, 9]
    assert set(made["test"]) == {"x", "y"}


class Items(Dataset):
    """Ten items of three parts."""

    def __len__(self):
        return 10

    def __getitem__(self, at):
        if at >= 10:
            raise IndexError
        return torch.full((2,), float(at)), at, {"a": 0}["a"]


class Endless(IterableDataset):
    def __iter__(self):
        yield 0


def test_a_data_set_for_each_person():
    made = vg.Federation.from_datasets({"a": Items()}, columns=("image", "label", "eye"))
    assert parts(made, "a")["val"]["label"].tolist() == [6, 7]
    assert parts(made, "a")["val"]["image"].shape == (2, 2)
    with pytest.raises(vg.DataError, match=r"items have 3 parts, and there are names for 2 \(x, y"):
        vg.Federation.from_datasets({"a": Items()})
    with pytest.raises(vg.DataError, match="'a' has a Endless, which has no length"):
        vg.Federation.from_datasets({"a": Endless()})


def frame():
    return pd.DataFrame(
        {
            "who": ["b"] * 5 + ["a"] * 5,
            "pupil": np.arange(10.0),
            "speed": np.arange(10) * 2,
            "gaze": np.arange(10) / 10,
        }
    )


def test_a_frame_with_a_person_column():
    columns = {"x": ["pupil", "speed"], "y": "gaze"}
    made = vg.Federation.from_frame(frame(), "who", columns)
    assert made.clients == ("b", "a")
    assert parts(made, "a")["test"]["x"].tolist() == [[9.0, 18.0]]
    assert parts(made, "a")["train"]["y"].tolist() == pytest.approx([0.5, 0.6, 0.7])
    alone = parts(vg.Federation.from_frame(frame(), "who"), "a")["train"]
    assert set(alone) == {"pupil", "speed", "gaze"}


def broken(change):
    data = frame()
    change(data)
    return data


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (frame(), {}, "the frame has no column 'person'; it has who, pupil, speed, gaze"),
        (frame(), {"person": "who", "columns": {"x": "pupli"}}, "has no column 'pupli'"),
        (
            broken(lambda f: f.__setitem__("pupil", f.pupil.where(f.index != 7))),
            {"person": "who", "columns": {"x": ["pupil", "speed"], "y": "gaze"}},
            "person 'a': 'pupil' is nan in row 7 (1 of 5 rows have no finite number): mend",
        ),
        (
            broken(lambda f: f.__setitem__("who", f.who.where(f.index != 2))),
            {"person": "who"},
            "'who' is missing in row 2",
        ),
        (
            broken(lambda f: f.__setitem__("pupil", "wide")),
            {"person": "who"},
            "person 'b': 'pupil' holds str objects, no numbers",
        ),
        (
            frame().rename(columns={"speed": "pupil"}),
            {"person": "who", "columns": {"x": "pupil"}},
            "the frame has 2 columns 'pupil': rename them",
        ),
        (
            frame(),
            {"person": "who", "columns": ["pupil"]},
            "columns must say what samples hold, as {'x': ['pupil', 'speed'], 'y': 'gaze_x'}; got",
        ),
        ([1, 2], {}, "from_frame takes a pandas DataFrame with a row a sample, got a list"),
    ],
)
def test_frames_that_are_refused(data, options, says):
    with pytest.raises(vg.DataError) as refused:
        vg.Federation.from_frame(data, **options)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "held", [pd.Index(["pupil", "speed"]), np.array(["pupil", "speed"]), ("pupil", "speed")]
)
def test_a_frames_columns_may_be_any_sequence_of_names(held):
    made = vg.Federation.from_frame(frame(), "who", {"x": held, "y": "gaze"})
    assert parts(made, "a")["test"]["x"].tolist() == [[9.0, 18.0]]


@pytest.mark.parametrize("missing", [["x"], "x"])
def test_a_column_made_of_several_may_have_missing_values(missing):
    data = frame()
    data.loc[7, "pupil"] = np.nan
    columns = {"x": ["pupil", "speed"], "y": "gaze"}
    made = vg.Federation.from_frame(data, "who", columns, missing=missing)
    assert parts(made, "a")["train"]["x"][2, 0].isnan()
    assert made.missing == {"x"}
    data.loc[7, "gaze"] = np.nan
    with pytest.raises(vg.DataError, match="'gaze' is nan in row 7"):
        vg.Federation.from_frame(data, "who", columns, missing=missing)


@pytest.mark.parametrize("name", ["points", "ratings"])
def test_nan_is_refused_in_a_column_of_any_name(name):
    data = rows()
    data[name] = np.where(np.arange(10) == 4, np.nan, 1.0)
    table = pd.DataFrame({"person": "a", name: data[name]})
    items = TensorDataset(torch.tensor(data[name]))
    for make in (
        lambda: vg.Federation.from_arrays({"a": data}),
        lambda: vg.Federation.from_datasets({"a": items}, columns=[name]),
        lambda: vg.Federation.from_frame(table),
    ):
        with pytest.raises(vg.DataError, match=f"'{name}' is nan in row 4"):
            make()


def test_people_with_one_name_are_not_lost():
    with pytest.raises(vg.DataError, match=r"people 1 and '1' have one name, '1': rename one"):
        vg.Federation.from_arrays({1: rows(), "1": rows(), 2: rows()})
    data = frame()
    data["who"] = pd.Series([1] * 5 + ["1"] * 5, dtype=object)
    with pytest.raises(vg.DataError, match=r"people 1 and '1' have one name, '1': rename one"):
        vg.Federation.from_frame(data, "who")
    with pytest.raises(vg.DataError, match=r"'a': columns 1 and '1' have one name, '1'"):
        vg.Federation.from_arrays({"a": {1: np.zeros(5), "1": np.zeros(5)}})


def objects(*items):
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found


def test_objects_that_are_numbers_keep_their_shape():
    table = np.array([[1, None], [2.5, 3], [4, 5], [6, 7], [8, 9]], dtype=object)
    given = {"x": table, "y": objects([0, 1], [2, 3], [4, 5], [6, 7], [8, 9])}
    made = parts(vg.Federation.from_arrays({"a": given}, missing="x"), "a")
    assert made["train"]["x"].nan_to_num(-1).tolist() == [[1, -1], [2.5, 3], [4, 5]]
    assert made["test"]["y"].tolist() == [[8, 9]]


class Uneven(Dataset):
    """Items of which a later one has another part."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([(0.0, 1), (0.0, 1, 2)], "whose item 1 has 3, item 0 2: give every item the same"),
        ([(0.0, 1), (0.0,)], "whose item 1 has 1, item 0 2"),
        (
            [{"x": 0.0}, {"x": 0.0, "y": 1}],
            "whose item 1 has the parts x, y, item 0 the parts x: give every item the same",
        ),
    ],
)
def test_items_with_other_parts_than_the_first_are_refused(items, says):
    with pytest.raises(vg.DataError) as refused:
        vg.Federation.from_datasets({"a": Uneven(*items)})
    assert says in str(refused.value)


def test_missing_gaze_may_be_nan_where_one_says_so():
    data = frame()
    data.loc[7, "gaze"] = np.nan
    made = vg.Federation.from_frame(data, "who", {"x": "pupil", "y": "gaze"}, missing=["y"])
    assert parts(made, "a")["train"]["y"].isnan().tolist() == [False, False, True]
    assert made.missing == {"y"}


def holed(person="p03", row=17):
    data = arrays()
    data[person]["y"][row] = np.nan
    return data


@pytest.mark.parametrize(
    ("people", "says"),
    [
        (holed(), "person 'p03': 'y' is nan in row 17 (1 of 40 rows have no finite number)"),
        (
            {"a": rows(), "b": rows(2), "c": rows(1)},
            "too few samples to split 60/20/20 into training, validation and test: b (2), c (1); "
            "leave",
        ),
        (
            {"a": {"x": np.zeros((4, 2)), "y": np.zeros(5)}},
            "person 'a': columns differ in length ('x' 4, 'y' 5 rows)",
        ),
        (
            {"a": rows(), "b": {"x": np.zeros((9, 3)), "y": np.zeros(9)}},
            "person 'b': 'x' is 3 (float32) a sample, of person 'a' 2 (float32)",
        ),
        (
            {"a": rows(), "b": {"x": np.zeros((9, 2))}},
            "person 'b' has the columns x, person 'a' x, y",
        ),
        ({"a": {"x": np.array(["u", "v", "w"])}}, "person 'a': 'x' holds text, no numbers"),
        ({"a": torch.nn.Linear(2, 1)}, "person 'a' has a Linear: give arrays by name"),
        ({"a": {"x": np.float64(3)}}, "person 'a': 'x' holds a single number"),
        ({"a": {"x": objects("1", "2", "3")}}, "person 'a': 'x' holds str objects, no numbers"),
        ({"a": {"x": objects(["1"], ["2"], ["3"])}}, "'x' holds list objects, no numbers"),
        ({"a": {"x": objects([1, 2], [3])}}, "has rows of unequal length (2 and 1 numbers): give"),
        ({"a": {"x": [[1, 2], [3]]}}, "person 'a': 'x' has rows of unequal length (setting an"),
        ({"a": rows(), "b": {"x": [], "y": []}}, "without samples: b; leave these people out"),
        ({}, "with at least one person; got nobody"),
        (TensorDataset(torch.zeros(3, 2)), "people must be a mapping"),
        ({"a": rows(), "A": rows()}, "are one file's name"),
    ],
)
def test_arrays_that_are_refused(people, says):
    with pytest.raises(vg.DataError) as refused:
        vg.Federation.from_arrays(people)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("shares", [(0.6, 0.4), (0.6, 0.2, 0.1), (1.0, 0.0, 0.0), 0.6, ("a", 1, 1)])
def test_shares_that_make_no_whole(shares):
    with pytest.raises(vg.ConfigError, match="split must be three positive numbers with sum 1"):
        vg.Federation.from_arrays({"a": rows()}, split=shares)


def test_rows_are_split_as_the_made_up_people_are():
    """So that arrays of them train to the same bits (see test_train)."""
    for count in range(3, 200):
        train, val, test = split_rows({"a": count})["a"]
        a, b = count * 6 // 10, count * 8 // 10
        assert torch.cat([train, val, test]).tolist() == list(range(count))
        assert (len(train), len(val)) == (a, b - a)


def classes(count, *names):
    """So many rows of each of these classes, one class after the other."""
    y = np.repeat(names, count)
    return {"x": np.arange(2.0 * len(y)).reshape(-1, 2), "y": y}


def test_somebody_may_have_no_test_or_validation_samples():
    """The columns of a part that is not there have no rows, and the others' types."""
    whole = {"train": rows(4), "val": rows(3), "test": rows(1)}
    made = vg.Federation.from_arrays(
        {
            "a": whole,
            "b": {"train": rows(1)},
            "c": {"train": rows(4), "test": rows(2)},
            "d": {"val": rows(2), "train": rows(5)},
        }
    )
    sizes = {p: [len(part) for part in vars(s).values()] for p, s in made.people.items()}
    assert sizes == {"a": [4, 3, 1], "b": [1, 0, 0], "c": [4, 0, 2], "d": [5, 2, 0]}
    assert made.people["b"].test.shapes() == made.people["a"].test.shapes()
    assert list(made.scored_people) == ["a", "c"]
    assert made.about["split"] == "as given; 2 of 4 people train only, without test samples"


@pytest.mark.parametrize(
    ("people", "message"),
    [
        ({"a": {"train": rows()}, "b": {"train": rows(), "val": rows(2)}}, "nobody has test"),
        ({"a": {"val": rows(), "test": rows(2)}}, "parts 'val' and 'test': give 'train'"),
        ({"a": {"train": rows(), "tset": rows(2)}}, "parts 'train' and 'tset': give 'train'"),
        ({"a": {"train": rows(), "test": {"x": [], "y": []}}}, r"without samples: a \(test\)"),
    ],
)
def test_parts_that_do_not_do(people, message):
    with pytest.raises(vg.DataError, match=message):
        vg.Federation.from_arrays(people)


def test_every_part_has_alike_shares_of_the_classes():
    """Of 10 : 20 rows of two classes that come sorted, every part has 1 : 2."""
    given = {"a": classes(10, 0, 1, 1), "b": classes(20, 3, 4)}
    made = vg.Federation.from_arrays(given, stratify="y")
    counts = {p: [c["y"].bincount().tolist() for c in parts(made, p).values()] for p in given}
    assert counts["a"] == [[6, 12], [2, 4], [2, 4]]
    assert counts["b"] == [[0, 0, 0, 12, 12], [0, 0, 0, 4, 4], [0, 0, 0, 4, 4]]
    rows_of_a = torch.cat([part["x"][:, 0] for part in parts(made, "a").values()])
    assert sorted(rows_of_a.tolist()) == [2.0 * n for n in range(30)], "everything is there once"
    assert made.about["split"] == "60/20/20 with alike shares of 'y', at random with seed 0"
    other = vg.Federation.from_arrays(given, stratify="y", shuffle=1)
    drawn = [parts(f, "a")["test"]["x"][:, 0].tolist() for f in (made, other)]
    assert drawn[0] != drawn[1]
    # Somebody else's rows change nothing, and a class with one row is learned.
    alone = vg.Federation.from_arrays({"b": given["b"]}, stratify="y")
    assert torch.equal(parts(alone, "b")["val"]["x"], parts(made, "b")["val"]["x"])
    rare = {"x": np.zeros((11, 1)), "y": [0] * 10 + [7]}
    assert 7 in parts(vg.Federation.from_arrays({"a": rare}, stratify="y"), "a")["train"]["y"]


@pytest.mark.parametrize("stratify", ["z", "x"])
def test_classes_to_stratify_by_are_whole_numbers(stratify):
    with pytest.raises(vg.DataError, match=rf"stratify='{stratify}' must be .* 'a' has x \(.*y \("):
        vg.Federation.from_arrays({"a": rows()}, stratify=stratify)
    with pytest.raises(vg.ConfigError, match="come in parts"):
        vg.Federation.from_arrays({"a": {"train": rows(), "test": rows()}}, stratify="y")


def test_people_with_few_samples_are_left_out_and_named():
    people = {"a": rows(10), "b": rows(9), "c": rows(11), "d": rows(1)}
    made = vg.Federation.from_arrays(people, min_samples=10)
    assert made.clients == ("a", "c")
    assert made.about["split"].endswith("order given; left out, with fewer than 10 samples: b, d")
    parted = {p: {"train": own, "test": rows(3)} for p, own in people.items()}
    assert vg.Federation.from_arrays(parted, min_samples=10).clients == ("a", "c")
    with pytest.raises(vg.DataError, match="nobody has min_samples=12 samples; give at most 11"):
        vg.Federation.from_arrays(people, min_samples=12)


class Counted(Dataset):
    """Rows of one person, of which every reading is counted."""

    def __init__(self, number, count=10):
        self.number, self.count, self.read = number, count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        self.read += 1
        return np.float32([self.number, at]), at % 2


def test_data_sets_can_be_read_anew_for_each_use():
    people = {name: Counted(number) for number, name in enumerate("ab")}
    options = {"stratify": "y", "shuffle": 3}
    made = vg.Federation.from_datasets(people, lazy=True, **options)
    now = vg.Federation.from_datasets({n: Counted(i) for i, n in enumerate("ab")}, **options)
    assert made.clients == now.clients == ("a", "b")
    for person in now.clients:
        before = people[person].read
        read, wanted = parts(made, person), parts(now, person)
        assert people[person].read >= before + 10
        for part, columns in wanted.items():
            assert {n: c.tolist() for n, c in columns.items()} == {
                n: c.tolist() for n, c in read[part].items()
            }
    assert made.about == now.about
    assert "made on demand" in repr(made)
    few = made.only(["b"])
    assert few.clients == ("b",)
    assert torch.equal(parts(few, "b")["test"]["x"], parts(now, "b")["test"]["x"])
    with pytest.raises(KeyError):
        made.people["c"]
    changed = vg.Federation.from_datasets({"a": Counted(0), "b": Counted(7)}, lazy=True)
    same = vg.Federation.from_datasets({"a": Counted(0), "b": Counted(1)}, lazy=True)
    assert len({each.recipe for each in (made, changed, same)}) == 3


def test_a_data_set_that_is_read_later_is_checked_at_once():
    people = {"a": TensorDataset(torch.zeros(9, 2), torch.zeros(9)), "b": Counted(0)}
    with pytest.raises(vg.DataError, match="'b': 'y'"):
        vg.Federation.from_datasets(people, lazy=True)
    with pytest.raises(vg.ConfigError, match="min_samples"):
        vg.Federation.from_datasets({"a": Counted(0)}, lazy=True, min_samples=3)
    with pytest.raises(vg.DataError, match="at least one person"):
        vg.Federation.from_datasets({}, lazy=True)


class LikeHuggingFace:
    """Items by number and a transform, as data sets of Hugging Face have; no class of torch."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def with_transform(self, transform):
        raise NotImplementedError

    def __len__(self):
        return 10

    def __getitem__(self, number):
        return {"img": torch.full((2, 2), float(number)) + self.noise * torch.rand(1), "label": 1}


def test_a_data_set_of_hugging_face_is_read_like_one_of_torch():
    people = vg.Federation.from_datasets({"anna": LikeHuggingFace()})
    train = people.people["anna"].train.columns
    assert train["img"][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert train["label"].dtype == torch.int64
    with pytest.raises(vg.DataError, match=r"task\.with_transform"):
        vg.Federation.from_datasets({"anna": LikeHuggingFace(noise=1.0)})


@pytest.mark.parametrize(
    ("people", "message"),
    [
        (
            {"a": {"train": Counted(0), "test": Counted(0)}, "b": {"train": Counted(1)}},
            "person 'b' has no test samples, and with lazy=True everybody needs some",
        ),
        ({"a": Counted(0), "b": {"train": Counted(1)}}, "'b' comes in parts .* 'a' does not"),
        (
            {"a": {"train": Counted(0), "test": Counted(0)}, "b": Counted(1)},
            "'a' comes in parts .* 'b' does not",
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, {"stratify": "y"}])
def test_who_is_read_later_is_looked_at_with_the_others(people, message, options):
    with pytest.raises(vg.DataError, match=message):
        vg.Federation.from_datasets(people, lazy=True, **options)


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_that_are_sorted_by_class_are_warned_of(lazy):
    """A folder per class gives pictures in this order, and every test sample a new class."""

    def made(rows, **options):
        sets = {"a": TensorDataset(*(torch.as_tensor(column) for column in rows.values()))}
        return vg.Federation.from_datasets(sets, lazy=lazy, **options)

    rows_of = classes(10, 0, 1, 2)
    with pytest.warns(UserWarning, match=r"'a' are sorted by .y.: .* shuffle=0 or stratify='y'"):
        made(rows_of)
    made(rows_of, shuffle=0)
    made(rows_of, stratify="y")
    made({**rows_of, "y": np.arange(30)})  # numbers of rows
    made({**rows_of, "y": np.arange(30) % 3})
    made({**rows_of, "y": np.repeat([0, 1], [12, 18])})  # all classes are in training
    made({**rows_of, "y": np.repeat([0.0, 1.0], [20, 10])})  # no classes
