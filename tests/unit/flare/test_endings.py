"""Why a job ended, from what FLARE leaves of it; test_refusals.py has the same from a federation."""

from medpfl.flare.transport.endings import BEGUN, why

ABNORMAL = {"status": "FINISHED:ABNORMAL", "job_deploy_detail": ["server: OK", "north: OK"]}
REPORTED = "... FederatedServer - INFO - Failing job 7 due to reported failure from north: infrastructure error\n"


def test_a_job_that_did_no_task_may_lack_an_allowed_class(tmp_path):
    said = why("7", ABNORMAL, tmp_path, {}, REPORTED)
    assert said.startswith(
        "FLARE ended it with ABNORMAL: the job's process at north ended (infrastructure error); no task"
    )
    assert "class_allow_list" in said
    assert said.endswith("7/error_log.txt in the kit of north says it")
    # A user who may not read the server's log does not learn the site.
    assert why("7", ABNORMAL, tmp_path, {}, "").endswith("7/error_log.txt in the kit of the site says it")


def test_a_job_that_did_tasks_ended_for_another_reason(tmp_path):
    (tmp_path / BEGUN).mkdir()
    (tmp_path / BEGUN / "south").touch()
    for reported in (REPORTED, ""):  # another site's task says nothing of this one's classes
        assert "class_allow_list" in why("7", ABNORMAL, tmp_path, {}, reported)
    (tmp_path / BEGUN / "north").touch()
    said = why("7", ABNORMAL, tmp_path, {}, REPORTED)
    assert "process at north ended" in said
    assert "class_allow_list" not in said
    assert "class_allow_list" not in why("7", ABNORMAL, tmp_path, {}, "")
    assert said.endswith("log.txt of the job at server and sites says why")


def test_a_log_that_is_no_text_is_read_all_the_same(tmp_path):
    line = b"Can't load class nvflare.app_opt.tracking.mlflow.X: No module named 'mlflow'\n"
    (tmp_path / "error_log.txt").write_bytes(b"\xff\xfe cut\n" + line)
    assert why("7", ABNORMAL, tmp_path, {}, "").startswith("--track mlflow: the server has no package mlflow")


def test_an_aborted_job_is_no_refused_class(tmp_path):
    said = why("7", {"status": "FINISHED:ABORTED"}, tmp_path, {}, "")
    assert said == "FLARE ended it with ABORTED; log.txt of the job at server and sites says why"


def test_what_the_schedule_says():
    meta = {"status": "FINISHED:CAN_NOT_SCHEDULE", "schedule_history": ["10:00: scheduled", "10:01: no resources"]}
    assert why("7", meta, None, {}, "") == "FLARE ended it with CAN_NOT_SCHEDULE: 10:01: no resources"


def test_a_job_that_no_site_could_start():
    said = why("7", {"status": "FAILED_TO_RUN"}, None, {}, "")
    assert said.startswith("FLARE ended it with FAILED_TO_RUN: a site could not start the job's process")
    assert "class_allow_list" not in said


def test_a_job_that_no_site_took_may_be_too_large():
    meta = {"status": "FINISHED:FAILED_TO_RUN", "job_deploy_detail": ["server: OK", "a: no reply (deployment timeout)"]}
    assert "no app above 4 MiB" in why("7", meta, None, {}, "")
