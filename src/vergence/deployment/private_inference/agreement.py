"""Agreement of all who take part in a private prediction, and the folder of one of them."""

from __future__ import annotations

import hashlib
import json
import secrets
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tomli_w
from annotated_types import Ge, Le, MaxLen
from pydantic import TypeAdapter, ValidationError

from vergence.core.files import write_whole
from vergence.core.naming import plural
from vergence.deployment.diagnostics import parted
from vergence.deployment.folders import NODE, STRICT
from vergence.deployment.keys import genuine, signer
from vergence.errors import ConfigError, StateError
from vergence.privacy.inference.ring import FRACTION
from vergence.privacy.inference.shared_network import SharedNetwork

T = TypeVar("T")
AGREEMENT, PARTIES, LEDGER = "agreement.json", "parties.toml", "used.json"
SEED, WEIGHTS, MATERIAL = "seed", "weights.npz", "material"
CERTIFICATES, KEYS, CLIENTS = "certificates", "keys", "clients"
"""Folders of the parties' certificates and public keys, and of the clients who may ask."""
MOST_IMAGES = 64
"""Images in one question."""
AHEAD = 256
"""Images by which a question may skip material: so many are lost to one lie at most."""
PURPOSE = "vergence private prediction"
ShortText = Annotated[str, MaxLen(200)]


@dataclass(frozen=True)
class PredictionAgreement:
    """Terms that the owner of a network, its parties and all clients have alike.

    Attributes:
        number: of this dealing, random.
        network: layers and shapes.
        fraction: bits after the point.
        images: for how many images correlations were dealt.
        parties: of each, in order, the SHA-256 of its certificate's authority and of its key.
    """

    __pydantic_config__: ClassVar = STRICT
    number: str
    network: SharedNetwork
    fraction: int
    images: int
    parties: Mapping[str, tuple[str, str]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all of it: two who have the same one agree."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Terms:
    """One question, as its client and all parties must have it alike.

    Attributes:
        agreement: digest of the agreement.
        session: random, the client's.
        client: who asks.
        start: number of the first image whose correlations are used.
        images: how many.
    """

    __pydantic_config__: ClassVar = STRICT
    agreement: ShortText
    session: ShortText
    client: ShortText
    start: Annotated[int, Ge(0)]
    images: Annotated[int, Ge(1), Le(MOST_IMAGES)]


@dataclass(frozen=True)
class Greeting:
    """First words of a party, to anybody: who it is, and a number to be signed."""

    __pydantic_config__: ClassVar = STRICT
    party: ShortText
    agreement: ShortText
    nonce: ShortText


@dataclass(frozen=True)
class Hello:
    """Answer to a greeting: who speaks, about what, and a signature over both and the greeting.

    A client that does not know yet which material is unused gives no terms.
    """

    __pydantic_config__: ClassVar = STRICT
    role: Literal["client", "party"]
    name: ShortText
    terms: Terms | None
    signature: ShortText

    @staticmethod
    def signed_text(greeting: Greeting, role: str, name: str, terms: Terms | None) -> bytes:
        """Text of the signature."""
        about = None if terms is None else asdict(terms)
        return json.dumps([PURPOSE, asdict(greeting), role, name, about]).encode()


@dataclass(frozen=True)
class UnusedMaterial:
    """Answer of a party to a client without terms: the next unused image, which tells of use."""

    __pydantic_config__: ClassVar = STRICT
    next: Annotated[int, Ge(0)]


def parsed(kind: type[T], text: bytes | str, who: str) -> T:
    """Return a record from its JSON text.

    Raises:
        StateError: it is another one; names who sent it.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise StateError(f"{who}: no {kind.__name__}: {where}: {first['msg']}") from None


def new_nonce() -> str:
    """Return 128 random bits."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Addresses:
    """The file that says whose folder this is, and where each party can be reached."""

    __pydantic_config__: ClassVar = STRICT
    name: str
    parties: Mapping[str, str]


@dataclass(frozen=True)
class PrivateFolder:
    """Folder of a party or a client, as its owner dealt it.

    Raises:
        StateError: a file is missing or damaged, or the folder is of another dealing.
        ConfigError: an address is none.
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
        """The common agreement, checked against this folder's certificates and keys."""
        found = parsed(PredictionAgreement, self._text(AGREEMENT), str(self.path / AGREEMENT))
        if found.fraction != FRACTION:
            raise StateError(f"{self.path}: numbers of {found.fraction} bits; here {FRACTION}")
        for party, digests in found.parties.items():
            if tuple(map(digest_of, self._public(party))) != tuple(digests):
                raise StateError(f"{self.path}: certificate or key of '{party}' is another one")
        return found

    def _public(self, party: str) -> tuple[Path, Path]:
        return self.path / CERTIFICATES / f"{party}.crt", self.path / KEYS / f"{party}.pub"

    @cached_property
    def addresses(self) -> Addresses:
        """Name of this folder's owner, and addresses of the parties."""
        try:
            found = TypeAdapter(Addresses).validate_python(tomllib.loads(self._text(PARTIES)))
        except (ValidationError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{self.path / PARTIES}: {str(error).splitlines()[0]}") from None
        if list(found.parties) != list(self.agreement.parties):
            raise ConfigError(
                f"{self.path / PARTIES}: parties are {', '.join(self.agreement.parties)}, in this "
                f"order; got {', '.join(found.parties)}"
            )
        for address in found.parties.values():
            parted(address)
        return found

    @property
    def name(self) -> str:
        """Name of its owner."""
        return self.addresses.name

    def certificate(self, party: str) -> Path:
        """Certificate of a party's own authority, which signed nothing else."""
        return self._public(party)[0]

    @cached_property
    def sign(self) -> Callable[[bytes], str]:
        """Signature by this folder's key."""
        return signer(self.path / NODE)

    def hello(self, greeting: Greeting, role: Literal["client", "party"], terms: Terms) -> Hello:
        """Answer a greeting."""
        text = Hello.signed_text(greeting, role, self.name, terms)
        return Hello(role, self.name, terms, self.sign(text))

    def introduction(self, greeting: Greeting) -> Hello:
        """Answer a greeting as a client that asks for the next unused image first."""
        text = Hello.signed_text(greeting, "client", self.name, None)
        return Hello("client", self.name, None, self.sign(text))

    def believes(self, greeting: Greeting, hello: Hello) -> bool:
        """True if a hello answers this greeting, by a key that this folder knows."""
        known = {path.stem: path for path in (self.path / PLACES[hello.role]).glob("*.pub")}
        text = Hello.signed_text(greeting, hello.role, hello.name, hello.terms)
        return hello.name in known and genuine(known[hello.name], text, hello.signature)


PLACES = {"client": CLIENTS, "party": KEYS}


def digest_of(path: Path) -> str:
    """SHA-256 of a file, empty where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def write_addresses(folder: Path, name: str, parties: Mapping[str, str]) -> None:
    """Write the file of addresses."""
    table: dict[str, Any] = {"name": name, "parties": dict(parties)}
    (folder / PARTIES).write_text(tomli_w.dumps(table), encoding="utf-8", newline="\n")


class MaterialLedger:
    """Number of the next image whose correlations were not used; it only grows.

    Correlations that are used twice show the difference of two images.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / LEDGER

    @property
    def next(self) -> int:
        """The first unused image.

        Raises:
            StateError: nobody knows which that is.
        """
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))["next"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if type(found) is not int or found < 0:
            raise StateError(
                f"{self._file} does not say which material was used, and none may be used twice: "
                "ask the model's owner for new folders"
            )
        return found

    def check(self, terms: Terms, images: int) -> None:
        """Refuse a question whose material was used, or never dealt.

        Raises:
            StateError: says which.
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
            left = max(0, images - self.next)
            if terms.images <= left:
                raise StateError(
                    f"image {terms.start} of {images} was asked for and {self.next} is next here: "
                    "a party calls more used than is"
                )
            raise StateError(
                f"material is left for {plural(left, 'image')} of {images}, and {terms.images} "
                "were asked: ask the model's owner for new folders"
            )

    def spend(self, terms: Terms, images: int) -> None:
        """Write down that a question's material is used, before any of it is.

        Raises:
            StateError: it was used, or never dealt.
        """
        self.check(terms, images)
        text = json.dumps({"next": terms.start + terms.images}).encode()
        write_whole(self._file, text, lasting=True)
