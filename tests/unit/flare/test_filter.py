"""The gate at the site: exactly what is listed leaves, as FLARE calls it."""

import numpy as np
import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from medpfl.core.channels import Channel, Entry
from medpfl.core.messages import Update
from medpfl.flare.job.recipes import PersonalizedRecipe
from medpfl.flare.transport.filter import GATE, AllowListFilter
from medpfl.flare.transport.payload import REASON, update_of, update_to_shareable
from medpfl.site.gate import Gate
from medpfl.site.policy import HOSPITAL, SitePolicy
from medpfl.site.words import UNKNOWN
from medpfl.tasks import TASKS

SHAPES = {"weight": ((2,), torch.float32)}
ENTRIES = {f"bn1/{which}": Entry((2,), (torch.float64,)) for which in ("mean", "variance")}
CHANNEL = Channel("statistics", True, ENTRIES, ("prepare", "train", "statistics"), "statistics of layers")
STATISTICS = {"statistics/bn1/mean": (2,), "statistics/bn1/variance": (2,)}
MEASURED = TASKS["classification"].schema
MEASURES = {
    "n": 37,
    "accuracy": 0.123456,
    "balanced_accuracy": 0.5,
    "auroc": None,
    "auroc_ci95": [0.111, 0.999],
    "auroc_classes": 2,
}


def context(task="train", gate=None):
    """Of a task, as the site's executor leaves it for the filter."""
    found = FLContext()
    found.set_prop(GATE, (gate or Gate(SHAPES, [CHANNEL], measures=MEASURED), task), private=True, sticky=False)
    return found


def shareable(metrics=None, seconds=0.1, **tensors):
    held = {name: torch.ones(2) if t is None else t for name, t in ({"weight": None} | tensors).items()}
    told = {"train_loss": 0.5, "validation": None} if metrics is None else metrics
    return update_to_shareable(Update("site-1", 3, held, told, seconds))


def statistics(value=1.0):
    return {name: torch.full((2,), value, dtype=torch.float64) for name in STATISTICS}


def passed(answer, task="train", gate=None, allowed=None):
    return FLModelUtils.from_shareable(AllowListFilter(allowed).process(answer, context(task, gate)))


def test_what_is_listed_passes_unchanged():
    allowed = ["weight", "statistics/"]
    model = passed(shareable(**statistics()), allowed=allowed)
    assert set(model.params) == {"weight", *STATISTICS}
    assert model.meta == {"medpfl_info": {"metrics": {"train_loss": 0.5, "validation": None}, "seconds": 0.1}}
    assert model.current_round == 3


@pytest.mark.parametrize("name", ["bn1.running_mean", "weights", "weigh", "statisticsx", "images"])
@pytest.mark.parametrize("allowed", [["weight", "statistics/"], None])
def test_any_other_key_stops_the_answer(name, allowed):
    said = f"'{name}' may not leave" if allowed else "a tensor that the run does not have may not leave"
    with pytest.raises(ValueError, match=said):
        passed(shareable(**{name: None}), allowed=allowed)


def test_a_site_that_lists_no_statistics_lets_none_leave():
    with pytest.raises(ValueError, match="statistics/bn1/mean"):
        passed(shareable(**statistics()), allowed=["weight"])


def test_with_shapes_a_whole_tensor_does_not_leave_under_the_name_of_its_slices():
    passed(shareable(), allowed={"weight": [2]})
    with pytest.raises(ValueError, match="'weight' may not leave this site"):
        passed(shareable(), allowed={"weight": [1]})


def test_shapes_as_flares_submit_command_writes_them():
    gate = Gate({"a.weight": ((2,), torch.float32), "a.0.bias": ((2,), torch.float32)}, [CHANNEL])
    allowed = {"a": {"weight": [2], "0": {"bias": None}}, "statistics/": None}
    held = {"a.weight": torch.ones(2), "a.0.bias": torch.ones(2)}
    answer = update_to_shareable(Update("site-1", 3, held | statistics(), {"train_loss": 0.5, "validation": None}, 0.1))
    assert len(passed(answer, gate=gate, allowed=allowed).params) == 4
    with pytest.raises(ValueError, match="'weight' may not leave this site"):
        passed(shareable(), gate=gate, allowed=allowed)


IMAGES = torch.zeros(3, 28, 28)
SMUGGLED = {
    "images in the place of measures": {"metrics": {"train_loss": 0.5, "validation": IMAGES.numpy()}},
    "a list in the place of measures": {"metrics": {"train_loss": 0.5, "validation": [[0.1] * 784]}},
    "images as the time": {"seconds": IMAGES.numpy()},
    "text as the time": {"seconds": "Jane Doe"},
    "endless time": {"seconds": float("nan")},
    "a very long number": {"metrics": {"train_loss": 0.5, "validation": MEASURES | {"n": 10**5000}}},
    "a share above 1": {"metrics": {"train_loss": 0.5, "validation": MEASURES | {"accuracy": 1234.5}}},
    "names of patients": {"metrics": {"train_loss": 0.5, "validation": None, "patients": ["A"]}},
    "statistics as an image": {"statistics/bn1/mean": IMAGES.double()},
    "statistics of more channels": {"statistics/bn1/mean": torch.zeros(784, dtype=torch.float64)},
    "statistics of a layer that is not there": {"statistics/bn9/mean": torch.zeros(2, dtype=torch.float64)},
    "float64 in the place of float32": {"weight": torch.zeros(2, dtype=torch.float64)},
    "another shape": {"weight": torch.zeros(2, 784)},
    "no number": {"weight": torch.full((2,), float("nan"))},
}


@pytest.mark.parametrize("what", SMUGGLED)
@pytest.mark.parametrize("allowed", [["weight", "statistics/"], None])
def test_contents_are_checked_and_not_names_alone(what, allowed):
    with pytest.raises(ValueError, match="may not leave"):
        passed(shareable(**SMUGGLED[what]), allowed=allowed)


def test_what_the_sites_own_log_says_of_a_tensor_that_is_no_number(caplog):
    with pytest.raises(ValueError, match="'weight' may not leave"):
        passed(shareable(**SMUGGLED["no number"]))
    assert "weight has values that are not finite" in caplog.text


def test_what_lies_beside_the_answer_does_not_leave_with_it():
    answer = shareable()
    answer["images"] = IMAGES.numpy()
    answer.set_header("images", IMAGES.numpy())
    answer["DXO"]["images"] = IMAGES.numpy()
    answer["DXO"]["meta"]["images"] = IMAGES.numpy()
    answer["DXO"]["meta"]["medpfl_info"]["images"] = IMAGES.numpy()
    new = AllowListFilter(None).process(answer, context())
    assert "images" not in repr(new)
    assert set(new) == {"__headers__", "DXO"}
    assert set(new["DXO"]) == {"kind", "data", "meta"}


@pytest.mark.parametrize("task", ["prepare", "follow", "validate", "test"])
def test_tensors_leave_with_the_task_that_has_them_alone(task):
    with pytest.raises(ValueError, match="may not leave"):
        passed(shareable({"samples": {"train": 1, "validation": 0, "test": 0}}), task)


def test_an_answer_without_tensors_is_checked_too():
    hello = update_to_shareable(Update("a", 0, {}, {"samples": {"train": 13, "validation": 5, "test": 7}}, 1.0))
    assert not passed(hello, "prepare", allowed=[]).params
    with pytest.raises(ValueError, match="a number that the run does not have may not leave"):
        passed(update_to_shareable(Update("a", 0, {}, {"patients": ["A"]}, 1.0)), "statistics", allowed=[])


def test_nothing_but_words_leaves_without_a_contract():
    with pytest.raises(ValueError, match="no executor that keeps a contract"):
        AllowListFilter(["weight"]).process(shareable(), FLContext())
    assert AllowListFilter([]).refuses({"weight": [2]}) == ["weight"]


def test_coarse_measures_leave_as_two_digits_and_tens():
    gate = Gate(SHAPES, [CHANNEL], measures=MEASURED, policy=HOSPITAL)
    third = torch.full((2,), 1 / 3, dtype=torch.float64)
    answer = shareable({"train_loss": 0.987654321, "validation": MEASURES}, **dict.fromkeys(STATISTICS, third))
    model = passed(answer, gate=gate)
    metrics = model.meta["medpfl_info"]["metrics"]
    rounded = {"n": 30, "accuracy": 0.12, "auroc_ci95": [0.11, 1.0]}
    assert metrics == {"train_loss": 1.0, "validation": MEASURES | rounded}
    assert float(model.params["statistics/bn1/mean"][0]) == float(np.float32(1 / 3))
    few = passed(shareable({"train_loss": 0.5, "validation": MEASURES | {"n": 19}}), gate=gate)
    assert few.meta["medpfl_info"]["metrics"]["validation"] is None


def test_no_measure_leaves_where_the_policy_says_none():
    gate = Gate(SHAPES, [CHANNEL], measures=MEASURED, policy=SitePolicy(measures="none"))
    model = passed(shareable({"train_loss": 0.9, "validation": MEASURES}), gate=gate)
    assert model.meta["medpfl_info"]["metrics"] == {"train_loss": None, "validation": None}


def test_a_job_lists_the_shapes_of_the_shared_heads():
    app = PersonalizedRecipe(algorithm="vit-heads", sites=2)._job._deploy_map["@ALL"]
    [(_, [gate])] = app.app_config.task_result_filters
    assert gate.allowed["blocks.0.attn.qkv.weight"] == [96, 96]
    assert gate.allowed["blocks.0.attn.out_proj.weight"] == [96, 32]


@pytest.mark.parametrize(
    ("algorithm", "keeps", "sends"),
    [
        ("local", "fc3.weight", None),
        ("fedavg", None, "bn1.running_mean"),
        ("fedbn", "bn1.running_mean", "fc3.weight"),
        ("fedper", "fc3.weight", "conv1.weight"),
        ("lg-fedavg", "conv1.weight", "fc3.weight"),
        ("fedap", "bn2.weight", "statistics/bn2/mean"),
    ],
)
def test_a_job_lists_what_its_algorithm_shares(algorithm, keeps, sends):
    app = PersonalizedRecipe(algorithm=algorithm, sites=2)._job._deploy_map["@ALL"]
    [(_, [gate])] = app.app_config.task_result_filters
    assert isinstance(gate, AllowListFilter)
    assert keeps not in gate.allowed
    assert sends is None or sends in gate.allowed


def test_update_survives_the_wire():
    answer = shareable({"train_loss": 0.25}, weight=torch.ones(2))
    update = update_of("site-1", FLModelUtils.from_shareable(answer))
    assert (update.round, update.metrics) == (3, {"train_loss": 0.25})
    assert update.tensors["weight"].equal(torch.ones(2))


def test_an_error_holds_its_words_and_nothing_else():
    gate = Gate(SHAPES, [CHANNEL], measures=MEASURED)
    said = gate.reason("site-1 has no training sample")
    error = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: said, "images": IMAGES})
    error["images"] = IMAGES
    new = AllowListFilter(None).process(error, context(None, gate))
    assert new == make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: said})


@pytest.mark.parametrize("reason", ["Jane Doe, born 1961", "site-1 has no training sample", IMAGES, None])
@pytest.mark.parametrize("code", [ReturnCode.EXECUTION_EXCEPTION, "Jane Doe"])
def test_a_reason_that_the_gate_has_not_said_does_not_leave(reason, code):
    new = AllowListFilter(None).process(make_reply(code, headers={REASON: reason}), context(None))
    assert new == make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: UNKNOWN})
