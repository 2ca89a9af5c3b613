"""What the command line adds to FLARE's simulator and POC."""

import errno

import pytest

from medpfl.core.errors import UserError
from medpfl.flare.launch.simulator import LoggedSimEnv, beside_the_run


def test_rounds_of_before_a_resume_took_nothing_of_this_time():
    """Ten minutes of training came before; of these 30 seconds the server worked on the run for 12, after 2."""
    seconds = {"total": 14.0, "start": 2.0, "training": 600.0}
    assert beside_the_run(30.0, {"seconds": seconds}) == 18.0


def test_a_full_temporary_folder_is_named(tmp_path):
    class Full:
        name = "fedbn"

        def export_job(self, folder):
            raise OSError(errno.ENOSPC, "No space left on device")

    env = LoggedSimEnv(tmp_path / "flare.log", clients=["site-1"], num_threads=1, workspace_root=tmp_path)
    with pytest.raises(UserError, match=r"^/.*: the job cannot be written: No space left on device; TMPDIR names"):
        env.deploy(Full())
