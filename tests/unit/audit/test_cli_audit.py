import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medpfl.audit.finding import Finding
from medpfl.audit.report import lines_of, passed, summary
from medpfl.cli.main import app
from medpfl.core.errors import UserError

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


def test_what_was_only_refused_is_said():
    answered = Finding("a", "", "", "passes", asked=4, answered=3)
    refused = Finding("b", "", "", "passes", asked=4, answered=0)
    none = Finding.not_tried("c", "it has no meaning")
    assert "refused" not in " ".join(summary([answered, none], 1))
    assert "refused every question of b: " in summary([answered, refused, none], 1)[2]
    assert "refused every question of all of them: " in summary([refused, none], 1)[2]
    assert summary([refused, none], 1)[-1] == "Passes: every attack stayed within its limit."
    assert summary([Finding("d", "", "", "fails")], 1)[-1] == "Fails: d."
