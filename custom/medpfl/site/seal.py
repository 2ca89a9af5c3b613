"""A site's key: what it keeps is sealed with it, and encrypted where the site's policy says so.

A seal is an HMAC-SHA256 over a file's content and its place, so that nobody without the key can change a state, take
one from another run, or write one. Encryption is AES-256-GCM with the place as associated data. Whoever can read the
key can do all of it: it is as secret as the site's private key beside it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from medpfl.core.errors import UserError
from medpfl.core.whole_file import write_bytes

FILE = "medpfl.key"
_BYTES = 32
_MAGIC = b"MEDPFL-AES-GCM-1"
_NONCE = 12


class SealBroken(ValueError):
    """Content that this site did not write in this place."""


@dataclass(frozen=True)
class Seal:
    """Seals content for one folder.

    Attributes:
        key: the site's, 32 bytes.
        place: of the folder, e.g. ``experiment/site``.
        encrypted: content is encrypted too.
    """

    key: bytes
    place: str
    encrypted: bool = False

    def tag(self, name: str, content: bytes | str) -> str:
        """The seal of some content under a name in the folder, 64 hexadecimal digits."""
        text = content.encode() if isinstance(content, str) else content
        return hmac.new(self._derived("seal"), f"{self.place}/{name}\n".encode() + text, sha256).hexdigest()

    def require(self, name: str, content: bytes | str, tag: str | None) -> None:
        """Raises SealBroken unless the tag is this content's under this name."""
        if not isinstance(tag, str) or not hmac.compare_digest(self.tag(name, content), tag):
            raise SealBroken(f"{name} is not as this site wrote it")

    def secret(self, purpose: str) -> bytes:
        """32 bytes that only this site can make, for a purpose."""
        return self._derived(f"secret {self.place} {purpose}")

    def encrypt(self, name: str, content: bytes) -> bytes:
        """The content, unreadable without the key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE)
        place = f"{self.place}/{name}".encode()
        return _MAGIC + nonce + AESGCM(self._derived("encryption")).encrypt(nonce, content, place)

    def decrypt(self, name: str, content: bytes) -> bytes:
        """The content again; what is not encrypted comes back as it is. Raises SealBroken."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not is_encrypted(content):
            return content
        start = len(_MAGIC)
        nonce, rest = content[start : start + _NONCE], content[start + _NONCE :]
        try:
            place = f"{self.place}/{name}".encode()
            return AESGCM(self._derived("encryption")).decrypt(nonce, rest, place)
        except (InvalidTag, ValueError):
            raise SealBroken(f"{name} is not as this site wrote it") from None

    def _derived(self, purpose: str) -> bytes:
        return hmac.new(self.key, b"medpfl " + purpose.encode(), sha256).digest()


def is_encrypted(content: bytes) -> bool:
    """Whether a file's content is that of :meth:`Seal.encrypt`."""
    return content.startswith(_MAGIC)


def make_key(local: Path) -> Path:
    """Writes a new key into a kit's ``local`` folder, for its owner alone; one that is there stays.

    Raises:
        UserError: it cannot be written.
    """
    file = local / FILE
    if file.exists():
        return file
    whole = file.with_name(f".{FILE}.{os.getpid()}-{secrets.token_hex(4)}.new")
    try:
        write_bytes(whole, (secrets.token_hex(_BYTES) + "\n").encode(), mode=0o600)
        try:
            os.link(whole, file)
        except FileExistsError:
            pass  # another process was first
        except OSError:  # a file system without links
            os.replace(whole, file)
    except OSError as error:
        raise UserError(f"{file}: the site's key cannot be written: {error.strerror}") from None
    finally:
        whole.unlink(missing_ok=True)
    return file


def read_key(local: Path) -> bytes | None:
    """The site's key; None if it has none.

    Raises:
        UserError: the file is no key, or others may read it.
    """
    file = local / FILE
    if not file.exists():
        return None
    if file.stat().st_mode & 0o077:
        raise UserError(f"{file}: others may read the site's key: chmod 600 it")
    try:
        key = bytes.fromhex(file.read_text().strip())
    except OSError as error:
        raise UserError(f"{file}: the site's key cannot be read: {error.strerror}") from None
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise UserError(f"{file}: no key of 64 hexadecimal digits; what was sealed with the right one needs it")
    return key
