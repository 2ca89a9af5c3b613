"""Advice before training: features by hand, which regimes are near, and what is said of them."""

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from medpfl.core.errors import UserError
from medpfl.report.advice.answer import EVEN, SKEWED, answers
from medpfl.report.advice.numbers import (
    Features,
    SiteNumbers,
    _mean_deviation,
    features_of,
    label_skew,
    require_classes,
    unevenness,
)
from medpfl.report.advice.regimes import Regime, Regimes, Row, distance, parts_of_distance, shipped
from medpfl.report.advice.words import LIMITS, advice_to_json, answer_in_words, left_open, regime_in_words

COUNTS = st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3).filter(any), min_size=2, max_size=6)


def named(counts):
    return [{str(c): n for c, n in enumerate(site)} for site in counts]


def features(**changed):
    usual = {"sites": 20, "train": 73, "validation": 10, "skew": 0.8, "unevenness": 0.0, "shift": False}
    return Features(**usual | changed)


def row(title="FedBlend", gain=5.0, *, seeds=3, sites=60, worse_off=0.05, worst=-2.0, federated=True, chooses=False):
    command = "fedblend" if title == "FedBlend" else None
    fields = {"title": title, "command": command, "federated": federated, "seeds": seeds, "sites": sites, "gain": gain}
    fields |= {"each_round": "", "chooses": chooses or title == "FedBlend"}
    return Row(**fields, sd_seeds=None, sd_sites=1, worse_off=worse_off, worst=worst)


def regime(name, rows=(), **changed):
    rows = rows or (row(), row("FedAvg", 1.0, worst=-9.0), row("two alone", 1.5, federated=False))
    fixed = {"description": f"what {name} is", "network": "lenet5", "seeds": (0, 1, 2), "alone": 0.7, "rows": rows}
    measure = "accuracy" if changed.get("skew", 0) is not None else "dice"
    return Regime(name=name, measure=measure, features=features(**changed), **fixed)


def test_skew_by_hand():
    """Nothing in common is 1. Of two classes and two sites of 2, each of one class, chance gives 1/3 and is no more."""
    assert label_skew([{"a": 50}, {"b": 70}, {"c": 5}]) == pytest.approx(1)
    assert label_skew([{"a": 30, "b": 10}, {"a": 60, "b": 20}]) == 0
    # Site (3, 1), the other (1, 3): d = 1/2. Dealt at random X, of 4 of 8 drawn 4 marked, has E|X - 2| = 2 (16 + 1)/70
    # times 1 + 2, over 70 ways: (2 * 2 * 1 + 1 * 2 * 16) / 70 = 36/70; e = 36/70 / 2.
    e = 36 / 70 / 2
    assert label_skew([{"a": 3, "b": 1}, {"a": 1, "b": 3}]) == pytest.approx((0.5 - e) / (1 - e))


def test_the_mean_deviation_is_that_of_all_deals():
    for marked in range(7):
        for drawn in range(1, 6):
            deals = [sum(deal[:drawn]) for deal in permutations([1] * marked + [0] * (6 - marked))]
            mean = drawn * marked / 6
            by_hand = sum(abs(x - mean) for x in deals) / len(deals)
            assert _mean_deviation(6, marked, drawn) == pytest.approx(by_hand)


@settings(max_examples=150)
@given(COUNTS)
def test_skew_is_a_share_and_depends_on_neither_order_nor_names(counts):
    skew = label_skew(named(counts))
    assert 0 <= skew <= 1
    assert label_skew(named(counts[::-1])) == pytest.approx(skew)
    assert label_skew([{f"class {c}": n for c, n in site.items() if n} for site in named(counts)]) == pytest.approx(
        skew
    )


@settings(max_examples=60)
@given(COUNTS, st.integers(2, 50))
def test_the_same_shares_of_more_samples_are_no_less_skewed(counts, times):
    more = [[times * n for n in site] for site in counts]
    assert label_skew(named(more)) >= label_skew(named(counts)) - 1e-9


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 80), st.integers(2, 9), st.randoms(use_true_random=False))
def test_samples_dealt_at_random_are_hardly_skewed_however_few(size, classes, random):
    assume(size * 20 >= 100)
    labels = [str(random.randrange(classes)) for _ in range(20 * size)]
    sites = [labels[k * size : (k + 1) * size] for k in range(20)]
    assert label_skew([{c: site.count(c) for c in set(site)} for site in sites]) < 0.25


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=30))
def test_unevenness(sizes):
    assert 0 <= unevenness(sizes) < 1
    assert unevenness([sizes[0]] * len(sizes)) == pytest.approx(0)
    assert unevenness([69, 331]) == pytest.approx(131 / 400)


def test_features_of_sites():
    sites = [
        SiteNumbers("a", 10, 2, 8, {"x": 20}),
        SiteNumbers("b", 30, 4, 8, {"y": 42}),
        SiteNumbers("c", 80, 9, 8),
    ]
    assert features_of(sites) == Features(
        sites=3, train=30, validation=4, skew=label_skew([{"x": 20}, {"y": 42}]), unevenness=1 / 3, shift=None
    )
    assert features_of([site._replace(classes=None) for site in sites], True).skew is None
    assert features_of([sites[0], *(s._replace(classes={"y": 0}) for s in sites[1:])]).skew is None


def test_distances_by_hand():
    one = features()
    assert distance(one, one) == 0
    assert distance(one, features(skew=0.5)) == pytest.approx(2)
    assert distance(one, features(sites=83)) == pytest.approx(1)
    assert distance(one, features(skew=0.5, validation=109)) == pytest.approx(5**0.5)
    unknown = features(shift=None, skew=None)
    assert parts_of_distance(unknown, features(shift=True, skew=0.1)) == dict.fromkeys(parts_of_distance(one, one), 0.0)
    assert distance(one, features(shift=True)) == 1


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            features(),
            ["20 sites with few training samples each (median 73)", "very different classes (label skew 0.80)"],
        ),
        (features(train=2000, skew=0.02), ["many training samples", "much the same classes", "about equal sizes (0 %"]),
        (features(skew=0.5, unevenness=0.4), ["different classes", "very uneven sizes (40 %"]),
        (features(shift=True, train=427), ["some hundred training", "images that look different from site to site."]),
        (features(train=1234567.5), ["many training samples each (median 1234567.5)"]),
        (features(skew=None, shift=None), ["(median 73) and about equal sizes"]),
    ],
)
def test_a_regime_in_words(of, said):
    words = regime_in_words(of)
    assert all(part in words for part in said), words


def test_what_numbers_leave_open():
    sites = [SiteNumbers("a", 10, 2, 8, {"x": 20}), SiteNumbers("b", 30, 0, 8)]
    said = " ".join(left_open(features_of(sites), sites, "accuracy"))
    assert "Whether the sites have the same classes is not known" in said
    assert "--shift or --no-shift" in said
    assert "No validation samples: b" in said
    third = [*sites, SiteNumbers("c", 10, 4, 8, {"x": 1, "y": 9})]
    assert "(b not): the label skew is of the others" in " ".join(left_open(features_of(third), third, "accuracy"))
    told = [s._replace(validation=99, classes={"x": 3, "y": 1}) for s in sites]
    assert left_open(features_of(told, False), told, "accuracy") == []
    none = [s._replace(validation=0) for s in sites]
    assert "below are the methods that choose nothing" in " ".join(left_open(features_of(none), none, "accuracy"))


def test_one_class_in_all_is_nothing_to_learn():
    with pytest.raises(UserError, match="all samples are of class 'x', so that there is nothing to tell apart"):
        require_classes([SiteNumbers(name, 3, 0, 0, {"x": 3, "y": 0}) for name in "ab"])
    require_classes([SiteNumbers("a", 3, 0, 0, {"x": 3}), SiteNumbers("b", 3, 0, 0)])  # the other may have more


def test_without_validation_nothing_that_chooses_is_advised():
    rows = [
        row(),
        row("FedBN, fine-tuned, best", 9.0, chooses=True),
        row("two alone, blended", 3, federated=False, chooses=True),
        row("FedBN", 2.0),
    ]
    (answer,) = answers(features(validation=0), [regime("one", rows)])
    assert [found.title for found in answer.rows] == ["FedBN"]
    assert len(answers(features(validation=1), [regime("one", rows)])[0].rows) == 4
    for regime_ in shipped().regimes:
        assert any(of.federated and not of.chooses for of in regime_.rows)
        assert {of.title: of.chooses for of in regime_.rows}["FedBlend"]


def test_regimes_that_are_alike_agree_or_not():
    near = [regime("one"), regime("two", skew=0.75), regime("far", train=9000, validation=2000)]
    [answer] = answers(features(), near)
    assert (answer.nearness, answer.sure, answer.take_part) == ("alike", "somewhat", "paid")
    assert [r.name for r in answer.regimes] == ["one", "two"]
    assert answer.by_mean.title == answer.by_worst.title == "FedBlend"
    assert (answer.by_mean.worse_off, answer.by_mean.sites) == (6, 120)
    said = " ".join(answer_in_words(answer))
    for part in (
        "2 regimes of our benchmarks are like it: one, two.",
        "Best on average: FedBlend (medpfl run fedblend): +5.0 points of accuracy over training alone; ",
        "6 of 120 sites (of all seeds) were worse off by more than a point",
        "the worst by 2.0.",
        "best for the worst site.",
        "Not for all: 6 of 120",
        "How sure: somewhat. It rests on 2 regimes of 3 seeds each, 120 sites in all. They agree",
    ):
        assert part in said, said
    other = regime("two", (row(gain=-4.0), row("FedAvg", -2.0)), skew=0.75)
    [answer] = answers(features(), [near[0], other])
    assert answer.sure == "little" and answer.agreeing == 1
    assert "They do not agree on whether it pays: FedBlend is the best" in " ".join(answer_in_words(answer))


def test_no_difference_has_no_sign_and_one_site_is_one():
    [answer] = answers(features(), [regime("one", (row(gain=-0.04, sites=20, worse_off=0.05),))])
    said = " ".join(answer_in_words(answer))
    assert "(medpfl run fedblend): 0.0 points of accuracy" in said
    assert "1 of 20 sites (of all seeds) was worse off by more than a point" in said


def test_the_worst_site_counts_up_to_a_point():
    rows = (row("a", 9.0, worst=-30), row("b", 3.0, worst=-0.4), row("c", 2.0, worst=0.3))
    [answer] = answers(features(), [regime("one", rows)])
    assert (answer.by_mean.title, answer.by_worst.title) == ("a", "b")
    words = " ".join(answer_in_words(answer))
    assert "Best for the worst site (of those within a point of the best there, the highest mean): b" in words
    [answer] = answers(features(), [regime("one", (row("a", 9.0, worst=-0.4), row("c", 2.0, worst=0.3)))])
    words = " ".join(answer_in_words(answer))
    assert "For the worst site too: it is within a point of the best there (c), and has the highest mean" in words
    assert "best for the worst site." not in words
    [answer] = answers(features(), [regime("one", rows[2:])])
    assert "It is also the best for the worst site." in answer_in_words(answer)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ((3, 3), "2 regimes of 3 seeds each, 120"),
        ((1, 2), "2 regimes of 1 and 2 seeds, 120 sites in all, so"),
        ((3, 1, 2), "3 regimes of 1 to 3 seeds, 180"),
    ],
)
def test_seeds_are_told_as_they_are(seeds, said):
    near = [regime(f"r{k}", (row(seeds=n),), skew=0.8 - k / 100) for k, n in enumerate(seeds)]
    [answer] = answers(features(), near)
    assert f"It rests on {said}" in answer_in_words(answer)[-1]


def test_limits_hold_for_the_benchmarks_own_images_too():
    assert "other images" not in LIMITS.partition(":")[0]
    assert "and for the rounds that their descriptions name: for other images, networks, schedules or sites" in LIMITS


def test_every_shipped_regime_says_its_schedule_as_the_benchmarks_have_it(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    from regimes import regimes
    from regimes_masks import REGIMES

    for regime in shipped().regimes:
        fields = (regimes() | REGIMES)[regime.name]
        rounds, epochs = fields["rounds"], fields.get("local_epochs", 1)
        settings = {"optimizer": "sgd", "lr": 0.01} | fields.get("settings", {})
        said = f"; {rounds} rounds of {epochs} epoch{'s' * (epochs > 1)}, {settings['optimizer']}, learning rate "
        assert regime.description.replace("SGD", "sgd").replace("Adam", "adam").endswith(f"{said}{settings['lr']:g}")


@pytest.mark.parametrize(
    ("gain", "alone", "taken", "said"),
    [
        (-3.0, 0.1, "cost", "cost accuracy, with every method"),
        (0.4, 0.1, "no difference", "less than a point of difference"),
        (4.0, 2.9, "paid", "Much of that needs no other site: two alone, gained +2.9"),
        (
            4.0,
            3.0,
            "no more than alone",
            "without any other, but for a point: two alone, gained +3.0 points",
        ),
        (2.0, 5.0, "less than alone", "and the best method +2.0. By these benchmarks sites do better by themselves"),
        (4.0, 0.5, "paid", "paid on average"),
    ],
)
def test_whether_to_take_part(gain, alone, taken, said):
    rows = (row(gain=gain, seeds=1), row("two alone", alone, federated=False))
    [answer] = answers(features(), [regime("one", rows)])
    words = " ".join(answer_in_words(answer))
    assert answer.take_part == taken and said in words
    assert ("needs no other site" in words) == (alone == 2.9)
    assert (
        answer.sure == "little"
        and "1 regime of 1 seed, 60 sites in all, so that differences of a point or two may be chance" in words
    )


def test_the_best_for_the_worst_site_is_of_those_that_are_judged():
    """What trains more in a round is not, however little its worst site loses."""
    longer = row("longer", 5.0, worst=-0.5).model_copy(update={"each_round": "10 epochs of the head"})
    rows = (row("mild", 4.0, worst=-6.0), longer)
    [answer] = answers(features(), [regime("one", rows)])
    words = " ".join(answer_in_words(answer))
    assert "It is also the best for the worst site." in words and "within a point of the best there" not in words


def test_none_is_like_yours():
    [far] = answers(features(sites=3, train=200_000), [regime("one"), regime("two")])
    assert far.nearness == "far" and far.sure == "no"
    assert answer_in_words(far)[0].startswith(
        "None of our regimes is like yours: the nearest is one, at a distance of "
    )
    assert "How sure: not at all." in answer_in_words(far)[-1]
    [near] = answers(features(skew=0.6), [regime("one")])
    assert near.nearness == "near" and near.sure == "little"
    assert answer_in_words(near)[0].startswith("None of our regimes is quite like yours")


def test_without_class_numbers_it_is_answered_for_both():
    even, skewed = answers(features(skew=None), [regime("one"), regime("even", skew=0.0)])
    assert even.supposed and skewed.supposed
    assert (even.features.skew, skewed.features.skew) == (EVEN, SKEWED)
    assert [even.regimes[0].name, skewed.regimes[0].name] == ["even", "one"]


def test_methods_are_compared_where_all_regimes_have_them():
    one, two = regime("one", (row("a"), row("b", 9.0))), regime("two", (row("a", 1.0),), skew=0.75)
    [answer] = answers(features(), [one, two])
    assert [r.title for r in answer.rows] == ["a"] and answer.partial == ("b",)
    [answer] = answers(features(), [one, regime("two", (row("c"),), skew=0.75)])
    assert [r.name for r in answer.regimes] == ["one"]


def test_what_is_shipped_is_what_is_read():
    known = shipped()
    assert Regimes.model_validate(known.model_dump(by_alias=True)) == known
    for one in known.regimes:
        assert one.features.sites >= 2 and one.seeds
        assert {r.worse_off == 0 or r.worst < -1 for r in one.rows} == {True}
        assert all(r.worst <= r.gain and r.seeds <= len(one.seeds) for r in one.rows)
    assert (
        known.of("accuracy") and known.of("dice") and len(known.of("accuracy") + known.of("dice")) == len(known.regimes)
    )
    [answer] = answers(known.regimes[0].features, known.of(known.regimes[0].measure))
    assert answer.near[0][0] == 0 and answer.nearness == "alike"
    sites = [SiteNumbers("a", 10, 2, 8, {"x": 20}), SiteNumbers("b", 30, 0, 8)]
    content = advice_to_json(sites, features_of(sites), answers(features_of(sites), known.of("accuracy")), [], known)
    assert (
        set(content["benchmarks"]["regimes"]) == {r.name for r in known.of("accuracy")} and len(content["answers"]) == 2
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 1},
        {"regimes": []},
        {"more": 1},
    ],
)
def test_another_schema_is_refused(changed):
    with pytest.raises(ValidationError):
        Regimes.model_validate(shipped().model_dump(by_alias=True) | changed)


def test_a_regime_says_its_features_and_has_methods():
    for rows in ((row(), row()), (row(federated=False),)):
        with pytest.raises(ValidationError):
            regime("one", rows)
    known = regime("one").model_dump()
    for changed in ({"measure": "dice"}, {"features": known["features"] | {"skew": None}}):
        with pytest.raises(ValidationError, match="every feature is known"):
            Regime.model_validate(known | changed)


def test_of_masks_one_answer_without_label_skew():
    [answer] = answers(features(skew=None), [regime("hospitals", skew=None)])
    assert answer.measure == "dice" and not answer.supposed
    assert "points of Dice over training alone" in " ".join(answer_in_words(answer))
    sites = [SiteNumbers("a", 73, 10, 40), SiteNumbers("b", 73, 10, 40)]
    assert not any("classes" in line for line in left_open(features(skew=None), sites, "dice"))
    assert any("classes" in line for line in left_open(features(skew=None), sites, "accuracy"))


def test_what_trains_more_in_each_round_is_told_and_not_judged():
    """Its epochs may be what is gained, and nobody trained alone for as many."""
    longer = row("FedRep", 9.0, worst=-1.5).model_copy(update={"each_round": "10 epochs of the personal part"})
    (answer,) = answers(features(), [regime("a", (longer, row(gain=5.0), row("two alone", 1.5, federated=False)))])
    assert (answer.by_mean.title, answer.by_worst.title, answer.take_part) == ("FedBlend", "FedBlend", "paid")
    said = " ".join(answer_in_words(answer))
    assert "Taking part there paid on average, with FedBlend." in said
    assert "FedRep, gained +9.0 points and is not judged here: in each round it trains more" in said
    (alone,) = answers(features(), [regime("a", (longer,))])
    assert alone.by_mean.title == "FedRep"
    (below,) = answers(features(), [regime("a", (longer.model_copy(update={"gain": 1.0}), row(gain=5.0)))])
    assert "not judged" not in " ".join(answer_in_words(below))
