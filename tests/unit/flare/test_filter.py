"""The gate at the site: exactly what is listed leaves, as FLARE calls it."""

import pytest
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply

from medpfl.flare.filter import AllowListFilter
from medpfl.flare.payload import REASON, update_of, update_to_shareable
from medpfl.flare.recipes import PersonalizedRecipe
from medpfl.messages import Update


def shareable(metrics=None, **tensors):
    update = Update("site-1", 3, {name: torch.ones(2) for name in tensors}, metrics or {"train_loss": 0.5}, 0.1)
    return update_to_shareable(update)


def passed(filter_, answer):
    return from_shareable(filter_.process(answer, FLContext()))


def test_listed_keys_pass_unchanged():
    answer = passed(AllowListFilter(["weight", "statistics/"]), shareable(**{"weight": 1, "statistics/bn1/mean": 1}))
    assert set(answer.data) == {"weight", "statistics/bn1/mean"}


@pytest.mark.parametrize("name", ["bn1.running_mean", "weights", "weigh", "statisticsx", "images"])
def test_any_other_key_stops_the_answer(name):
    with pytest.raises(ValueError, match=f"'{name}' may not leave this site"):
        AllowListFilter(["weight", "statistics/"]).process(shareable(**{"weight": 1, name: 1}), FLContext())


def test_without_a_prefix_statistics_do_not_leave():
    with pytest.raises(ValueError, match="statistics/bn1/mean"):
        AllowListFilter(["weight"]).process(shareable(**{"weight": 1, "statistics/bn1/mean": 1}), FLContext())


def test_with_shapes_a_whole_tensor_does_not_leave_under_the_name_of_its_slices():
    AllowListFilter({"weight": [2]}).process(shareable(weight=1), FLContext())
    with pytest.raises(ValueError, match="'weight' may not leave this site"):
        AllowListFilter({"weight": [1]}).process(shareable(weight=1), FLContext())


def test_shapes_as_flares_submit_command_writes_them():
    gate = AllowListFilter({"a": {"weight": [2], "0": {"bias": None}}, "statistics/": None})
    gate.process(shareable(**{"a.weight": 1, "a.0.bias": 1, "statistics/x.mean": 1}), FLContext())
    with pytest.raises(ValueError, match="'a' may not leave this site"):
        gate.process(shareable(a=1), FLContext())


def test_a_job_lists_the_shapes_of_the_shared_heads():
    app = PersonalizedRecipe(algorithm="vit-heads", sites=2)._job._deploy_map["@ALL"]
    [(_, [gate])] = app.app_config.task_result_filters
    assert gate.allowed["blocks.0.attn.qkv.weight"] == [96, 96]
    assert gate.allowed["blocks.0.attn.out_proj.weight"] == [96, 32]


def test_without_a_list_tensors_of_any_name_leave_and_nothing_else_does():
    assert set(passed(AllowListFilter(), shareable(weight=1, anything=1)).data) == {"weight", "anything"}
    with pytest.raises(ValueError, match="metric patients"):
        AllowListFilter().process(shareable({"patients": ["A"]}, weight=1), FLContext())
    assert AllowListFilter([]).refuses({"weight": [2]}) == ["weight"]


def test_unlisted_metrics_do_not_leave():
    with pytest.raises(ValueError, match="metric patients"):
        AllowListFilter(["weight"]).process(shareable({"patients": ["A"]}, weight=1), FLContext())


def test_answers_without_tensors_are_checked_too():
    with pytest.raises(ValueError, match="metric patients"):
        AllowListFilter([]).process(shareable({"patients": ["A"]}), FLContext())


@pytest.mark.parametrize(
    ("algorithm", "keeps", "sends"),
    [
        ("local", "fc3.weight", None),
        ("fedavg", None, "bn1.running_mean"),
        ("fedbn", "bn1.running_mean", "fc3.weight"),
        ("fedper", "fc3.weight", "conv1.weight"),
        ("lg-fedavg", "conv1.weight", "fc3.weight"),
        ("fedap", "bn2.weight", "statistics/"),
    ],
)
def test_a_job_lists_what_its_algorithm_shares(algorithm, keeps, sends):
    app = PersonalizedRecipe(algorithm=algorithm, sites=2)._job._deploy_map["@ALL"]
    [(_, [gate])] = app.app_config.task_result_filters
    assert isinstance(gate, AllowListFilter)
    assert keeps not in gate.allowed
    assert sends is None or sends in gate.allowed


def test_update_survives_the_wire():
    update = update_of("site-1", _model(shareable({"train_loss": 0.25}, weight=1)))
    assert (update.round, update.metrics) == (3, {"train_loss": 0.25})
    assert update.tensors["weight"].equal(torch.ones(2))


def _model(answer):
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    return FLModelUtils.from_shareable(answer)


def test_an_error_holds_its_reason_and_nothing_else():
    gate = AllowListFilter(None)
    error = make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON: "site-1 has no training sample"})
    assert gate.process(error, FLContext()) is error
    hidden = shareable(images=1)
    hidden.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    with pytest.raises(ValueError, match="may not leave this site with an error"):
        gate.process(hidden, FLContext())
