import csv
import io

from medpfl.report.history import history_csv


def test_one_row_for_every_round_and_site(five):
    rows = list(csv.DictReader(io.StringIO(history_csv(five))))
    assert len(rows) == 30
    entry = five["rounds"][2]["sites"]["site-4"]
    assert rows[13] == {
        "round": "3",
        "site": "site-4",
        "train_loss": str(entry["train_loss"]),
        "validation_accuracy": str(entry["validation"]["accuracy"]),
        "validation_auroc": str(entry["validation"]["auroc"]),
        "sent_bytes": "240000",
        "received_bytes": "250000",
        "seconds": "0.8",
    }


def test_what_was_not_measured_is_empty(empty):
    assert history_csv(empty).splitlines()[1:] == ["1,a,,,,,,", "1,b,,,,,,"]


def test_names_are_quoted(make_run):
    assert '1,"ward 3, east",' in history_csv(make_run("fedap", {"ward 3, east": 0.9}, rounds=1))
