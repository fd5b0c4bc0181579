"""Certificates and keys of a deployment: signatures of answers, and encryption for one node.

Used throughout `deployment`.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vergence.core.files import write_whole
from vergence.deployment.folders import NODE, ClientSide
from vergence.engine.secure_sum_attempts import PartyIdentity
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.session import joined
from vergence.system.file_access import is_open_to_others

DAYS = 825
"""Number of days for which certificates are valid."""
SIGNED = ec.ECDSA(hashes.SHA384())
BOX = "box"
"""File of a node's private key for encryption."""
PARTIES = "parties"
"""Folder of the aggregators' public keys. It is not the clients' folder: only clients contribute
replies to sums."""
NONCE = 12
"""Number of random bytes at the beginning of each encrypted message."""


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in OpenSSH's format, which Flower reads.

    `make_node_key` writes it to a file.
    """
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def make_node_key(private: Path, public: Path) -> None:
    """Make a node's ECDSA P-384 key pair for signatures, and write it to two files."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_whole(private, private_bytes(key), secret=True)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def make_certificates(folder: Path, host: str) -> None:
    """Make a deployment's certificate authority, and the certificate of the server.

    The certificate is for `host` and for the loopback address.
    """
    # The authority's key is never written: whoever stole it could sign a certificate of a server of
    # their own, and every client would trust it.
    authority_key = ec.generate_private_key(ec.SECP384R1())
    # P-256 is the faster curve: this key signs every handshake, also of unknown clients, who could
    # otherwise keep the server busy.
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _named("vergence deployment")
    now = datetime.now(UTC)

    def about(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            # Clients' clocks may be behind this machine's.
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                False,
            )
        )

    ca = (
        about(authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_usage(signs=True), True)
        .sign(authority_key, hashes.SHA384())
    )
    hosts = dict.fromkeys((host, "localhost", "127.0.0.1"))
    server = (
        about(_named(host), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_usage(signs=False), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False)
        .sign(authority_key, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(folder / "server.key", private, secret=True)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def signer(private: Path) -> Callable[[bytes], str]:
    """Return the function that signs bytes with a node's private key.

    Raises:
        StateError: the key is missing, unusable, or readable by other users.
    """
    try:
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StateError(
            f"{private} is no node key ({type(error).__name__}); copy this file again, "
            "or those beside the key that `vergence deploy key` made"
        ) from None
    # Another user of the machine who reads this key can answer in this client's name.
    if is_open_to_others(private):
        raise StateError(f"{private} can be read by others: `chmod 600 {private}`")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return lambda data: base64.b64encode(key.sign(data, SIGNED)).decode()


def genuine(public: Path, data: bytes, signature: str) -> bool:
    """Return whether a signature was made with the key in a file; False if the file is missing."""
    try:
        key = serialization.load_pem_public_key(public.read_bytes())
        # Whoever wrote the file may have chosen a key of another kind.
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), data, SIGNED)
    except (OSError, ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def is_node_key(public: Path) -> bool:
    """Return whether a file holds a public key for signatures (a node's key)."""
    try:
        key = serialization.load_pem_public_key(public.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)


def is_box_key(public: Path) -> bool:
    """Return whether a file holds a public key for encryption."""
    try:
        x25519.X25519PublicKey.from_public_bytes(public.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def known_keys(folder: Path, whose: str = "keys") -> dict[str, Path]:
    """Return the files of public keys in the subfolder `whose` of a folder, by their owner."""
    return {path.stem: path for path in sorted((folder / whose).glob("*.pub"))}


def trusted_keys(folder: Path) -> dict[str, Path]:
    """Return the files of the keys that a node trusts in secure sums, by their owner.

    Raises:
        StateError: a name has a key among the clients' and one among the aggregators'.
    """
    clients, parties = known_keys(folder), known_keys(folder, PARTIES)
    # The server's machine wrote both folders. With two keys it could show its own to those who use
    # the one folder, and the genuine one to those who compare the other.
    if twice := clients.keys() & parties.keys():
        raise StateError(
            f"'{min(twice)}' has two keys in {folder}, below keys and {PARTIES}: the server's "
            "machine gave out another; do not go on before you know who changed it"
        )
    return {**clients, **parties}


def refuse_false_key(folder: Path, side: ClientSide) -> None:
    """Refuse a folder with keys for secure sums that has another key under this node's own name.

    The server's machine, which wrote the folder, could have given the same false key to everybody:
    then all digests of keys are equal, and it answers in this node's place.

    Raises:
        StateError: the key under its name is not the node's own, or there is none, or two.
    """
    own, said = trusted_keys(folder).get(side.client), os.urandom(32)
    if own is None or not genuine(own, said, signer(folder / NODE)(said)):
        raise StateError(
            f"the key of '{side.client}' in {folder} is not the one that was made here: the "
            "server's machine gave out another; do not go on before you know who changed it"
        )


def roster_digest(run: str, keys: Mapping[str, Path]) -> str:
    """Return the SHA-256 of a deployment's name and of the public keys of all its parties.

    Operators compare it with each other: if it is the same, they trust the same keys.

    Args:
        run: name of the deployment.
        keys: file of each party's public key, by name.

    Raises:
        ConfigError: a file holds no public key of a node; the message names it.
    """
    whole = [run.encode()]
    for name, path in sorted(keys.items()):
        if not is_node_key(path):
            raise ConfigError(f"{path} is no node's public key, which `vergence deploy key` makes")
        key = serialization.load_pem_public_key(path.read_bytes())
        # The key and not its file: line ends may change on the way.
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        whole += [name.encode(), key.public_bytes(serialization.Encoding.DER, kind)]
    return hashlib.sha256(joined(whole)).hexdigest()


def party_identity(
    folder: Path, note: Mapping[str, Any], sign: Callable[[bytes], str] | None = None
) -> PartyIdentity:
    """Return a node's identity in the secure sums of one run: its signature and the trusted keys.

    `note` is the JSON header of a request, which names the run; `sign` signs for this node. Key
    files are read for every check of a signature, so that a key that is revoked during the run is
    no longer accepted.

    Raises:
        StateError: a name has two keys.
    """

    def verifier(path: Path) -> Callable[[bytes, bytes], bool]:
        return lambda data, signature: genuine(path, data, signature.decode())

    register = {name: verifier(path) for name, path in trusted_keys(folder).items()}
    own = None if sign is None else lambda data: sign(data).encode()
    return PartyIdentity(f"{note['run']} {note['label']} {note['seed']}", register, own)


def make_box_key(private: Path, public: Path) -> None:
    """Make a node's X25519 key pair for encryption, and write it to two files."""
    key = x25519.X25519PrivateKey.generate()
    write_whole(private, key.private_bytes_raw(), secret=True)
    public.write_bytes(key.public_key().public_bytes_raw())


class SealedBox:
    """Authenticated encryption between two nodes: nobody else can read or create a message.

    Each node derives the same key from its own private key and the other node's public key (X25519,
    HKDF-SHA256). Every message is encrypted by AES-256-GCM with a random nonce. There is no forward
    secrecy: whoever later steals a private key can decrypt recorded messages.
    """

    def __init__(self, private: Path, public: Path, what: str) -> None:
        """Derive the common key.

        Args:
            private: file of this node's private key.
            public: file of the other node's public key.
            what: text that enters the key derivation; both nodes must use the same text.

        Raises:
            StateError: a key is missing, unusable, or readable by other users.
        """
        try:
            mine = x25519.X25519PrivateKey.from_private_bytes(private.read_bytes())
            shared = mine.exchange(x25519.X25519PublicKey.from_public_bytes(public.read_bytes()))
        except (OSError, ValueError) as error:
            raise StateError(
                f"{private} and {public} are no pair of box keys ({error}); copy both files again"
            ) from None
        if is_open_to_others(private):
            raise StateError(f"{private} can be read by others: `chmod 600 {private}`")
        derived = HKDF(hashes.SHA256(), 32, None, b"vergence box " + what.encode())
        self.cipher = AESGCM(derived.derive(shared))

    def close(self, data: bytes, about: str) -> bytes:
        """Encrypt data; it can be decrypted only with the same text `about`."""
        # `about` is authenticated: the server between the two nodes could otherwise hand over a
        # message of another run, or a request in place of an answer.
        nonce = os.urandom(NONCE)
        return nonce + self.cipher.encrypt(nonce, data, about.encode())

    def open(self, box: bytes, about: str) -> bytes:
        """Decrypt a message that was encrypted with the same text `about`.

        Raises:
            StateError: the message was sent by somebody else, has another `about`, or was changed.
        """
        try:
            return self.cipher.decrypt(box[:NONCE], box[NONCE:], about.encode())
        except (InvalidTag, ValueError):
            raise StateError(
                "a box that does not open: it was closed by somebody else, or was "
                "changed on the way"
            ) from None
