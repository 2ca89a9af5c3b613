"""What can go wrong before a job is submitted, without a FLARE system; and the GPUs a job asks for."""

import json
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nvflare.tool.kit.kit_config import ADMIN_STARTUP_KIT_REQUIRED_FILES

from medpfl.config import make_config
from medpfl.errors import UserError
from medpfl.flare.export import export_job
from medpfl.flare.poc import free_port
from medpfl.flare.remote import System
from medpfl.production import run_in_production

CONFIG = make_config(algorithm="fedavg", sites=2, rounds=1)


def admin_kit(folder, *, days: int):
    """An administrator's kit whose certificate ends in so many days; of no project."""
    for name in ADMIN_STARTUP_KIT_REQUIRED_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin@example.org")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(days=99))
    pem = builder.not_valid_after(now + timedelta(days=days)).sign(key, hashes.SHA256())
    (folder / "local").mkdir()
    startup = folder / "startup"
    for file in ("client.crt", "rootCA.pem"):
        (startup / file).write_bytes(pem.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (startup / "client.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    admin = {"project_name": "p", "username": "admin@example.org", "server_identity": "localhost", "scheme": "grpc"}
    admin |= {"host": "localhost", "port": free_port(), "uid_source": "user_input", "cert": "client.crt"}
    admin |= {"client_key": "client.key", "client_cert": "client.crt", "ca_cert": "rootCA.pem"}
    admin |= {"upload_dir": "transfer", "download_dir": "transfer"}
    (startup / "fed_admin.json").write_text(json.dumps({"format_version": 1, "admin": admin}))
    return folder


def test_a_folder_that_is_no_kit(tmp_path):
    with pytest.raises(UserError, match="no administrator's startup kit"):
        run_in_production(CONFIG, tmp_path / "out", kit=tmp_path)
    assert not (tmp_path / "out").exists()


def test_an_expired_kit(tmp_path):
    with pytest.raises(UserError, match="its certificate expired on 20"):
        System(admin_kit(tmp_path, days=-1))


def test_a_kit_with_parts_missing(tmp_path):
    system = System(admin_kit(tmp_path, days=1))
    (tmp_path / "local").rmdir()
    with pytest.raises(UserError, match=r"not complete: .*local"), system.session():
        pass


def test_a_server_that_does_not_answer(tmp_path):
    system = System(admin_kit(tmp_path, days=1), patience=1.0)
    with (
        pytest.raises(UserError, match=r"no answer from the FLARE server at localhost:\d+ within 1 s"),
        system.session(),
    ):
        pass


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
