"""What can go wrong before a job is submitted, without a FLARE system; and the GPUs a job asks for."""

import json
import shutil
import socket
import ssl
import threading
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.lighter.utils import sign_folders
from nvflare.tool.kit.kit_config import ADMIN_STARTUP_KIT_REQUIRED_FILES

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.flare.admin.connected import Refused, require_sites
from medpfl.flare.admin.remote import Ended, System
from medpfl.flare.admin.startup_kit import AdminKit
from medpfl.flare.job.export import export_job
from medpfl.flare.launch.poc import free_port
from medpfl.runs.real_sites import run_in_production

CONFIG = make_config(algorithm="fedavg", sites=2, rounds=1)


def signed(subject: str, key, issuer: str, issuer_key, *, days: int, since: int = 99, ca: bool = False) -> bytes:
    """A certificate, as PEM, that began so many days ago and ends in so many."""
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=since))
    builder = builder.not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    for extension in (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
    ):
        builder = builder.add_extension(extension, critical=False)
    if ca:
        usage = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
        usage |= dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        builder = builder.add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def admin_kit(folder, *, days: int, since: int = 99, host: str = "localhost"):
    """An administrator's kit whose certificate ends in so many days, began so many ago; its project has no server."""
    for name in ADMIN_STARTUP_KIT_REQUIRED_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    root, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (folder / "local").mkdir()
    startup = folder / "startup"
    (startup / "rootCA.pem").write_bytes(signed("p", root, "p", root, days=99, ca=True))
    (startup / "client.crt").write_bytes(signed("admin@example.org", key, "p", root, days=days, since=since))
    (startup / "root.key").write_bytes(pem_of(root))
    (startup / "client.key").write_bytes(pem_of(key))
    admin = {"project_name": "p", "username": "admin@example.org", "server_identity": "localhost", "scheme": "grpc"}
    admin |= {"host": host, "port": free_port(), "uid_source": "user_input", "cert": "client.crt"}
    admin |= {"client_key": "client.key", "client_cert": "client.crt", "ca_cert": "rootCA.pem"}
    admin |= {"upload_dir": "transfer", "download_dir": "transfer"}
    (startup / "fed_admin.json").write_text(json.dumps({"format_version": 1, "admin": admin}))
    return folder


def pem_of(key) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form)


@pytest.mark.parametrize(
    ("holds", "said"),
    [
        ([], "no startup kit: there is no startup/ in it"),
        (["startup/rootCA.pem"], "startup/ lacks fed_admin.json"),
        (["startup/fed_client.json"], "this is the kit of a site"),
        (["startup/fed_server.json"], "this is the kit of the server"),
        ([f"me@b.org/{name}" for name in ADMIN_STARTUP_KIT_REQUIRED_FILES], "me@b.org an administrator's"),
    ],
)
def test_a_folder_that_is_no_kit_of_a_user(tmp_path, holds, said):
    for name in holds:
        (tmp_path / "kit" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kit" / name).touch()
    (tmp_path / "kit").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=f"{said}.*; give the kit of a user who may submit jobs"):
        run_in_production(CONFIG, tmp_path / "out", kit=tmp_path / "kit")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        System(tmp_path / "kit")


def test_an_expired_kit(tmp_path):
    with pytest.raises(UserError, match="its certificate expired on 20"):
        System(admin_kit(tmp_path, days=-1))


def test_a_kit_that_is_not_valid_yet(tmp_path):
    """As on a machine whose clock has gone back."""
    with pytest.raises(UserError, match=r"is valid from 20.* by this machine's clock it is 20.*; set the clock"):
        System(admin_kit(tmp_path, days=9, since=-1))


def test_a_kit_with_parts_missing(tmp_path):
    system = System(admin_kit(tmp_path, days=1))
    (tmp_path / "local").rmdir()
    with pytest.raises(UserError, match=r"not complete: .*local"), system.session():
        pass
    (tmp_path / "startup" / "client.key").unlink()
    with pytest.raises(UserError, match=r"not complete: .*client.key"):
        System(tmp_path)


@pytest.mark.parametrize("content", [{}, [], 3, {"admin": {}}, {"admin": []}, {"admin": None}])
def test_a_kit_without_an_administrator(tmp_path, content):
    (admin_kit(tmp_path, days=1) / "startup" / "fed_admin.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"not complete: startup/fed_admin.json has no usable 'host'.*for a new kit$"):
        System(tmp_path)


@pytest.mark.parametrize("name", ["host", "port", "client_key", "client_cert", "ca_cert", "upload_dir"])
def test_an_administrator_without_what_flare_needs(tmp_path, name):
    file = admin_kit(tmp_path, days=1) / "startup" / "fed_admin.json"
    content = json.loads(file.read_text())
    for wrong in (None, [], ""):
        file.write_text(json.dumps({"admin": content["admin"] | {name: wrong}}))
        with pytest.raises(UserError, match=f"not complete: startup/fed_admin.json has no usable '{name}'"):
            System(tmp_path)


def test_an_administrator_whose_name_the_certificate_has(tmp_path):
    file = admin_kit(tmp_path, days=1) / "startup" / "fed_admin.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({"admin": content["admin"] | {"username": ""}}))  # as in a POC
    assert AdminKit(tmp_path).user == "admin@example.org"
    file.write_text(json.dumps({"admin": content["admin"] | {"username": 3}}))
    with pytest.raises(UserError, match="no usable 'username'"):
        AdminKit(tmp_path)


@pytest.mark.parametrize(("file", "said"), [("client.key", "not the key of"), ("rootCA.pem", "not of the project")])
def test_files_of_two_kits(tmp_path, file, said):
    one, other = (admin_kit(tmp_path / name, days=1) for name in ("one", "other"))
    shutil.copy(other / "startup" / file, one / "startup" / file)
    with pytest.raises(UserError, match=said):
        System(one)


def test_a_signed_kit_that_was_changed(tmp_path):
    kit = admin_kit(tmp_path, days=1)
    root = rsa.generate_private_key(65537, 2048)  # FLARE signs kits with RSA alone
    (kit / "startup" / "rootCA.pem").write_bytes(signed("p", root, "p", root, days=99, ca=True))
    key = load_pem_private_key((kit / "startup" / "client.key").read_bytes(), None)
    (kit / "startup" / "client.crt").write_bytes(signed("admin@example.org", key, "p", root, days=9))
    sign_folders(str(kit / "startup"), root, signature_file="signature.json")
    file = kit / "startup" / "fed_admin.json"
    file.write_text(file.read_text().replace("localhost", "elsewhere"))
    with pytest.raises(UserError, match=r"fed_admin.json was changed after it was signed"), System(kit).session():
        pass


@pytest.mark.slow
def test_a_server_that_does_not_run(tmp_path):
    system = System(admin_kit(tmp_path, days=1), patience=1.0)
    with (
        pytest.raises(UserError, match=r"no FLARE server is running at localhost:\d+; start it"),
        system.session(),
    ):
        pass


class Restarted:
    """A session of a server that was started after the job."""

    def get_job_meta(self, job):
        return {"status": "RUNNING", "start_time": "2020-01-01 10:00:00"}

    def get_system_info(self):
        return SimpleNamespace(server_info=SimpleNamespace(start_time=2e9))

    def _close_ignore_errors(self):
        pass


class Kept:
    """A session of a server that has kept a job; what it sends goes first into a folder of the kit."""

    download_job_result = Session.download_job_result

    def __init__(self, transfer: Path, status: str = "finished"):
        self.transfer, self.status = transfer, status

    def _validate_job_id(self, job):
        pass

    def _do_command(self, command):
        workspace = self.transfer / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "results.json").write_text(json.dumps({"status": self.status}))
        return {"meta": {"location": str(self.transfer)}}

    def get_job_meta(self, job):
        return {"status": "FINISHED:EXECUTION_EXCEPTION"}

    def _close_ignore_errors(self):
        pass


@pytest.mark.parametrize(("status", "failed"), [("finished", False), ("running", True)])
def test_a_run_that_is_finished_has_not_failed_whatever_became_of_a_sites_process(
    tmp_path, monkeypatch, status, failed
):
    system = System(admin_kit(tmp_path / "kit", days=1))
    monkeypatch.setattr(system.kit, "log_in", lambda patience: Kept(tmp_path / "transfer" / "job-1", status))
    assert system.has_failed("job-1", tmp_path / "out") is failed


def test_what_an_interrupted_fetch_left_is_replaced(tmp_path, monkeypatch):
    system, out = System(admin_kit(tmp_path / "kit", days=1)), tmp_path / "out"
    monkeypatch.setattr(system.kit, "log_in", lambda patience: Kept(tmp_path / "transfer" / "job-1"))
    for left in (out / "job-1", out / ".job-1.part" / "job-1"):
        left.mkdir(parents=True)
        (left / "log.txt").touch()
    for _ in range(3):
        workspace = system.fetch("job-1", out)
        assert workspace == out / "job-1" / "workspace"
        assert json.loads((workspace / "results.json").read_text()) == {"status": "finished"}
        assert sorted(file.relative_to(out) for file in out.rglob("*") if file.is_file()) == [
            Path("job-1/workspace/results.json")
        ]


@pytest.mark.parametrize("again", ["the same command with --resume", "the same command"])
def test_a_job_to_come_back_to_is_told_by_the_words_of_its_command(tmp_path, monkeypatch, again):
    system = System(admin_kit(tmp_path, days=1), patience=0.1, again=again)
    with pytest.raises(UserError, match=f"the job may go on: {again} follows it$"):
        system.follow("7", lambda _: None, pause=0.0, give_up=0.0)
    monkeypatch.setattr(system.kit, "log_in", lambda patience: Restarted())
    with pytest.raises(Ended, match=f"job 7 was lost when .*; {again} submits it again$"):
        system.follow("7", lambda _: None)


def test_fewer_sites_are_advised_where_the_user_may_be_content_with_them():
    with pytest.raises(Refused, match=r"north is missing; start them, or give --min-sites$"):
        require_sites(["south"], ["north", "south"], 0)
    with pytest.raises(Refused, match=r"north is missing; start them$"):
        require_sites(["south"], ["north", "south"], 2)


def test_a_server_whose_name_is_not_known(tmp_path):
    kit = System(admin_kit(tmp_path, days=1, host="no-such-host.invalid")).kit
    assert "no machine is known here by the name of the FLARE server at no-such-host.invalid" in kit.why_no_answer(5.0)


def served(certificate: Path, key: Path, port: int) -> socket.socket:
    """Something that talks TLS at a port, once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("localhost", port))

    def answer():
        with suppress(OSError):  # whoever asks may not be content
            context.wrap_socket(listener.accept()[0], server_side=True).close()

    threading.Thread(target=answer, daemon=True).start()
    return listener


def test_a_server_whose_certificate_expired_or_is_anothers(tmp_path):
    kit = System(admin_kit(tmp_path / "kit", days=1)).kit
    root, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    own = load_pem_private_key((kit.folder / "startup" / "root.key").read_bytes(), None)
    port = int(kit.address.rpartition(":")[2])
    (tmp_path / "key.pem").write_bytes(pem_of(key))
    for issuer, days, since, said in (
        (own, 9, 99, "is there and did not take the login"),
        (own, -1, 99, "has expired; it needs a new kit"),
        (own, 9, -1, "is not valid yet by this machine's clock"),
        (root, 9, 99, "is of another project than the kit"),
    ):
        (tmp_path / "server.pem").write_bytes(signed("localhost", key, "p", issuer, days=days, since=since))
        with served(tmp_path / "server.pem", tmp_path / "key.pem", port):
            assert said in kit.why_no_answer(5.0)


def test_experiments_are_folders_names(tmp_path):
    with pytest.raises(UserError, match=r"experiment '\.\./x'"):
        run_in_production(CONFIG, tmp_path / "out", kit=admin_kit(tmp_path, days=1), experiment="../x")


@pytest.mark.parametrize("gpus", [0, 2])
def test_gpus_of_a_job(tmp_path, gpus):
    job = export_job(CONFIG.model_copy(update={"device": "cuda"}), tmp_path / "job", gpus=gpus)
    assert json.loads((job / "meta.json").read_text())["resource_spec"] == (
        {"@default": {"num_of_gpus": gpus}} if gpus else {}
    )
    server, client = (
        json.loads((job / "app" / "config" / f"config_fed_{side}.json").read_text()) for side in ("server", "client")
    )
    assert server["workflows"][0]["args"]["run_config"]["device"] == "auto"
    assert client["executors"][0]["executor"]["args"]["run_config"]["device"] == "cuda"
