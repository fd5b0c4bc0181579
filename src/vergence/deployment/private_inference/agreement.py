"""Agreement of the parties and clients of a private prediction, and the folder of each.

In a private prediction, several parties hold shares of a network and compute on shares of images.
Correlations are random numbers that the network's owner dealt for one image each; each may be used
only once.

Used by `deployment.private_inference.client`, `deployment.private_inference.connection`,
`deployment.private_inference.party` and `deployment.private_inference.sharing`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from annotated_types import Ge, Le, MaxLen
from pydantic import TypeAdapter, ValidationError

from vergence.core.files import write_whole
from vergence.core.naming import plural
from vergence.core.options import T
from vergence.deployment.diagnostics import host_and_port
from vergence.deployment.folders import NODE, STRICT
from vergence.deployment.keys import genuine, signer
from vergence.errors import ConfigError, StateError
from vergence.privacy.inference.ring import FRACTION
from vergence.privacy.inference.shared_network import SharedNetwork, with_stored_field_names

AGREEMENT, PARTIES, LEDGER = "agreement.json", "parties.toml", "used.json"
SEED, WEIGHTS, MATERIAL = "seed", "weights.npz", "material"
CERTIFICATES, KEYS, CLIENTS = "certificates", "keys", "clients"
"""Subfolders: the parties' certificates, their public keys, and the clients' public keys."""
MOST_DEALT = 100_000
"""Largest number of images for which correlations may be dealt."""
MOST_IMAGES = 64
"""Largest number of images in one question of a client."""
# A malicious party or client can claim that more material was used than was: everybody skips it.
AHEAD = 256
"""Largest number of images whose unused correlations a question may skip.

The correlations of skipped images are lost. A malicious party or client can waste at most so many.
"""
PURPOSE = "vergence private prediction"
ShortText = Annotated[str, MaxLen(200)]


@dataclass(frozen=True)
class PredictionAgreement:
    """Facts that are the same for a network's owner, its parties and all clients.

    Attributes:
        number: random number that the owner chose for this set of folders.
        network: layers and shapes.
        fraction: number of bits after the binary point in fixed-point numbers.
        images: number of images for which correlations (random numbers, used once) were dealt.
        parties: for each party, in order: the SHA-256 of the certificate of its own authority, and
            the SHA-256 of its public key.
    """

    __pydantic_config__: ClassVar = STRICT
    number: str
    network: SharedNetwork
    fraction: int
    images: int
    parties: Mapping[str, tuple[str, str]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the whole agreement; equal in all folders that the owner made together."""
        return hashlib.sha256(
            json.dumps(asdict(self, dict_factory=with_stored_field_names), sort_keys=True).encode()
        ).hexdigest()


@dataclass(frozen=True)
class Terms:
    """Terms of one question, on which the client and all parties must agree.

    Attributes:
        agreement: digest of the `PredictionAgreement`.
        session: random number that the client chose for this question.
        client: name of the client.
        start: number of the first image whose correlations (random numbers, used once) are used.
        images: number of images in the question.
    """

    __pydantic_config__: ClassVar = STRICT
    agreement: ShortText
    session: ShortText
    client: ShortText
    start: Annotated[int, Ge(0), Le(MOST_DEALT)]
    images: Annotated[int, Ge(1), Le(MOST_IMAGES)]


@dataclass(frozen=True)
class Greeting:
    """First message of a party to anybody who connects.

    It holds the party's name, the digest of its agreement, and a random number to be signed.
    """

    __pydantic_config__: ClassVar = STRICT
    party: ShortText
    agreement: ShortText
    nonce: ShortText


@dataclass(frozen=True)
class Hello:
    """Answer to a party's greeting: role, name, terms, and a signature over these and the greeting.

    A client that does not yet know which correlations are unused sends no terms.
    """

    __pydantic_config__: ClassVar = STRICT
    role: Literal["client", "party"]
    name: ShortText
    terms: Terms | None
    signature: ShortText

    @staticmethod
    def signed_text(greeting: Greeting, role: str, name: str, terms: Terms | None) -> bytes:
        """Return the text that a hello's signature covers."""
        # The greeting's nonce is in it, so that a recorded hello opens no second connection; the
        # purpose is, so that no signature made for something else can be used here.
        about = None if terms is None else asdict(terms)
        return json.dumps([PURPOSE, asdict(greeting), role, name, about]).encode()


@dataclass(frozen=True)
class UnusedMaterial:
    """A party's answer to a client's hello without terms (`PrivateFolder.introduction`).

    `next` is the number of the first image whose correlations are unused.
    """

    __pydantic_config__: ClassVar = STRICT
    next: Annotated[int, Ge(0)]


def parsed(kind: type[T], text: bytes | str, who: str) -> T:
    """Return a record of the class `kind` from its JSON text.

    Raises:
        StateError: the text is no such record; the message names the sender `who`.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise StateError(f"{who}: no {kind.__name__}: {where}: {first['msg']}") from None


def new_nonce() -> str:
    """Return 128 random bits as hexadecimal text."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Addresses:
    """Content of `parties.toml`: the name of the folder's party or client, and all addresses.

    `parties` maps each party to its address.
    """

    __pydantic_config__: ClassVar = STRICT
    name: str
    parties: Mapping[str, str]


@dataclass(frozen=True)
class PrivateFolder:
    """Folder of a party or a client, which the network's owner made.

    Raises:
        StateError: a file is missing or damaged, or belongs to another agreement.
        ConfigError: an address is malformed.
    """

    path: Path

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise StateError(
                f"{self.path} is no folder of a private prediction (no {name}); `vergence privacy "
                "share` makes DIR/parties/NAME and DIR/clients/NAME"
            ) from None

    @cached_property
    def agreement(self) -> PredictionAgreement:
        """The agreement of all parties, checked against this folder's certificates and keys."""
        agreed = parsed(PredictionAgreement, self._text(AGREEMENT), str(self.path / AGREEMENT))
        if agreed.fraction != FRACTION:
            raise StateError(f"{self.path}: numbers of {agreed.fraction} bits; here {FRACTION}")
        # Whoever can replace a certificate or key in one folder could stand in for that party: here
        # the folder would no longer agree with the others.
        for party, digests in agreed.parties.items():
            if tuple(map(digest_of, self._public(party))) != tuple(digests):
                raise StateError(f"{self.path}: certificate or key of '{party}' is another one")
        return agreed

    def _public(self, party: str) -> tuple[Path, Path]:
        return self.path / CERTIFICATES / f"{party}.crt", self.path / KEYS / f"{party}.pub"

    @cached_property
    def addresses(self) -> Addresses:
        """Name of this folder's party or client and addresses of all parties, checked."""
        try:
            addresses = TypeAdapter(Addresses).validate_python(tomllib.loads(self._text(PARTIES)))
        except (ValidationError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{self.path / PARTIES}: {str(error).splitlines()[0]}") from None
        if list(addresses.parties) != list(self.agreement.parties):
            raise ConfigError(
                f"{self.path / PARTIES}: parties are {', '.join(self.agreement.parties)}, in this "
                f"order; got {', '.join(addresses.parties)}"
            )
        for address in addresses.parties.values():
            host_and_port(address)
        return addresses

    @property
    def name(self) -> str:
        """Name of the party or client that this folder belongs to."""
        return self.addresses.name

    def certificate(self, party: str) -> Path:
        """Return the path of the certificate of a party's own certificate authority.

        This authority signed the party's TLS certificate, and no other certificate.
        """
        return self._public(party)[0]

    @cached_property
    def sign(self) -> Callable[[bytes], str]:
        """Function that signs with this folder's key."""
        return signer(self.path / NODE)

    def hello(
        self, greeting: Greeting, role: Literal["client", "party"], terms: Terms | None
    ) -> Hello:
        """Return the signed answer to a greeting, with the terms of a question if there is one."""
        text = Hello.signed_text(greeting, role, self.name, terms)
        return Hello(role, self.name, terms, self.sign(text))

    def introduction(self, greeting: Greeting) -> Hello:
        """Return a client's signed answer to a party's greeting, without terms of a question.

        By this answer the client asks which image is the first whose correlations (random numbers
        that hide an image once) are unused.
        """
        return self.hello(greeting, "client", None)

    def is_genuine(self, greeting: Greeting, hello: Hello) -> bool:
        """Return whether a hello answers this greeting and is signed by a key in this folder."""
        known = {path.stem: path for path in (self.path / PLACES[hello.role]).glob("*.pub")}
        text = Hello.signed_text(greeting, hello.role, hello.name, hello.terms)
        return hello.name in known and genuine(known[hello.name], text, hello.signature)


PLACES = {"client": CLIENTS, "party": KEYS}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; "" if it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def write_addresses(folder: Path, name: str, parties: Mapping[str, str]) -> None:
    """Write `parties.toml`: the name of the folder's party or client, and all addresses."""
    table: dict[str, Any] = {"name": name, "parties": dict(parties)}
    (folder / PARTIES).write_text(tomli_w.dumps(table), encoding="utf-8", newline="\n")


class MaterialLedger:
    """File with the number of the next image whose correlations are unused; it only grows.

    Correlations are random numbers that mask an image. If they masked two images, a party would
    learn the difference of the images.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LEDGER

    @property
    def next(self) -> int:
        """Number of the first image whose correlations are unused.

        Raises:
            StateError: the file is missing or damaged.
        """
        try:
            image = json.loads(self._file.read_text(encoding="utf-8"))["next"]
        except (OSError, ValueError, KeyError, TypeError):
            image = None
        # A damaged ledger is no ledger from 0: starting over would use correlations twice.
        if type(image) is not int or image < 0:
            raise StateError(
                f"{self._file} does not say which material was used, and none may be used twice: "
                "ask the model's owner for new folders"
            )
        return image

    def check(self, terms: Terms, images: int) -> None:
        """Refuse a question whose correlations (random numbers) were already used, or never dealt.

        `images` is the number of images for which correlations were dealt.

        Raises:
            StateError: the correlations were used or never dealt, or the question skips too many
                images; the message says which.
        """
        if terms.start < self.next:
            raise StateError(
                f"material of image {terms.start} was used: it is never used twice; ask again"
            )
        if terms.start > self.next + AHEAD:
            raise StateError(
                f"image {terms.start} was asked for and {self.next} is next: a party that calls "
                f"more than {AHEAD} images used is not believed"
            )
        if terms.start + terms.images > images:
            unused = max(0, images - self.next)
            if terms.images <= unused:
                raise StateError(
                    f"image {terms.start} of {images} was asked for and {self.next} is next here: "
                    "a party calls more used than is"
                )
            raise StateError(
                f"material is left for {plural(unused, 'image')} of {images}, and {terms.images} "
                "were asked: ask the model's owner for new folders"
            )

    def spend(self, terms: Terms, images: int) -> None:
        """Record on disk that a question's correlations (random numbers) are used.

        The party calls this before it uses them.

        Raises:
            StateError: as in `check`.
        """
        self.check(terms, images)
        text = json.dumps({"next": terms.start + terms.images}).encode()
        write_whole(self._file, text, lasting=True)
