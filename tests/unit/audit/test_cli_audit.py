import json
import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medpfl.audit.finding import Finding
from medpfl.audit.report import lines_of, passed, require_own_folder, summary, write_audit
from medpfl.cli.audit import open_audit
from medpfl.cli.main import app
from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.site.policy import HOSPITAL

ROOT = Path(__file__).parents[3]
FEDAVG = ROOT / "jobs" / "organamnist-fedavg"


def audit(*arguments):
    return CliRunner().invoke(app, ["site", "audit", *map(str, arguments)])


@pytest.fixture
def careless(tmp_path):
    """A kit whose policy looks at no weights."""
    (tmp_path / "kit" / "local").mkdir(parents=True)
    policy = {"copied_rows": 1, "largest_jump": 0, "measures": "full"}
    (tmp_path / "kit" / "local" / "medpfl.json").write_text(json.dumps({"policy": policy}))
    return tmp_path / "kit"


@pytest.mark.slow
def test_a_job_is_audited(tmp_path, careless):
    """The time is enough for some attacks; what was not begun is said, and fails."""
    result = audit(FEDAVG, "--kit", careless, "--out", tmp_path / "out", "--minutes", "0.3", "--site", "site-2")
    assert result.exit_code == 1, result.output
    assert "imprint: fails (images recognisable <= 0)" in result.output
    assert "An attack that fails here is no proof" in result.output
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert (report["job"], report["site"], report["passed"]) == ("organamnist-fedavg", "site-2", False)
    assert len(report["attacks"]) == 8
    assert (tmp_path / "out" / "imprint.png").exists()
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert modes == {0o600}


@pytest.mark.slow
def test_a_hospitals_policy_holds_the_imprint(tmp_path):
    result = audit(FEDAVG, "--out", tmp_path / "out", "--minutes", "0.3", "--site", "site-2")
    assert "imprint: passes (images recognisable <= 0)" in result.output
    assert "contract: rows of 'fc1.weight' copy each other" in result.output
    assert not (tmp_path / "out" / "imprint.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--site", "north"), r"--site north: the job has site-1, site-2"),
        (("--data", f"chest={ROOT}"), r"--data chest: the job's data are called organamnist-sample"),
    ],
)
def test_mistakes_are_said_in_a_line(arguments, words):
    with pytest.raises(UserError, match=words):
        raise audit(FEDAVG, *arguments).exception


def test_verdicts():
    good, none = Finding("a", "", "", "passes"), Finding.not_tried("b", "it has no meaning")
    assert passed([good, none])
    assert not passed([good, Finding("c", "the time limit was reached", "", "no time")])
    assert not passed([good, Finding("d", "", "", "fails")])
    assert lines_of(none) == ["b: not tried: it has no meaning"]
    once = Finding("e", "once", "nothing", "passes", "none", asked=1, refusals={"policy": 1})
    _, tried, _, refused = lines_of(once)
    assert (tried, refused) == ("  tried: once; the site answered 0 of 1 question", "  refused 1 time: policy")


def test_what_was_only_refused_is_said():
    answered = Finding("a", "", "", "passes", asked=4, answered=3)
    refused = Finding("b", "", "", "passes", asked=4, answered=0)
    none = Finding.not_tried("c", "it has no meaning")
    assert "refused" not in " ".join(summary([answered, none], 1))
    assert "refused every question of b: " in summary([answered, refused, none], 1)[2]
    assert "refused every question of all of them: " in summary([refused, none], 1)[2]
    assert summary([refused, none], 1)[-1] == "Passes: every attack stayed within its limit."
    assert summary([Finding("d", "", "", "fails")], 1)[-1] == "Fails: d."
    late = Finding("e", "the time limit was reached", "", "no time")
    assert summary([answered, none, late], 1)[0].startswith("1 attack of 3 tried")
    assert summary([answered, none, late], 1)[-1] == "Fails: e."


def changed(tmp_path, change):
    """A copy of a job whose executor has other arguments."""
    job = Path(shutil.copytree(FEDAVG, tmp_path / "job"))
    file = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(file.read_text())
    change(content["executors"][0]["executor"]["args"])
    file.write_text(json.dumps(content))
    file = file.with_name("config_fed_server.json")
    content = json.loads(file.read_text())
    change(content["workflows"][0]["args"])
    file.write_text(json.dumps(content))
    return job


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda args: args.update(newcomers=args["run_config"]), "sites join a finished run by it"),
        (lambda args: args["run_config"].update(init=f"sha256:{'0' * 64}"), "begins with start weights"),
    ],
)
def test_jobs_that_cannot_be_attacked_are_refused_at_once(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        raise audit(changed(tmp_path, change), "--out", tmp_path / "out").exception
    assert not (tmp_path / "out").exists()


def test_a_job_of_masks_is_refused_before_the_attacks():
    masks = make_config(algorithm="fedavg", task="segmentation", data="sarcoma-sample", partition="natural", sites=3)
    with pytest.raises(UserError, match="sarcoma-sample: segmentation, and the attacks here look for images"):
        open_audit(masks, None, None, HOSPITAL, HOSPITAL.audit, 1)


def test_no_network_is_built_that_the_site_would_not_build(careless, tmp_path):
    file = careless / "local" / "medpfl.json"
    file.write_text(json.dumps({"policy": {"network_parameters": 1000}}))
    with pytest.raises(UserError, match=r"1e\+03 is the limit \(network_parameters\)"):
        raise audit(FEDAVG, "--kit", careless, "--out", tmp_path / "out").exception


def test_no_image_is_read_that_the_site_would_not_read(careless, tmp_path, monkeypatch):
    file = careless / "local" / "medpfl.json"
    file.write_text(json.dumps({"policy": {"data_values": 1000}}))
    monkeypatch.setattr(PartitionedImages, "site", lambda *arguments: pytest.fail("the data were opened"))
    with pytest.raises(UserError, match=r"up to 2,979,200 values .* and data_values is 1,000: let it ask for smaller"):
        raise audit(FEDAVG, "--kit", careless, "--out", tmp_path / "out").exception
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path):
    folder = tmp_path / "fundus"
    folder.mkdir(mode=0o755)
    (folder / "patient1.png").write_bytes(b"a picture")
    with pytest.raises(UserError, match="it holds something else than an audit's report"):
        raise audit(FEDAVG, "--out", folder).exception
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [file.name for file in folder.iterdir()] == ["patient1.png"]


def test_a_report_takes_the_place_of_its_own_pictures_alone(tmp_path):
    require_own_folder(tmp_path / "audit")
    for name in ("imprint.png", "slide.png"):
        (tmp_path / "audit" / name).write_bytes(b"a picture")
    (tmp_path / "audit" / "audit.json").write_text('{"passed": true}')
    require_own_folder(tmp_path / "audit")
    assert (tmp_path / "audit" / "audit.json").read_text() == '{"passed": true}'  # until there is another
    found = {"job": "job", "site": "north", "policy": HOSPITAL, "thresholds": HOSPITAL.audit, "seconds": 1.0}
    write_audit(tmp_path / "audit", [Finding("imprint", "", "", "passes")], **found)
    assert {file.name for file in (tmp_path / "audit").iterdir()} == {"audit.json", "slide.png"}
    assert {stat.S_IMODE((tmp_path / "audit" / name).stat().st_mode) for name in (".", "audit.json")} == {0o700, 0o600}
