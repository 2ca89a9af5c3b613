"""`medpfl site init`: what changes in a kit that FLARE provisioned, what FLARE makes of it, and what stays."""

import json
import shutil
from pathlib import Path

import pytest
from kits import FEDAP, FEDAVG, ROOT, done, files, gates, init, kept_list, mistake, policy, read, site, write
from nvflare.apis.workspace import Workspace
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from PIL import Image

from medpfl.core.errors import UserError
from medpfl.flare.admin.kit_rights import GUARD, NO_CODE
from medpfl.flare.job.classes import AT_SITE, FILTER
from medpfl.flare.job.folder import read_job
from medpfl.flare.transport.filter import AllowListFilter
from medpfl.site.local_file import read_policy, read_site_manifest


def test_a_fresh_kit_is_ready_and_all_else_in_it_stays(kit, blood):
    before = files(kit)
    output = done(kit, "--data", f"cells={blood}")
    made = read(kit, "resources.json")
    given = read(kit, "resources.json.default")
    assert made.pop("class_allow_list") == list(AT_SITE)
    assert given.pop("class_allow_list") == list(DEFAULT_CLASS_ALLOW_LIST)
    assert made.pop("allow_log_streaming") is False
    assert given.pop("allow_log_streaming") is True
    assert made.pop("app_validator") == {"path": NO_CODE}
    assert made["components"].pop() == {"id": "medpfl_guard", "path": GUARD, "args": {}}
    assert made == given
    assert read_site_manifest(kit / "local") == {"cells": blood}
    [gate] = gates(kit)
    assert isinstance(gate, AllowListFilter)
    assert gate.allowed is None
    written = ("resources.json", "authorization.json", "privacy.json", "medpfl.json", "medpfl.key")
    new = {Path("local") / name for name in written}
    assert {path: content for path, content in files(kit).items() if path not in new} == before
    assert "allow_log_streaming: true -> false" in output
    assert f"cells: not said -> {blood}" in output


def test_the_second_time_there_is_nothing_to_change(kit, blood):
    done(kit, "--data", blood, "--job", FEDAP)
    before = files(kit)
    assert "Nothing to change." in done(kit, "--data", f"blood={blood}", "--job", FEDAP)
    assert files(kit) == before


def test_a_dry_run_writes_nothing(kit, blood):
    before = files(kit)
    assert "blood: not said" in done(kit, "--data", blood, "--dry-run")
    assert files(kit) == before


def test_a_second_jobs_list_takes_the_place_of_the_firsts_where_that_is_said(kit):
    done(kit, "--job", FEDAP)
    assert "--new-list puts its list in the place of that one" in kept_list(kit, "--job", FEDAVG)
    output = done(kit, "--job", FEDAVG, "--new-list")
    assert "a list of 14 tensors, which 8 of the 18 now are not in -> only what organamnist-fedavg sends" in output
    fresh = read_job(FEDAVG).allowed
    [gate] = gates(kit)
    assert gate.allowed == fresh
    assert "Nothing to change." in done(kit, "--job", FEDAVG, "--new-list")
    assert "organamnist-fedap will be refused here" in kept_list(kit, "--job", FEDAP)
    assert mistake(kit, "--new-list").startswith("--new-list: whose? give --job JOB too")


def test_a_new_list_is_the_default_scopes_alone(kit):
    """A job picks its scope, so that one which a site has closed must stay closed."""
    done(kit, "--job", FEDAP)
    content = read(kit, "privacy.json")
    closed = json.loads(json.dumps(content["scopes"][0])) | {"name": "closed"}
    closed["task_result_filters"][0]["args"]["allowed"] = {}
    write(kit, "privacy.json", content | {"scopes": [*content["scopes"], closed]})
    assert "scope closed: its own list is kept" in done(kit, "--job", FEDAVG, "--new-list")
    lists = [scope["task_result_filters"][0]["args"]["allowed"] for scope in read(kit, "privacy.json")["scopes"]]
    assert lists == [read_job(FEDAVG).allowed, {}]


def test_the_templates_are_what_a_fresh_kit_gets(kit):
    done(kit)
    for name in ("resources.json", "authorization.json", "privacy.json"):
        assert json.loads((ROOT / "app_config" / "site" / name).read_text()) == read(kit, name)


def test_with_a_job_exactly_its_names_and_shapes_may_leave(kit):
    done(kit)
    assert "tensors of any name -> only what organamnist-fedap sends" in done(kit, "--job", FEDAP)
    content = json.loads((FEDAP / "app" / "config" / "config_fed_client.json").read_text())
    [gate] = gates(kit)
    assert gate.allowed == content["task_result_filters"][0]["filters"][0]["args"]["allowed"]
    assert gate.allowed["conv1.weight"] == [6, 1, 5, 5]


def test_a_stricter_list_of_the_site_stays(kit):
    write(kit, "privacy.json", policy(["conv1.weight", "statistics/"]))
    assert "what may leave" not in done(kit)
    output = kept_list(kit, "--job", FEDAP)
    assert "it lacks 9 of the 14 tensors that organamnist-fedap sends, the first is 'conv1.bias', so" in output
    assert "organamnist-fedap will be refused here" in output
    assert read(kit, "privacy.json") == policy(["conv1.weight", "statistics/"])


def test_another_job_does_not_widen_the_first_ones_list(kit):
    done(kit, "--job", FEDAP)
    before = read(kit, "privacy.json")
    output = kept_list(kit, "--job", FEDAVG)
    assert "the first is 'bn1.weight', so organamnist-fedavg will be refused here" in output
    assert read(kit, "privacy.json") == before


def test_a_wider_list_of_the_site_stays_and_is_told(kit):
    done(kit, "--job", FEDAVG)
    wider = read(kit, "privacy.json")
    wider["scopes"][0]["task_result_filters"][0]["args"]["allowed"]["statistics/"] = None
    write(kit, "privacy.json", wider)
    assert "it allows more than organamnist-fedap sends" in done(kit, "--job", FEDAP)
    assert read(kit, "privacy.json") == wider


WRONG = [None, 3, "conv1.weight", ["conv1.weight", 3], {"conv1.weight": "all"}, {"conv1.weight": [True]}, [None]]


def allowing(folder, **args):
    """A job whose list of what may leave is given so."""
    job = Path(shutil.copytree(FEDAP, folder / "job", dirs_exist_ok=True))
    file = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    content["task_result_filters"][0]["filters"][0]["args"] = args
    file.write_text(json.dumps(content))
    return job


@pytest.mark.parametrize("own", [None, ["conv1.weight"]])
def test_a_job_without_a_list_that_limits_is_refused(kit, tmp_path, own):
    if own:
        write(kit, "privacy.json", policy(own))
    before = files(kit)
    for args in [{}, *({"allowed": wrong} for wrong in WRONG)]:
        assert "config_fed_client.json: `allowed` of what may leave must be" in mistake(
            kit, "--job", allowing(tmp_path, **args)
        )
    assert files(kit) == before


def test_a_job_may_list_names_alone_or_as_flare_rewrites_them(kit, tmp_path):
    done(kit, "--job", allowing(tmp_path, allowed={"conv1": {"weight": [6, 1, 5, 5]}, "fc3": {"bias": None}}))
    assert [gate.allowed for gate in gates(kit)] == [{"conv1.weight": [6, 1, 5, 5], "fc3.bias": [11]}]
    before = files(kit)
    assert "it lacks" not in done(kit, "--job", allowing(tmp_path, allowed=["conv1.weight"]))
    assert files(kit) == before


WIDER = {"bn1.weight": [6], "bn2.running_var": None, "statistics/": None, "patient/": None, "conv1.weight": [6]}


@pytest.mark.parametrize("name", WIDER)
def test_a_job_that_lists_what_it_does_not_send_is_refused(kit, tmp_path, name):
    """The contract does not cover the list, which a coordinator may have widened by hand."""
    done(kit, "--job", FEDAP)
    before = files(kit)
    job = allowing(tmp_path, allowed={**read_job(FEDAP).allowed, name: WIDER[name]})
    said = f"of nothing that it sends, or in another shape, {name!r} first"
    for more in ((), ("--new-list",)):
        assert said in mistake(kit, "--job", job, *more)
    assert said in str(site("review", job).exception)
    assert files(kit) == before


@pytest.mark.parametrize("wrong", WRONG[1:])
def test_a_sites_own_list_that_flare_could_not_read_is_named(kit, wrong):
    write(kit, "privacy.json", policy(wrong))
    assert "privacy.json: `allowed` of what may leave must be" in mistake(kit, "--job", FEDAP)


def test_every_scope_gets_the_filter_and_all_else_in_them_stays(kit):
    other = {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars", "args": {"exclude_vars": ["secret"]}}
    research = {"name": "research", "properties": {"a": 1}, "task_result_filters": [other]}
    before = {"scopes": [research, {"name": "open"}], "default_scope": "research", "components": []}
    write(kit, "privacy.json", before)
    output = done(kit)
    assert "what may leave in scope research: as 1 other filters say" in output
    assert "what may leave in scope open: anything" in output
    after = read(kit, "privacy.json")
    for scope in after["scopes"]:
        assert scope["task_result_filters"].pop() == {"path": FILTER, "args": {"allowed": None}}
    assert after["scopes"][1].pop("task_result_filters") == []
    assert after == before


def test_a_job_cannot_pick_a_scope_without_a_limit(kit):
    content = policy(["conv1.weight"])
    content["scopes"] += [{"name": "open"}, *policy(None)["scopes"]]
    content["scopes"][2]["name"] = "any"
    write(kit, "privacy.json", content)
    output = kept_list(kit, "--job", FEDAP)
    assert "scope own: its own list is kept" in output
    assert "scope open: anything -> only what organamnist-fedap sends" in output
    assert "scope any: tensors of any name -> only what organamnist-fedap sends" in output
    manager = create_privacy_manager(Workspace(str(kit)), names_only=False)
    for name, size in (("own", 1), ("open", 14), ("any", 14)):
        [gate] = manager.get_scope(name).task_result_filters["out"]
        assert len(gate.allowed) == size
    before = files(kit)
    assert "Nothing was written." in kept_list(kit, "--job", FEDAP)
    assert files(kit) == before


def test_a_list_of_another_scope_than_the_default_refuses_no_job(kit):
    content = policy(["conv1.weight"])
    content["scopes"] += [{"name": "open"}]
    write(kit, "privacy.json", content | {"default_scope": "open"})
    assert "so it would be refused in this scope" in done(kit, "--job", FEDAP)


def test_without_a_default_scope_jobs_without_one_stay_refused(kit):
    write(kit, "privacy.json", {"scopes": [{"name": "research"}]})
    output = done(kit)
    assert "jobs without a scope are refused here" in output
    assert "what may leave in scope research: anything" in output
    assert "default_scope" not in read(kit, "privacy.json")


def test_a_filter_of_what_comes_in_is_no_limit_on_what_leaves(kit):
    coming = {"path": FILTER, "args": {"allowed": ["a"]}, "direction": "in"}
    write(kit, "privacy.json", {"scopes": [{"name": "own", "task_result_filters": [coming]}], "default_scope": "own"})
    done(kit)
    assert [gate.allowed for gate in gates(kit)] == [None]


def test_other_data_and_keys_of_the_sites_manifest_stay(kit, blood):
    write(kit, "medpfl.json", {"data": {"ct": "/data/ct", "blood": "/old.npz"}, "note": "ours"})
    assert f"blood: /old.npz -> {blood}" in done(kit, "--data", blood)
    assert read(kit, "medpfl.json") == {"data": {"ct": "/data/ct", "blood": str(blood)}, "note": "ours"}


@pytest.mark.parametrize("strange", [{"polcy": {"least_patients": 50}}, {"datas": {}}, {"limits": {"rounds": 3}}])
def test_a_misspelt_section_is_refused_and_does_not_fail_to_hold(kit, strange):
    [name] = strange
    hint = {"polcy": r" \(did you mean policy\?\)", "datas": r" \(did you mean data\?\)"}.get(name, "")
    write(kit, "medpfl.json", {"data": {}} | strange)
    for reading in (read_site_manifest, lambda local: read_policy(local, rehearsal=False)):
        with pytest.raises(UserError, match=rf"medpfl\.json: '{name}' is nothing of this file's{hint}; beside data"):
            reading(kit / "local")


def test_data_get_their_manifests_name(kit, tmp_path):
    scans = tmp_path / "scans"
    shutil.copytree(ROOT / "app_config" / "manifests" / "dicom", scans)
    result = init(kit, "--data", scans)
    assert f"chest-ct: {scans}" in result.output
    assert result.exit_code == 1  # the template has no scans


def test_data_that_cannot_be_used_leave_the_kit_as_it_is(kit, tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    before = files(kit)
    result = init(kit, "--data", f"blood={tmp_path / 'bad.npz'}")
    assert result.exit_code == 1
    assert "bad.npz" in result.output
    assert "Nothing was written" in result.output
    assert files(kit) == before


def test_a_kit_in_a_folder_with_a_blank_is_told_that_flare_does_not_start_there(kit, tmp_path):
    """FLARE's start.sh calls what stands beside it without quotes, and ends with 0 all the same."""
    moved = shutil.copytree(kit, tmp_path / "north hospital" / kit.name)
    note = "FLARE's start.sh starts nothing in a folder with a blank in its path; move the kit"
    assert note in " ".join(done(moved).split())
    assert note in " ".join(done(moved).split())
    assert note not in " ".join(done(kit).split())


def test_jobs_data_that_the_site_does_not_name_are_noted(kit, blood):
    output = done(kit, "--data", blood, "--job", FEDAP)
    assert "organamnist-fedap takes data called 'organamnist-sample', and medpfl.json has blood" in output


def test_mistakes_are_named(kit, provisioned, tmp_path, blood):
    assert "startup/fed_client.json" in mistake(tmp_path)
    assert "startup/fed_client.json" in mistake(provisioned / "admin@example.org")
    assert "the server's kit" in mistake(provisioned / "localhost", "--data", blood)
    assert "the server's kit" in mistake(provisioned / "localhost", "--allow-byoc")
    assert "there is no" in mistake(kit, "--data", "no-such-folder")
    assert "no name for data" in mistake(kit, "--data", f"a/b={blood}")
    assert "no job folder" in mistake(kit, "--job", tmp_path)
    write(kit, "privacy.json", [])
    assert "privacy.json: a JSON object" in mistake(kit)
    write(kit, "privacy.json", {"scopes": [{"name": "a"}], "default_scope": "b"})
    assert "default_scope 'b' is none of its scopes" in mistake(kit)
    write(kit, "privacy.json", {"scopes": ["a"]})
    assert "scopes must be a list of JSON objects" in mistake(kit)
    write(kit, "privacy.json", {})
    write(kit, "medpfl.json", {"data": ["/data"]})
    assert "data must say where" in mistake(kit)
    write(kit, "medpfl.json", {})
    (kit / "local" / "resources.json").write_text("{")
    assert "resources.json: not a JSON file" in mistake(kit)


def test_data_of_several_centres_are_not_one_sites(kit, tmp_path):
    for centre in ("north", "south"):
        for name in ("glaucoma", "normal"):
            folder = tmp_path / "fundus" / centre / name
            folder.mkdir(parents=True)
            for k in range(4):
                Image.new("RGB", (8, 8), (k, 0, 0)).save(folder / f"{centre}-{name}-{k}.png")
    before = files(kit)
    result = init(kit, "--data", f"fundus={tmp_path / 'fundus'}")
    assert result.exit_code == 1
    assert "has 2 centres, and a site is one: give the data of one, north" in " ".join(result.output.split())
    assert files(kit) == before
    done(kit, "--data", f"fundus={tmp_path / 'fundus' / 'north'}")


def test_data_that_are_not_there_leave_the_kit_as_it_is(kit):
    before = files(kit)
    result = init(kit, "--data", "ct=/no/such/folder")
    assert result.exit_code == 1
    assert "there is no /no/such/folder" in result.output
    assert files(kit) == before
