from pathlib import Path

import pytest

from medpfl.core.errors import UserError
from medpfl.flare.job.recipes import FedAvgRecipe
from medpfl.flare.transport.state import check_experiment, folder_name, require_owner, state_folder
from medpfl.site.ledger import Ledger
from medpfl.site.seal import Seal
from medpfl.site.training_sets import open_training_sets

KEY = bytes(range(32))


def test_state_lies_in_the_workspace():
    assert state_folder(lambda: "/kit", None, "ct-2.a_b") == Path("/kit/medpfl/ct-2.a_b")
    assert state_folder(lambda: "/kit", "/out", "state") == Path("/out/state")


@pytest.mark.parametrize("name", ["..", ".", "../x", "/etc", "a/b", ".hidden", "a b", "", "a\\b", "x\n", "a.lock"])
def test_a_job_cannot_choose_another_folder(name):
    with pytest.raises(UserError, match="letters, digits"):
        state_folder(lambda: "/kit", None, name)


def test_a_job_cannot_take_the_place_of_what_a_site_keeps(tmp_path):
    """Its own ledger and record of training sets, whatever files these come to have."""
    ledger, sets = Ledger(tmp_path, Seal(KEY, "ledger")), open_training_sets(tmp_path, KEY, lambda: ["a", "b"])
    run = {"data": "ct", "contract": "c", "experiment": "first", "run": 1, "task": "open", "round": 0}
    ledger.open(run | {"job": "j", "submitter": "a"}, most=2)
    sets.tell_of_few("ct", 1, keep=True)
    kept = [file.name for file in tmp_path.iterdir()]
    assert len(kept) >= 5
    for name in kept:
        with pytest.raises(UserError, match="ending like a file's"):
            state_folder(lambda: str(tmp_path), None, name)


def test_a_recipe_refuses_it_when_it_is_made():
    with pytest.raises(UserError, match=r"experiment '\.\./x'"):
        FedAvgRecipe(sites=2, experiment="../x")


@pytest.mark.parametrize("folder", ["/runs/my run", "/runs/é.x", "/"])
def test_a_folder_gives_a_name(folder):
    check_experiment(folder_name(Path(folder)))


def test_an_experiment_at_the_server_has_an_owner(tmp_path):
    folder = tmp_path / "first" / "server"
    folder.mkdir(parents=True)
    require_owner(folder, "mallory/h2", claim=False)  # who joins a run that is nobody's claims nothing
    assert not list(folder.iterdir())
    require_owner(folder, "alice/h1", claim=True)
    require_owner(folder, "alice/h1", claim=True)
    for claim in (True, False):
        with pytest.raises(UserError, match="experiment 'first' is another submitter's at this server"):
            require_owner(folder, "mallory/h2", claim=claim)
