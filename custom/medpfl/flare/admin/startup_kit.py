"""An administrator's startup kit, and in words what is wrong with it or with the way to its server."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.common.excepts import ConfigError
from nvflare.fuel.flare_api.api_spec import AuthenticationError, AuthorizationError, InternalError, NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.lighter.utils import load_crt_chain, verify_cert_chain
from nvflare.tool.kit.kit_config import (
    STARTUP_KIT_KIND_ADMIN,
    STARTUP_KIT_KIND_SITE,
    StartupKitConfigError,
    classify_startup_kit,
    resolve_admin_user_and_dir_from_startup_kit,
    validate_admin_startup_kit,
)

from medpfl.core.errors import UserError, first_line

_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_TEXTS = ("host", "client_key", "client_cert", "ca_cert", "upload_dir", "download_dir")


class AdminKit:
    """The startup kit of a user of a FLARE system.

    Args:
        given: its folder.

    Attributes:
        given: the folder as it was named.
        folder: the kit's own folder.
        user: whose it is.

    Raises:
        UserError: it is no such kit, or its certificate is of no use.
    """

    def __init__(self, given: Path):
        self.given = given
        if (kind := _kind(given)) != STARTUP_KIT_KIND_ADMIN:
            raise UserError(f"--kit {given}: {_instead(given, kind)}; give the kit of a user who may submit jobs")
        try:
            self.folder = Path(validate_admin_startup_kit(str(given)))
            self._settings()
            self.user, _ = resolve_admin_user_and_dir_from_startup_kit(str(given))
            self._check_certificate()
        except (StartupKitConfigError, OSError, ValueError) as error:
            raise UserError(f"--kit {given}: not complete: {error}; ask for a new kit") from None

    def _check_certificate(self) -> None:
        startup = self.folder / "startup"
        own, *further = load_crt_chain(str(startup / "client.crt"))
        now = datetime.now(timezone.utc)
        if own.not_valid_before_utc > now:
            raise UserError(
                f"--kit {self.given}: its certificate is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} on, and "
                f"by this machine's clock it is {now:%Y-%m-%d %H:%M} (UTC); set the clock, or wait"
            )
        if own.not_valid_after_utc < now:
            raise UserError(
                f"--kit {self.given}: its certificate expired on {own.not_valid_after_utc:%Y-%m-%d}; ask for a new kit"
            )
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        try:
            verify_cert_chain(own, further, root)
        except x509.verification.VerificationError:
            raise UserError(
                f"--kit {self.given}: startup/client.crt is not of the project of startup/rootCA.pem; ask for a new kit"
            ) from None
        key = load_pem_private_key((startup / "client.key").read_bytes(), password=None)
        if key.public_key() != own.public_key():
            raise UserError(
                f"--kit {self.given}: startup/client.key is not the key of startup/client.crt; ask for a new kit"
            )

    def log_in(self, patience: float) -> Session:
        """A session at the kit's server.

        Args:
            patience: seconds to wait for the server's answer.

        Raises:
            UserError: the server does not answer, or does not take the kit.
        """
        # FLARE's network layer reports every try to connect; what came of it is said below.
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        kit, refused = f"--kit {self.given}", f"the FLARE server at {self.address} does not take it"
        try:
            # It says "Connecting to FLARE ..." each time, and shows the tracebacks of what is said below.
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                return new_secure_session(self.user, str(self.folder), timeout=patience, auto_login_max_tries=1)
        except NoConnection:
            raise UserError(f"{kit}: {self.why_no_answer(patience)}") from None
        except FLCommunicationError as error:
            raise UserError(
                f"{kit}: {refused}: user, project or certificate are not as they were provisioned; ask for a new kit "
                f"({first_line(error)})"
            ) from None
        except (AuthenticationError, AuthorizationError, InternalError) as error:
            raise UserError(f"{kit}: {refused}: {first_line(error)}") from None
        except (ConfigError, RuntimeError, ValueError, OSError) as error:
            if "tampered" in str(error):
                what = "startup/fed_admin.json was changed after it was signed; ask for a new kit"
            else:
                what = f"not complete: {first_line(error)}"
            raise UserError(f"{kit}: {what}") from None

    @property
    def address(self) -> str:
        """The server's, as the kit has it."""
        admin = self._settings()
        return f"{admin.get('host', '?')}:{admin.get('port', '?')}"

    def why_no_answer(self, patience: float) -> str:
        """In words, why FLARE could not connect to the server.

        Args:
            patience: seconds to wait for the server.
        """
        admin, where = self._settings(), f"the FLARE server at {self.address}"
        if str(admin.get("connection_security") or "").lower() == "clear":
            return f"no answer from {where} within {patience:.0f} s: is it running, can this machine reach it?"
        startup = self.folder / "startup"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # what counts here is the project
        context.load_verify_locations(startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])  # gRPC's
        try:
            with socket.create_connection((admin["host"], int(admin["port"])), patience) as plain:
                context.wrap_socket(plain).close()
        except ssl.SSLCertVerificationError as error:
            if error.verify_code == _EXPIRED:
                return f"the certificate of {where} has expired; it needs a new kit"
            if error.verify_code == _NOT_YET_VALID:
                return f"the certificate of {where} is not valid yet by this machine's clock; set the clock, or wait"
            return f"{where} is of another project than the kit; ask its coordinator for a kit of that project"
        except ConnectionRefusedError:
            return f"no FLARE server is running at {self.address}; start it, or ask whoever runs it"
        except socket.gaierror:
            return f"no machine is known here by the name of {where}; check the network, or /etc/hosts"
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            return f"{where} cannot be reached from this machine ({reason}); check the network and the firewall"
        return f"{where} is there and did not take the login within {patience:.0f} s; try again, its log.txt says more"

    def _settings(self) -> dict[str, Any]:
        """What FLARE and this class read of the kit's ``fed_admin.json``; ValueError if it is not there."""
        content = json.loads((self.folder / "startup" / "fed_admin.json").read_text())
        admin = content.get("admin") if isinstance(content, dict) else None
        admin = admin if isinstance(admin, dict) else {}
        port = str(admin.get("port"))
        found = {name: admin.get(name) for name in _TEXTS} | {"username": admin.get("username") or "?"}
        found["port"] = port if port.isdecimal() else ""
        if wrong := [name for name, value in found.items() if not (isinstance(value, str) and value)]:
            raise ValueError(f'startup/fed_admin.json has no usable {wrong[0]!r} of "admin"')
        return admin


def _kind(folder: Path) -> str:
    """FLARE's word for whose kit it is, empty if it is nobody's."""
    try:
        return classify_startup_kit(str(folder))[0]
    except StartupKitConfigError:
        return ""


def _instead(given: Path, kind: str) -> str:
    """What a folder is that is not an administrator's kit."""
    if kind:
        return "this is the kit of a site" if kind == STARTUP_KIT_KIND_SITE else "this is the kit of the server"
    if not given.is_dir():
        return "there is no such folder"
    if (given / "startup").is_dir():
        return "no administrator's startup kit: startup/ lacks fed_admin.json, client.crt or rootCA.pem"
    if kits := sorted(f.name for f in given.iterdir() if f.is_dir() and _kind(f) == STARTUP_KIT_KIND_ADMIN):
        return f"this folder has kits in it, {', '.join(kits)} an administrator's"
    return "no startup kit: there is no startup/ in it"
