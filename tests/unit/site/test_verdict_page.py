"""What a hospital finds beside its model: what taking part was worth to it, in words."""

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import config

from medpfl.bundle.description import readme
from medpfl.bundle.verdict import KEPT, lead, means, page, section, uses
from medpfl.core.statefile import read_state
from medpfl.engine.federation import Federation
from medpfl.engine.inprocess import run_in_process
from medpfl.site.store import DiskStore
from medpfl.tasks import TASKS

EVIL = "<script>alert('1')</script>&"


def card(low=0.005, high=0.04, weight=0.6, **fields):
    gain = {"difference": (low + high) / 2, "low": low, "high": high}
    measured = {"n": 57, "accuracy": 0.8, "balanced_accuracy": 0.7, "auroc": None}
    return {
        "site": "north",
        "which": "selected",
        "round": 5,
        "algorithm": "fedbn",
        "data": "chest-ct",
        "seed": 0,
        "samples": {"train": 90, "validation": 12, "test": 570},
        "test": measured,
        "verdict": {
            "alone": measured | {"accuracy": 0.78},
            "alone_round": 4,
            "used": {"candidate": "as published", "round": 5, "weight": weight},
            "gain": {"accuracy": gain, "balanced_accuracy": gain, "auroc": None},
        },
        "intended_use": "Research only.",
        **fields,
    }


def test_the_result_comes_first_in_plain_words():
    assert lead(card()) == (
        "Taking part helps this site: accuracy +2.2 points against training alone, 95 % interval [+0.5, +4.0]."
    )
    assert lead(card(-0.09, -0.01)).startswith("Taking part harms this site: accuracy -5.0 points")
    none = lead(card(-0.01, 0.03))
    assert none.startswith("No difference was found at this site: accuracy +1.0 points")
    assert none.endswith("cannot tell the two models apart; that does not say that they are equally good.")
    same = lead(card(0.0, 0.0))
    assert same.startswith("No difference was found at this site: accuracy 0.0 points")
    assert same.endswith("cannot tell the two models apart; that does not say that they are equally good.")


def test_a_site_that_joined_is_told_that_its_rival_was_trained_for_as_few_epochs():
    joined = {"joined": {"after_round": 20, "epochs": 3}}
    for gain in ((0.005, 0.04), (-0.09, -0.01), (-0.01, 0.03)):
        assert lead(card(*gain)) in lead(card(*gain, **joined))
        assert lead(card(*gain, **joined)).endswith("from the run's first model: trained for longer it may reach more.")
    assert lead(card(weight=0, **joined)) == lead(card(weight=0))


def test_what_a_test_of_one_class_cannot_tell_does_not_lead():
    single = card(test={"n": 57, "accuracy": 1.0, "balanced_accuracy": 1.0, "auroc": None, "auroc_classes": 0})
    assert lead(single).startswith("Whether taking part helps this site is not known: all its test cases are of one")
    assert "+2.2" not in lead(single)
    uneven = card(lead="balanced_accuracy")
    assert lead(uneven).startswith("Taking part helps this site: balanced accuracy +2.2 points")
    assert section(uneven).index("- balanced accuracy: ") < section(uneven).index("- accuracy: ")


@pytest.mark.parametrize("large", [True, False])
def test_a_site_with_one_large_class_in_test_looks_at_balanced_accuracy(tmp_path, large):
    # Of ten test cases nine are of class 0, or three or four of each.
    federation = Federation.of(config(sites=1, rounds=1, alone="yes", min_sites=1, data_args={"test": 10}))
    site = federation.site("site-1", DiskStore(tmp_path, durable=False))
    if large:
        site.data.labels["test"][:] = (torch.arange(10) == 4).long()
    state = run_in_process(federation.plan(), {"site-1": site}, federation.model, workers=1)
    assert not state.failures
    told = json.loads((tmp_path / "selected" / "card.json").read_text())
    assert told.get("lead") == ("balanced_accuracy" if large else None)


def test_what_is_used():
    assert uses(card()) == (
        "It uses 0.6 as published + 0.4 alone: shares of the federation's model as published (round 5) and of the "
        "model that it trained alone (round 4) in each case's prediction."
    )
    assert uses(card(weight=1.0)).startswith("It uses the federation's model as published (round 5); compared is")
    alone = card(weight=0.0)
    assert uses(alone) == "It uses the model that it trained alone (round 4)."
    assert lead(alone) == "This site uses the model that it trained alone: taking part changes nothing here."
    assert "<td>the same model</td>" in page(alone)
    rows = {row.split("</th>")[0]: row for row in page(alone).split('<th scope="row">')}
    assert ">0.0<" in rows["accuracy"]
    assert "0.0" not in rows["AUC"]  # which the model trained alone has not, too
    assert "0.01 as published + 0.99 alone" in uses(card(weight=0.001))


def test_a_site_that_uses_its_own_model_knows_that_taking_part_changes_nothing():
    """Also where its test cases could tell no two models apart: the table has "the same model" there."""
    same = "This site uses the model that it trained alone: taking part changes nothing here."
    few = card(weight=0.0)
    few["verdict"]["gain"] = dict.fromkeys(few["verdict"]["gain"])
    assert lead(few) == same and "the same model" in section(few)
    one_class = {"n": 57, "accuracy": 1.0, "balanced_accuracy": 1.0, "auroc": None, "auroc_classes": 0}
    assert lead(card(weight=0.0, test=one_class)) == same
    untested = card(weight=0.0, test=None, samples={"train": 90, "validation": 12, "test": 0})
    untested["verdict"]["gain"] = None
    assert lead(untested) == same


def test_where_nothing_is_tested_no_test_is_explained():
    untested = card(test=None, samples={"train": 90, "validation": 12, "test": 0})
    untested["verdict"] |= {"gain": None, "alone": None}
    assert lead(untested) == "Whether taking part helps this site is not known: it has no test cases."
    for said in (section(untested), page(untested)):
        assert "Test cases: 0." in said
        assert "The two models were tested" not in said and "What that means" not in said and "\n\n\n\n" not in said


def test_the_page_has_every_measure_with_its_interval():
    markup = page(card(-0.01, 0.03))
    assert '<th scope="row">accuracy</th><td class="n">0.800</td><td class="n">0.780</td>' in markup.replace(
        "0.778", "0.777"
    )
    assert '<td class="n">+1.0</td><td class="n">[−1.0, +3.0]</td><td>no difference found</td>' in markup
    assert (
        '<th scope="row">AUC</th><td class="n">–</td><td class="n">–</td>' in markup and "<td>not known</td>" in markup
    )
    assert "Test cases: 57. The choice of what is used rests on 12 validation cases." in markup
    of_patients = page(card(validation={"n": 3}, choices={"use": "blend"}))
    assert "rests on 3 validation cases. So few cannot show which model is better." in of_patients
    of_one = page(card(patients={"validation": 1, "test": 3}, choices={"use": "blend"}))
    assert "Test cases: 57 of 3 patients. " in of_one and "rests on 12 validation cases of 1 patient. So few" in of_one
    assert "Test cases: 57. Nothing was chosen: " in page(card(choices={"use": "received"}))
    assert "not that there is none" in markup
    assert "has not left the site unless" in markup and "verdict in local/medpfl.json" in markup


def masks(**fields):
    """Of masks: Dice higher by 10 points, surfaces 2 mm nearer, the volume not known."""
    gain = {
        "dice": {"difference": 0.1, "low": 0.02, "high": 0.18},
        "hd95": {"difference": 2.0, "low": -0.5, "high": 4.5},
        "volume_error": None,
    }
    said = card(weight=1.0, measures=TASKS["segmentation"].described(), **fields)
    said["test"] = {"n": 20, "dice": 0.8, "hd95": 4.0, "volume_error": 0.1}
    said["verdict"] |= {"alone": {"n": 20, "dice": 0.7, "hd95": 6.0, "volume_error": None}, "gain": gain}
    return said


def test_other_tasks_have_their_own_measures():
    assert lead(masks()) == (
        "Taking part helps this site: Dice +10.0 points against training alone, 95 % interval [+2.0, +18.0]."
    )
    markup = page(masks())
    assert '<th scope="row">Dice</th><td class="n">0.800</td><td class="n">0.700</td>' in markup
    assert '<td class="n">+10.0 points</td><td class="n">[+2.0, +18.0]</td><td>gains</td>' in markup
    assert '<th scope="row">HD95</th><td class="n">4.0 mm</td><td class="n">6.0 mm</td>' in markup
    assert '<td class="n">+2.0 mm</td><td class="n">[−0.5, +4.5]</td><td>no difference found</td>' in markup
    assert '<th scope="col" class="n">Gain</th>' in markup and "accuracy" not in markup
    assert "(Dice in percentage points, HD95 in mm, volume error in percentage points): above 0 is better" in markup
    assert "- HD95: 4.0 mm, trained alone 6.0 mm; gain +2.0 mm [-0.5, +4.5]: no difference found\n" in section(masks())
    said = masks()
    said["measures"].insert(0, said["measures"].pop(1))
    assert "HD95 +2.0 mm against training alone, + is better, 95 % interval [-0.5, +4.5]" in lead(said)
    said["verdict"]["used"]["weight"] = 0.0
    assert '<td class="n">0.0 mm</td><td class="n">–</td><td>the same model</td>' in page(said)


def test_the_page_is_self_contained_and_names_are_escaped():
    markup = page(card(site=EVIL, data=EVIL, algorithm=EVIL))
    assert "<script" not in markup and "&lt;script&gt;" in markup
    assert "default-src 'none'" in markup
    assert not [word for word in ("http:", "https:", "url(", "<img", "<link", "@import") if word in markup]


@pytest.mark.parametrize("missing", ["all", "one"])
def test_without_test_cases_nothing_is_known(missing):
    said = card()
    if missing == "all":
        said["test"], said["verdict"] = None, said["verdict"] | {"alone": None, "gain": None}
        assert lead(said).endswith("not known: it has no test cases.")
        assert "<table>" not in page(said) and "Test cases: 570." in page(said)
    else:
        said["verdict"]["gain"]["accuracy"] = None
        assert lead(said).endswith("accuracy has no interval on these test cases, which are few or all alike.")
        said["verdict"]["alone"]["accuracy"] = None
        assert lead(said).endswith("not known: accuracy could not be computed.")
    assert section(said)


def test_the_readme_has_a_section_where_the_card_has_a_verdict():
    inputs = SimpleNamespace(
        settings={"size": 28, "fit": None}, kind="picture", classes=["a", "b"], masked=False, channels=1, size=28
    )
    said = card(model={"name": "lenet5"}, versions={"medpfl": "0.1.0"}, sha256="0")
    text = readme(said, inputs)
    assert "## What taking part was worth\n\nTaking part helps this site: accuracy +2.2 points" in text
    assert "- balanced accuracy: 0.700, trained alone 0.700; gain +2.2 [+0.5, +4.0]: gains\n" in text
    assert "Test cases: 57." in text and text.endswith(f"{KEPT}\n")
    del said["verdict"]
    assert "taking part" not in readme(said, inputs) and "answered" not in readme(said, inputs)
    said["never_answered"] = {EVIL: 12, "b": 1}
    some = "Some of the site's test cases have these classes, and the model answered them for none:"
    assert f"{some}\n\n    {EVIL}\n    b\n\nWeights" in readme(said, inputs)


SLOWLY = {"select_by": "accuracy", "settings": {"lr": 0.01, "batch_size": 4}}
"""Of two rounds the first is selected."""


@pytest.mark.parametrize(
    ("fields", "there"),
    [({"alone": "yes", "use": "blend"}, True), ({"alone": "yes"} | SLOWLY, True), ({"alone": "no"}, False)],
)
def test_it_lies_beside_the_card_of_both_models(tmp_path, fields, there):
    federation = Federation.of(config("fedbn", rounds=2, **fields))
    stores = {name: DiskStore(tmp_path / name, durable=False) for name in federation.config.site_names}
    sites = {name: federation.site(name, store) for name, store in stores.items()}
    run_in_process(federation.plan(), sites, federation.model, workers=1)
    gained, rounds = [], set()
    for which, name in product(("selected", "last"), sites):
        folder = tmp_path / name / which
        found = json.loads((folder / "card.json").read_text())
        assert (folder / "verdict.html").exists() == ("verdict" in found) == there
        if not there:
            continue
        # The gain is that of the model in this folder.
        said = found["verdict"]
        for measure in ("accuracy", "balanced_accuracy", "auroc"):
            if gain := said["gain"][measure]:
                assert gain["difference"] == pytest.approx(found["test"][measure] - said["alone"][measure])
                gained.append(gain["difference"])
        assert (which == "selected") == ("brier" in said["gain"])
        if further := said["gain"].get("brier"):  # less of it is better
            assert further["difference"] == pytest.approx(said["alone"]["brier"] - found["test"]["brier"]) != 0
        rounds.add(found["round"])
        weight = said["used"]["weight"]
        assert weight < 1 or said["used"]["round"] == found["round"]
        state, _ = read_state(folder / "model.safetensors")
        assert not 0 < weight < 1 or state["blend_weight"].item() == weight
        assert lead(found).split(" points")[0].split(":")[0] in (folder / "verdict.html").read_text()
    assert any(gained) == there
    assert "select_by" not in fields or rounds == {1, 2}


def test_what_was_seen_of_the_test_stands_on_the_page():
    picture = {"which": "worst", "case": 3, "dice": 0.1234, "picture": "data:image/png;base64,iVBORw0KGgo="}
    shown = page(card(), {"pictures": [picture], "reliability": [{"n": 7, "confidence": 0.95, "accuracy": 0.5}]})
    assert 'alt="worst test case (number 3), Dice 0.123" src="data:image/png' in shown
    assert '<td class="n">7</td><td class="n">0.95</td><td class="n">0.50</td>' in shown
    assert "img" not in page(card()).replace("img-src", "")


def test_where_means_of_cases_are_judged_it_is_said_what_few_do_to_their_intervals():
    shares = means(card())
    measures = TASKS["segmentation"].described()
    gains = {m["name"]: {"difference": 0.1, "low": 0.0, "high": 0.2} for m in measures}
    of_masks = card(measures=measures, task="segmentation")
    of_masks["verdict"] = of_masks["verdict"] | {"gain": gains}
    assert "misses the true difference in about one case of 20" in shares and "of Dice" not in shares
    assert "Of a mean over few patients (of Dice, say, over fewer than 20)" in means(of_masks)


def test_a_difference_that_rounds_to_nothing_is_no_harm():
    """Of two patients that differ by as little the interval is narrow enough to leave 0 out."""
    none = lead(card(-0.00012, -0.00008))
    assert none == (
        "No difference was found at this site: accuracy 0.0 points against training alone, 95 % interval [0.0, 0.0]."
    )


def test_a_class_that_is_answered_for_none_of_its_test_cases_is_named():
    markup = page(card(never_answered={"tuberculosis": 12, EVIL: 1}))
    said = "On the 57 test cases it never answered &#39;tuberculosis&#39; (12 of them), "
    assert said in markup and "(1 of them)." in markup and "<script" not in markup
    assert "never answered" not in page(card())
    assert "On the 1 test case it never answered" in page(card(never_answered={"a": 1}, test={"n": 1}))


@pytest.mark.parametrize("useless", [True, False])
def test_the_card_has_such_classes_and_no_answer_has_them(tmp_path, useless):
    federation = Federation.of(config(sites=1, rounds=1, alone="yes", min_sites=1, data_args={"test": 10}))
    site = federation.site("site-1", DiskStore(tmp_path, durable=False))
    predict = federation.config.learned.predict
    labels = site.data.labels["test"]
    said = 0 if useless else None

    def predicted(model, data, part):
        probabilities, truth = predict(model, data, part)
        wanted = np.full(len(truth), said) if useless else truth
        return np.eye(probabilities.shape[1])[wanted], truth

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(federation.config.learned), "predict", lambda self, *given: predicted(*given))
        state = run_in_process(federation.plan(), {"site-1": site}, federation.model, workers=1)
    assert not state.failures and "never_answered" not in json.dumps(state.final)
    told = json.loads((tmp_path / "selected" / "card.json").read_text())
    numbers = {str(c): int((labels == c).sum()) for c in labels.unique().tolist() if c}
    assert told.get("never_answered") == (numbers if useless else None)
