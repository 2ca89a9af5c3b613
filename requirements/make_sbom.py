"""Writes a wheel's bill of materials beside it: make_sbom.py dist/medpfl-VERSION-py3-none-any.whl.

CycloneDX's own tool reads hospital.txt and torch-cuda.txt; what they cannot say is added: the wheel's version and hash,
and which packages it asks for itself. Needs the package `cyclonedx-bom`.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

HERE = Path(__file__).parent


def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def normalised(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(wheel: Path) -> Path:
    """Writes the bill and returns where it is."""
    locked = "".join((HERE / name).read_text() for name in ("hospital.txt", "torch-cuda.txt"))
    command = ["cyclonedx-py", "requirements", "-", "--pyproject", str(HERE.parent / "pyproject.toml")]
    command += ["--mc-type", "library", "--output-reproducible", "--of", "JSON"]
    # It warns that the wheel has no dependencies, which come below.
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, input=locked, check=True, stdout=subprocess.PIPE, text=True, env=quiet)
    bill, said = json.loads(done.stdout), metadata(wheel)

    root, version = bill["metadata"]["component"], said["Version"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root |= {"version": version, "purl": f"pkg:pypi/{said['Name']}@{version}"}
    root["hashes"] = [{"alg": "SHA-256", "content": digest}]
    for part in bill["components"]:
        del part["description"]  # the whole entry again
    references = {normalised(part["name"]): part["bom-ref"] for part in bill["components"]}
    asked = [item for item in said.get_all("Requires-Dist") if "extra ==" not in item]
    names = [normalised(re.match(r"[\w.-]+", item)[0]) for item in asked]
    if missing := [name for name in names if name not in references]:
        sys.exit(f"{', '.join(missing)}: not in requirements/; run `make hashes`")
    depends = [entry for entry in bill["dependencies"] if entry["ref"] != root["bom-ref"]]
    depends.append({"ref": root["bom-ref"], "dependsOn": sorted(references[name] for name in names)})
    bill["dependencies"] = depends

    text = json.dumps(bill, indent=1) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.from_version(bill["specVersion"])).validate_str(text):
        sys.exit(f"no valid CycloneDX: {wrong}")
    place = wheel.with_name(f"{said['Name']}-{version}.cdx.json")
    place.write_text(text)
    return place


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
