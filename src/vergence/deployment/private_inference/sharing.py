"""Owner's side of a private prediction: makes folders with shares of a network and keys.

Folders also hold correlations: random numbers with which the parties compute, once for each image.

Used by `cli.privacy`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from vergence.core.files import saving, write_whole
from vergence.core.identifiers import check_ids
from vergence.core.params import Params
from vergence.core.stages import Staged
from vergence.deployment.diagnostics import host_and_port
from vergence.deployment.folders import NODE
from vergence.deployment.keys import make_certificates, make_node_key
from vergence.deployment.private_inference.agreement import (
    AGREEMENT,
    CERTIFICATES,
    CLIENTS,
    KEYS,
    LEDGER,
    MATERIAL,
    MOST_DEALT,
    SEED,
    WEIGHTS,
    PredictionAgreement,
    digest_of,
    new_nonce,
    write_addresses,
)
from vergence.deployment.private_inference.client import make_shares
from vergence.deployment.private_inference.party_seed import PartySeed
from vergence.errors import ConfigError, StateError
from vergence.model_tools.onnx_export import opened, params_and_probe
from vergence.privacy.inference.correlations import Holder, next_seed
from vergence.privacy.inference.network import parts
from vergence.privacy.inference.ring import FRACTION, Words, combined, decode, encode
from vergence.privacy.inference.shared_network import (
    PartyShares,
    SharedNetwork,
    deal,
    encoded,
    forward,
    party_records,
    public_part,
    together,
    with_stored_field_names,
)
from vergence.privacy.secure_aggregation.masking import new_seed
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import bind_parameters

FEWEST, MOST = 2, 5
FAR = 1e-4
"""Largest allowed difference between outputs computed on shares and outputs in float64."""
SAID = """\
parties/NAME/  goes to NAME's machine, each of another owner, and nowhere else:
               vergence privacy party NAME
clients/NAME/  goes to NAME:
               vergence predict NAME EYES.npz --private
Addresses are in parties.toml of each folder. Whoever has all of parties/ sees
every image and the model: delete both folders here once they are where they belong.
"""


@dataclass(frozen=True)
class DealingCost:
    """Cost of the correlations (random numbers, used once) for one image.

    Attributes:
        parties: bytes per image in each party's folder, by party.
        seconds: time to make them, per image.
    """

    parties: Mapping[str, int]
    seconds: float


def share(
    run: Path,
    parties: Mapping[str, str],
    clients: Sequence[str],
    out: Path,
    images: int,
    person: str | None = None,
) -> DealingCost:
    """Write folders for private prediction, with the model of a finished run.

    Args:
        run: directory of a run of the task gaze_angle, with a network of stages (lenet).
        parties: name -> address of each of two to five parties.
        clients: names of the clients that may ask for predictions.
        out: a new directory for the folders.
        images: total number of images for which clients can ask.
        person: the person whose model is shared; default: the model of an unseen client.

    Raises:
        ConfigError: the run has another task or network, or an argument is not allowed.
        StateError: the run is unfinished, or `out` is not empty.
    """
    check_arguments(parties, clients, out, images)
    trained, _ = opened(run, person, None)
    params, samples = params_and_probe(trained, person)
    network, image = network_of(trained.task, params, run), samples.columns["image"].shape[1:]
    return share_network(network, tuple(image), parties, clients, out, images)


def check_arguments(
    parties: Mapping[str, str], clients: Sequence[str], out: Path, images: int
) -> None:
    """Refuse arguments of `share` that are not allowed.

    Raises:
        ConfigError: an argument is not allowed; the message names it.
        StateError: `out` is not empty.
    """
    if not FEWEST <= len(parties) <= MOST:
        raise ConfigError(f"private prediction: {FEWEST} to {MOST} parties; got {len(parties)}")
    if not clients:
        raise ConfigError("private prediction: name those who may ask: --clients anna,ben")
    check_ids([*parties, *clients], "private prediction")
    for address in parties.values():
        host_and_port(address)
    if not 1 <= images <= MOST_DEALT:
        raise ConfigError(f"private prediction: --images from 1 to {MOST_DEALT}; got {images}")
    if out.exists() and any(out.iterdir()):
        raise StateError(f"{out} is not empty; choose another --out")


def network_of(task: object, params: Params, run: Path) -> Staged:
    """Return the network of a run, in evaluation mode.

    Raises:
        ConfigError: the task is not `gaze_angle`, it uses `personal_prior` or `correction`, or the
            network is not made of stages.
    """
    if not isinstance(task, GazeAngle) or task.personal_prior or task.correction:
        raise ConfigError(
            f"{run}: private prediction takes task gaze_angle without personal_prior and "
            "correction, whose angles are the network's own"
        )
    network = bind_parameters(task.module(), params)
    if not isinstance(network, Staged):
        raise ConfigError(f"{run}: private prediction takes a network of stages, such as lenet")
    return network


def share_network(
    network: Staged,
    image: tuple[int, ...],
    parties: Mapping[str, str],
    clients: Sequence[str],
    out: Path,
    images: int,
) -> DealingCost:
    """Write the folders for a network that takes images of the shape `image`.

    The other arguments and the result are those of `share`.
    """
    made = parts(network, torch.zeros(1, *image))
    public = public_part(made, image, 2)
    weights = encoded(public, made.arrays)
    check_answers(network, public, weights, len(parties))
    with saving(out):
        folders = {name: out / "parties" / name for name in parties}
        for name, folder in folders.items():
            folder.mkdir(parents=True, mode=0o700)
            make_certificates(folder, host_and_port(parties[name])[0])
            PartySeed(folder / SEED).write(0, new_seed())
        of_clients = {name: out / "clients" / name for name in clients}
        for folder in of_clients.values():
            folder.mkdir(parents=True, mode=0o700)
        exchange_keys(folders, of_clients)
        agreed = agreement(public, images, folders)
        for name, folder in (folders | of_clients).items():
            write_whole(folder / AGREEMENT, agreed)
            write_addresses(folder, name, parties)
        shares = deal_weights(weights, len(folders))
        for folder, own in zip(folders.values(), shares, strict=True):
            np.savez(folder / WEIGHTS, allow_pickle=False, **own)
            (folder / WEIGHTS).chmod(0o600)
        dealt = deal_all(public, weights, folders, images)
        (out / "README.txt").write_text(SAID, encoding="utf-8", newline="\n")
    return dealt


def check_answers(
    network: Staged, public: SharedNetwork, weights: Mapping[str, Words], parties: int
) -> None:
    """Refuse a network whose outputs, computed on shares, differ from the ordinary outputs.

    Raises:
        ConfigError: the outputs differ, because a stage of the network computes something besides
            its layers.
    """
    # The layers are read from the network's modules. Code between them would be left out silently,
    # and every private answer would be wrong: two random images show it.
    dice = torch.Generator().manual_seed(0)
    x = torch.rand(2, *public.image, generator=dice) * 4 - 2
    beside = torch.rand(2, public.side_inputs, generator=dice) - 0.5
    shares = deal_weights(weights, parties)
    seeds = [new_seed() for _ in range(parties)]
    files = [deal(public, weights, seeds, unit) for unit in range(len(x))]
    talks = []
    inputs = [make_shares(encode(a.numpy()), parties) for a in (x, beside)]
    for i, seed in enumerate(seeds):
        holders = [Holder(seed, unit, None if i else file) for unit, file in enumerate(files)]
        mine = PartyShares(i == 0, shares[i], party_records(public, holders))
        talks.append(forward(public, mine, inputs[0][i], inputs[1][i]))
    answers = decode(combined(together(talks)))  # type: ignore[arg-type]
    with torch.no_grad():
        wanted = network.double()(x.double(), *[beside.double()] * bool(public.side_inputs))
    network.float()
    error = float(np.abs(answers - wanted.numpy()).max())
    if not error <= FAR:
        raise ConfigError(
            f"private prediction: on shares this network is off by {error:g}, more than {FAR:g}: "
            "its stages do more than their layers say; take lenet"
        )


def deal_weights(weights: Mapping[str, Words], parties: int) -> list[dict[str, Words]]:
    """Split all parameters into additive shares; return one set of shares per party."""
    split = {name: make_shares(words, parties) for name, words in weights.items()}
    return [{name: each[i] for name, each in split.items()} for i in range(parties)]


def exchange_keys(parties: Mapping[str, Path], clients: Mapping[str, Path]) -> None:
    """Make a key for each folder, and copy the public keys that each folder needs into it."""
    everybody = {**parties, **clients}
    for folder in everybody.values():
        for place in (CERTIFICATES, KEYS, CLIENTS):
            (folder / place).mkdir()
    for name, folder in everybody.items():
        kind = KEYS if name in parties else CLIENTS
        make_node_key(folder / NODE, folder / kind / f"{name}.pub")
        public = (folder / kind / f"{name}.pub").read_bytes()
        for other in everybody.values() if kind == KEYS else parties.values():
            (other / kind / f"{name}.pub").write_bytes(public)
    for name, folder in parties.items():
        certificate = (folder / "ca.crt").read_bytes()
        (folder / "ca.crt").unlink()
        for other in everybody.values():
            (other / CERTIFICATES / f"{name}.crt").write_bytes(certificate)


def agreement(network: SharedNetwork, images: int, parties: Mapping[str, Path]) -> bytes:
    """Return the agreement of all parties as JSON."""
    digests = {
        name: (
            digest_of(folder / CERTIFICATES / f"{name}.crt"),
            digest_of(folder / KEYS / f"{name}.pub"),
        )
        for name, folder in parties.items()
    }
    made = PredictionAgreement(new_nonce(), network, FRACTION, images, digests)
    return json.dumps(asdict(made, dict_factory=with_stored_field_names), indent=1).encode()


def deal_all(
    network: SharedNetwork, weights: Mapping[str, Words], parties: Mapping[str, Path], images: int
) -> DealingCost:
    """Write a file of correlations per image into the first party's folder; return the cost.

    Correlations are random numbers with which the parties compute, once for each image. The other
    parties compute theirs from the seeds that their folders already hold. Each folder also gets a
    file with the number of the next unused image.
    """
    seeds = [PartySeed(folder / SEED).read()[1] for folder in parties.values()]
    first = next(iter(parties.values()))
    (first / MATERIAL).mkdir(mode=0o700)
    for folder in parties.values():
        (folder / LEDGER).write_text('{"next": 0}', encoding="utf-8")
    begun, size = time.perf_counter(), 0
    for unit in range(images):
        material = deal(network, weights, seeds, unit)
        size = len(material)
        write_whole(first / MATERIAL / f"{unit:06d}.bin", material, secret=True)
        seeds = [next_seed(seed) for seed in seeds]
    sizes = {name: size if not i else 0 for i, name in enumerate(parties)}
    return DealingCost(sizes, (time.perf_counter() - begun) / images)
