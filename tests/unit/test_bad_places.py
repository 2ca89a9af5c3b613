"""Places that a command may not write to, and files that are none of what they are given for: a line, and no harm."""

import errno
import json
import os
import resource
import shutil
import signal

import pytest
from typer.testing import CliRunner

from medpfl.cli.main import app
from medpfl.core.errors import UserError
from medpfl.core.whole_file import write_bytes, write_text

SMALL = ("--sites", "2", "--rounds", "1", "--env", "inprocess", "--alone", "no")


@pytest.fixture
def refused(medpfl, tmp_path):
    """A command in a folder of its own that must end in one line, without a traceback; returns the line."""

    def run(*words):
        done = medpfl(*words, cwd=tmp_path, check=False)
        assert done.returncode == 2, done.stdout + done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a small run, not to be changed."""
    out = tmp_path_factory.mktemp("finished") / "run"
    result = CliRunner().invoke(app, ["run", "fedavg", *SMALL, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("name", ["report.html", "results.json", "models/mine.pt", "state/a"])
def test_a_run_writes_over_nothing_of_others(refused, tmp_path, name):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"accuracy": 0.9}')
    for more in ((), ("--resume",), ("--overwrite",)):
        assert "is no run's folder" in refused("run", "fedavg", *SMALL, "--out", "mine", *more)
    assert file.read_text() == '{"accuracy": 0.9}'
    assert [p for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [file]


@pytest.mark.parametrize("command", [("run", "fedavg"), ("compare", "fedbn", "--seeds", "1")])
def test_a_folder_whose_name_is_not_utf_8(refused, tmp_path, command):
    assert "is no name in UTF-8" in refused(*command, *SMALL, "--out", os.fsdecode(b"Gr\xf6\xdfe"))
    assert not list(tmp_path.iterdir())


def test_a_comparison_is_not_written_into_a_run(refused, finished):
    before = (finished / "report.html").read_text()
    assert "holds a run" in refused("compare", "fedbn", *SMALL, "--seeds", "1", "--out", finished)
    assert (finished / "report.html").read_text() == before


def test_a_comparison_writes_over_nothing_of_others(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    assert "is no comparison's folder" in refused("compare", "fedbn", *SMALL, "--seeds", "1", "--out", "mine")
    assert (tmp_path / "mine" / "report.html").read_text() == "mine"


@pytest.mark.parametrize("kind", ["comparison", "sweep"])
def test_a_comparison_and_a_sweep_do_not_write_over_each_other(refused, tmp_path, kind):
    """The run's folder that a sweep has too, of what is the same at all values, makes it no comparison's."""
    (tmp_path / "mine" / "fedbn").mkdir(parents=True)
    other = "sweep" if kind == "comparison" else "comparison"
    (tmp_path / "mine" / f"{other}.json").write_text("{}")
    sweep = ("--sweep", "lr=0.1,0.2") if kind == "sweep" else ()
    message = refused("compare", "fedbn", *SMALL, "--seeds", "1", *sweep, "--out", "mine")
    assert f"holds a {other}, and a {kind} would write over its report.html" in message
    assert {p.name for p in (tmp_path / "mine").iterdir()} == {"fedbn", f"{other}.json"}


def test_sites_that_join_write_over_nothing_of_others(refused, finished, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "join.json").write_text("mine")
    join = ("run", "fedavg", "--join", finished, "--data", "organamnist-sample", "--sites", "2", "--out", "mine")
    assert "is no run's folder" in refused(*join)
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["join.json"]


def test_a_run_that_fails_at_once_leaves_a_folder_as_it_was(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    refused("run", "fedavg", *SMALL, "--data", "missing.npz", "--out", "mine")
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["notes"]


def test_a_run_copied_without_its_lock_is_one(medpfl, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns(".lock"))
    medpfl("run", "fedavg", *SMALL, "--out", "copy", "--resume", cwd=tmp_path)


def test_results_without_their_state_are_not_trained_anew(medpfl, refused, finished, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "results.json").write_bytes((finished / "results.json").read_bytes())
    assert "no state to go on from" in refused("run", "fedavg", *SMALL, "--out", "kept", "--resume")
    shutil.rmtree(tmp_path / "kept")
    medpfl("run", "fedavg", *SMALL, "--out", "kept", cwd=tmp_path)


def test_a_page_is_not_written_over_what_it_is_about(refused, finished, tmp_path):
    before = (finished / "results.json").read_bytes()
    assert "choose another file" in refused("report", finished, "--out", finished / "results.json")
    assert (finished / "results.json").read_bytes() == before
    (tmp_path / "counts.csv").write_text("site,train,validation,test\na,10,2,5\nb,10,2,5\n")
    assert "choose another file" in refused("advise", "--counts", "counts.csv", "--json", "counts.csv")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("run", "fedavg", *SMALL, "--out"), "--out"),
        (("compare", "fedbn", *SMALL, "--seeds", "1", "--out"), "--out"),
        (("report", ".", "--out"), "--out"),
        (("export", "fedavg", "--job"), "--job"),
        (("advise", "--json"), "--json"),
        (("data", "check", "organamnist-sample", "--deep", "--page"), "--page"),
        (("data", "inventory", ".", "--out"), "--out"),
        (("data", "phantom"), "DIR"),
        (("site", "audit", "job", "--out"), "--out"),
    ],
)
def test_an_empty_place_is_not_the_current_folder(refused, tmp_path, words, name):
    """As of a variable that is not set."""
    assert refused(*words, "") == f"medpfl: {name} '': empty; give a path, . for the current folder\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", [".", "folder", "file/page.html"])
def test_a_page_where_none_can_be(refused, finished, tmp_path, out):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    assert "medpfl: " in refused("report", finished, "--out", out)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "folder"]


def test_results_that_were_changed_by_hand(refused, finished, tmp_path):
    results = json.loads((finished / "results.json").read_text())
    results["final"]["selected"]["sites"]["site-1"]["accuracy"] = "x"
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert "changed by hand" in refused("report", "results.json")
    (tmp_path / "results.json").write_text("[" * 100_000)
    assert "damaged" in refused("report", "results.json")


def test_a_kit_that_is_none_has_no_audit(refused, tmp_path):
    job = tmp_path / "job"
    CliRunner().invoke(app, ["export", "fedavg", "--sites", "2", "--job", str(job)])
    assert "no startup kit" in refused("site", "audit", job, "--kit", "no-kit", "--out", "out")
    (tmp_path / "out").write_text("")
    assert "--out out: cannot be written" in refused("site", "audit", job, "--out", "out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "fedavg", "--init", "loop"), "loop"),
        (("export", "fedavg", "--job", "loop"), "no job of that name"),
        (("export", "fedavg", "--job", "_x"), "begins with a letter or a digit"),
        (("compare", "fedavg", "--sweep", "lr=nan..2..1"), "no FROM..TO..STEP"),
        (("run", "fedavg", "--preset", "deep.yml"), "wrong YAML"),
        (("run", "fedavg", "--preset", "itself.yml"), "wrong YAML"),
        (("run", "fedavg", "--augment", "deep.yml"), "wrong YAML"),
        (("run", "fedavg", "--augment", "flip.yml"), "RandFlipd"),
        (("run", "fedavg", "--set", "lr=" + "9" * 5000), "setting lr must be a number"),
        (("run", "fedavg", "--set", "lr=1e300"), "at most 1e+38"),
        (("run", "fedavg", "--preset", "date.yml"), "wrong YAML"),
        (("run", "fedavg", "--init", "weights.pt"), "save a network's state_dict()"),
        (("data", "phantom", "new", "--patients", str(10**27)), "at most"),
        (("site", "review", "job"), "config_fed_client.json: not a JSON file"),
    ],
)
def test_files_and_numbers_that_are_none(refused, tmp_path, words, said):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "deep.yml").write_text("[" * 1000)
    (tmp_path / "itself.yml").write_text("settings: &a {lr: *a}")
    (tmp_path / "date.yml").write_text("2020-01-01: 3")
    (tmp_path / "flip.yml").write_text("transforms: [{_target_: RandFlipd, prob: 0.5}]")
    (tmp_path / "weights.pt").write_bytes(b"no weights")
    (tmp_path / "job" / "app" / "config").mkdir(parents=True)
    (tmp_path / "job" / "app" / "config" / "config_fed_client.json").write_text("[" * 100_000)
    line = refused(*words)
    assert said in line
    assert "weights_only" not in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("change", [{"executors": "x"}, {"task_result_filters": None}, {"executors": [None]}])
def test_a_job_that_is_not_as_flare_writes_it(refused, tmp_path, change):
    job = tmp_path / "job"
    CliRunner().invoke(app, ["export", "fedavg", "--sites", "2", "--job", str(job)])
    file = job / "app" / "config" / "config_fed_client.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert "not a job of this package" in refused("site", "review", job)


def test_a_job_for_nobody(refused, tmp_path):
    job = tmp_path / "job"
    CliRunner().invoke(app, ["export", "fedavg", "--sites", "2", "--job", str(job)])
    meta = json.loads((job / "meta.json").read_text())
    (job / "meta.json").write_text(json.dumps(meta | {"deploy_map": {"app": None}}))
    assert "deploy_map is not as FLARE writes it" in refused("site", "review", job)


def test_a_folder_that_cannot_be_written_is_named(refused):
    if not os.access("/proc/version", os.R_OK):
        pytest.skip("there is no /proc here")
    assert "/proc/" in refused("export", "fedavg", "--sites", "2", "--job", "/proc/job")


def test_a_word_between_colons_stays_what_it_is(refused):
    assert "/data/:dog:/x.npz" in refused("run", "fedavg", "--data", "/data/:dog:/x.npz")


@pytest.mark.parametrize("write", [write_text, lambda file, text: write_bytes(file, text.encode())])
def test_a_file_for_which_there_is_no_room_is_named(tmp_path, write):
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            write(tmp_path / "page.html", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert str(error.value) == f"[Errno {errno.EFBIG}] File too large: '{tmp_path / 'page.html'}'"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [write_text, lambda file, text: write_bytes(file, text.encode())])
def test_a_device_or_a_pipe_is_not_replaced(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no ordinary file"):
        write(tmp_path / "pipe", "x")
    assert [file.is_fifo() for file in tmp_path.iterdir()] == [True]


def test_a_page_goes_where_a_link_leads(tmp_path):
    (tmp_path / "share").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to("share/page.html")
    for text in ("old", "new"):
        assert write_text(link, text) == link
        assert (link.is_symlink(), (tmp_path / "share" / "page.html").read_text()) == (True, text)


def test_an_oserror_has_a_line(monkeypatch, capsys):
    from medpfl.cli import main

    def fails():
        raise IsADirectoryError(21, "Is a directory", "there/report.html")

    monkeypatch.setattr(main, "app", fails)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert capsys.readouterr().err == "medpfl: there/report.html: Is a directory\n"
    monkeypatch.setattr(main, "app", lambda: (_ for _ in ()).throw(UserError("wrong")))
    with pytest.raises(SystemExit, match="2"):
        main.main()
