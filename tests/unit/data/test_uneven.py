"""Splits that teach or show little are said before a run."""

import logging

import numpy as np
import pytest

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.data.check import check
from medpfl.data.uneven import before_a_run, judged_classes, of_a_site, require_test_cases
from medpfl.runs.experiment import run_experiment
from medpfl.tasks import TASKS

PLAIN = TASKS["classification"]


def described(*sites):
    each = [
        {"judged_classes": judged_classes({"validation": validation, "test": test}, 2)} for validation, test in sites
    ]
    return {"classes": ["healthy", "ill"], "sites": {f"site-{i}": of for i, of in enumerate(each, start=1)}}


def test_an_even_split_needs_no_word():
    assert before_a_run(PLAIN, described(*[([0, 1] * 6, [0, 1] * 6)] * 2)) == []


def test_sites_with_one_class_in_test_are_named():
    (words,) = before_a_run(PLAIN, described(([0, 1] * 6, [1] * 4), ([0, 1] * 6, [0, 1])))
    assert words.startswith("At 1 of 2 sites (site-1) all test cases are of one class (ill at site-1)")


def test_of_many_sites_with_one_class_in_test_five_are_named():
    """Of those whose numbers of classes are known; a class without a name is told by its number."""
    one, both = ([0, 1] * 6, [0] * 4), ([0, 1] * 6, [0, 1])
    for single, named in ((5, "site-5"), (7, "site-5 and 2 more")):
        found = described(*[one] * single, both)
        found["sites"]["unknown"] = {"test": 4}
        (words,) = before_a_run(PLAIN, found | {"classes": []})
        names = f"site-1, site-2, site-3, site-4, {named}"
        assert words.startswith(
            f"At {single} of {single + 1} sites ({names}) all test cases are of one class (0 at site-1)"
        )


def test_a_large_class_and_few_cases_are_said_with_what_follows():
    words = before_a_run(PLAIN, described(*[([1] * 9 + [0], [0, 1])] * 3))
    assert len(words) == 1 and words[0].startswith(
        "Class ill has more than 80% of the validation cases at 3 of 3 sites"
    )
    (few,) = before_a_run(PLAIN, described(*[([0, 1], [0, 1])] * 3))
    (own,) = before_a_run(PLAIN, described(*[([0, 1], [0, 1])] * 3), mixes=False)
    assert own.startswith("Each site's round, by its own cases, is selected on 6 validation cases in all, fewer than")
    assert few.startswith("The round is selected on 6 validation cases in all, fewer than 20: by validation loss")


def test_what_is_not_known_or_no_class_gets_no_word():
    two = {"sites": {"a": {"test": 4}, "b": {"test": 4}}}
    assert before_a_run(PLAIN, {"sites": {}}) == before_a_run(PLAIN, two) == []
    assert before_a_run(TASKS["multi-label"], described(*[([1], [1])] * 2)) == []


def test_masks_that_lack_a_class_or_have_no_background_are_said():
    sizes = {"train": 6, "validation": 2, "test": 2}
    sites = {"a": sizes | {"classes": {"0": 10, "1": 7, "2": 0}}, "b": sizes | {"classes": {"0": 6, "1": 10, "2": 0}}}
    masks = {"classes": ["background", "edema", "tumour"], "sites": sites}
    absent, full = before_a_run(TASKS["segmentation"], masks)
    assert absent.startswith("No mask at any site has the class tumour: is a name too many, or are they in another ord")
    assert full == "Masks without any background, as where they are inverted: 4 of 10 at b."
    sites["b"]["classes"] = {"0": 10, "1": 1, "2": 1}
    assert before_a_run(TASKS["segmentation"], masks) == []
    assert before_a_run(TASKS["segmentation"], masks | {"sites": {name: sizes for name in sites}}) == []


def test_one_site_is_no_federation():
    one = {"sites": {"a": {"test": 4}}}
    assert before_a_run(PLAIN, one) == [
        "There is one site, whose model is mixed with no other: what it gains is its own training's."
    ]
    assert before_a_run(PLAIN, one, mixes=False) == []


def test_a_hospital_learns_it_of_its_own_data():
    (only,) = of_a_site({"validation": [0, 1], "test": [1, 1]}, ["healthy", "ill"], "the table")
    assert only.startswith("all test cases are of class ill by the table")
    (only,) = of_a_site({"validation": [0] * 9, "test": [0, 0]}, ["healthy", "ill"], "the table")
    assert only.startswith("all test cases are of class healthy by the table")
    (large,) = of_a_site({"validation": [1] * 9, "test": [1, 1, 0]}, ["healthy", "ill"], "the table")
    assert large.startswith("more than 80% of validation and test cases are of class ill by the table")
    assert of_a_site({"validation": [1], "test": [0, 1]}, ["healthy", "ill"], "the table") == []


def untested(*patients, train=4, validation=0, **more):
    """Sites of so many patients, without a test case."""
    parts = {"train": train, "validation": validation, "test": 0}
    return {"sites": {f"site-{i}": parts | {"patients": n} for i, n in enumerate(patients, start=1)}} | more


FEWER = "each site has one patient, who trains: more patients are needed, or fewer --sites"


@pytest.mark.parametrize(
    ("found", "fields", "remedy"),
    [
        (untested(9, 9), {"fractions": (0.5, 0.5, 0)}, "--fractions 0.5,0.5,0 leaves none: give test a share"),
        (untested(9, 9), {"fractions": (0.5, 0, 0.5)}, "the parts that the data or --partition iid fix have none"),
        (untested(9, 9), {"official": True}, "the data's own test part is empty: leave --official out"),
        (untested(1, 1), {"data": "pictures"}, f"{FEWER}; --data-arg patient=... says whose a file is"),
        (untested(1, 1), {"data": "pictures.npz"}, FEWER),
        (untested(1, 1), {"data_args": {"patient": "(p.)_"}}, f"by --data-arg patient=(p.)_ {FEWER}"),
        (untested(1, 2), {}, "each site has one or two patients, who train: more patients are needed"),
        (untested(2, 3), {}, "the parts that the data or --partition iid fix have none"),
        (untested(2, 3, train=1), {}, "each site has one case, and trains on it"),
        (
            untested(9, 9, train=2, validation=1, preprocessing={"size": 64}),
            {"partition": "natural"},
            "the parts that the data fix have none",
        ),
    ],
)
def test_what_to_do_where_no_site_has_a_test_case(found, fields, remedy):
    config = make_config(algorithm="fedavg", sites=2, **{"partition": "iid"} | fields)
    with pytest.raises(UserError) as raised:
        require_test_cases(found, config)
    words = str(raised.value).removeprefix("no site has a test case, so nothing would be measured; ")
    assert words == remedy if remedy == FEWER else words.startswith(remedy)


def test_a_run_may_begin_where_something_is_tested_or_that_is_not_known():
    config, tested = make_config(algorithm="fedavg", sites=2), untested(1, 1)
    tested["sites"]["site-2"]["test"] = 1
    for found in (tested, untested(1, 1, held_out={"test": 9}), {"sites": {}}):
        require_test_cases(found, config)


def uneven_file(tmp_path, per_part=60):
    """Nine of ten images are of class 1, in every part."""
    labels = (np.arange(per_part) % 10 > 0).astype(np.uint8)[:, None]
    pixels = np.random.default_rng(0).integers(0, 100, (3, per_part, 8, 8), dtype=np.uint8)
    pixels += 100 * labels[None, :, :, None]
    names = ("train", "val", "test")
    arrays = {f"{part}_images": pixels[i] for i, part in enumerate(names)}
    np.savez(tmp_path / "uneven.npz", **arrays, **{f"{part}_labels": labels for part in names})
    return tmp_path / "uneven.npz"


def test_a_run_on_uneven_data_says_it_and_selects_by_balanced_accuracy(tmp_path, caplog):
    file = uneven_file(tmp_path)
    assert any("of class" in f.message and f.level == "warning" for f in check(file))
    plain = {"data": str(file), "partition": "iid", "sites": 2, "rounds": 2, "device": "cpu", "official": True}
    plain |= {"model_args": {}, "data_args": {"pad": 28}}
    with caplog.at_level(logging.WARNING):
        results = run_experiment(make_config(algorithm="fedavg", **plain), tmp_path / "run", env="inprocess")
    found = results["selection"]
    assert (found["measure"], found["lead"], found["cases"]) == ("balanced_accuracy", "balanced_accuracy", 60)
    assert results["verdict"]["measure"] == "balanced_accuracy"
    (note,) = [n for n in results["notes"] if "rewards whoever always says it" in n]
    assert note in [record.getMessage() for record in caplog.records]
    asked = run_experiment(
        make_config(algorithm="fedavg", **plain, select_by="accuracy"), tmp_path / "asked", env="inprocess"
    )
    best = {}
    for run, by in ((results, "balanced_accuracy"), (asked, "accuracy")):
        means = [np.mean([s["validation"][by] for s in r["sites"].values()]) for r in run["rounds"]]
        best[by] = int(np.argmax(means)) + 1
        assert run["selected_round"] == best[by]
    # What is measured is the same: only which round and what leads differ.
    values = [[s["validation"] for r in run["rounds"] for s in r["sites"].values()] for run in (results, asked)]
    assert values[0] == values[1]
