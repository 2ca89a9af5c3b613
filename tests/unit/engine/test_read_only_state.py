"""A site that may not write its state, by real permissions: in a process of its own, which root leaves for nobody."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tiny import config, last_models, run, same

from medpfl.site.store import DiskStore, StateNotKept
from medpfl.site.worker import Site

NOBODY = 65534


class MayNotWrite(Site):
    """In round 2 its folder is read-only."""

    def handle(self, message, model):
        self.store.folder.chmod(0o500 if message.task == "train" and message.round == 2 else 0o700)
        return super().handle(message, model)


class IsAway(Site):
    def handle(self, message, model):
        if message.task == "train" and message.round == 2:
            raise OSError("away")
        return super().handle(message, model)


def replaced(kind, store=None):
    def change(sites):
        sites["site-2"].__class__ = kind
        sites["site-2"].store = store or sites["site-2"].store

    return change


def main() -> None:
    """Runs without a user's rights and prints what came of it."""
    away, without = run(config("fedbn"), replaced(IsAway))  # and all modules are loaded
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        log = logging.FileHandler(f"{name}/log.txt")
        logging.getLogger("medpfl").addHandler(log)
        folder = Path(name) / "state"
        state, sites = run(config("fedbn"), replaced(MayNotWrite, DiskStore(folder, durable=True)))
        ours, theirs = last_models(state, sites), last_models(away, without)
        left = [file.name for file in folder.iterdir() if file.suffix != ".safetensors"]
        folder.chmod(0o500)
        try:
            DiskStore(folder / "experiment" / "site-2", durable=True)
            begun = "it could"
        except StateNotKept as error:
            begun = str(error)
        folder.chmod(0o700)
        said = {
            "failures": [(f.site, f.round, f.reason) for f in state.failures],
            "same": all(same(ours[site], theirs[site]) for site in ours),
            "left": left,
            "begun": begun,
            "log": Path(log.baseFilename).read_text(),
            "folder": str(folder),
        }
    print(json.dumps(said))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "setuid"), reason="permissions are not POSIX's")
def test_a_site_that_may_not_write_misses_a_round_and_its_own_log_names_the_folder():
    here = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env=os.environ | here, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    reason = "the site cannot write its state: Permission denied (its log says more)"
    assert said["failures"] == [["site-2", 2, reason]]
    assert said["same"]  # as a run in which it was away
    assert said["left"] == []
    assert said["begun"] == reason
    assert f"must be able to write in {said['folder']}," in said["log"]
    assert f"must be able to write in {said['folder']}/experiment/site-2," in said["log"]


if __name__ == "__main__":
    main()
