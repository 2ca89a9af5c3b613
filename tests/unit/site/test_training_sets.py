"""Two runs whose patients differ by few would tell of these few."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_guard import KEY, Guarded

from medpfl.config.run import make_config
from medpfl.core.messages import Failure
from medpfl.data.sites import open_source
from medpfl.data.source import training_patients
from medpfl.site.contract import Contract
from medpfl.site.policy import SitePolicy
from medpfl.site.seal import Seal, SealBroken
from medpfl.site.training_sets import FILE, TrainingSets
from medpfl.site.words import listed


def sets(folder, patients, key=KEY):
    return TrainingSets(folder, Seal(key, "training sets"), lambda: patients)


def people(*numbers):
    return [f"patient {number}" for number in numbers]


def by_few_of(of, data):
    return of.tell_of_few(data, 3, keep=True).startswith("the training patients are an earlier run's but for few")


def test_the_same_patients_or_many_others(tmp_path):
    def by_few(*numbers, data="ct"):
        return by_few_of(sets(tmp_path, people(*numbers)), data)

    assert not by_few(*range(10))
    assert not by_few(*range(10))  # another run on the same
    assert by_few(*range(11))
    assert by_few(*range(9))
    assert by_few(*range(1, 11))  # one came, one went
    assert not by_few(*range(13))
    assert by_few(*range(12))  # one fewer than the last
    assert by_few(*range(11), data="CT")
    assert not by_few(*range(11), data="mr")
    assert sets(tmp_path, None).tell_of_few("ct", 3, keep=True) == ""


def read(folder, numbers, images, data="ct"):
    """What is said of training on such patients, of whom such images are read."""
    found = frozenset(f"image {n}".encode() for n in images)
    return TrainingSets(folder, Seal(KEY, "training sets"), lambda: people(*numbers), lambda: found).tell_of_few(
        data, 3, keep=True
    )


def test_the_same_patients_are_not_read_otherwise_in_few_images(tmp_path):
    """By another fit, of which square pictures see nothing; or under another name of the same data."""
    ten = range(10)
    words = (
        "an earlier run trained on the same images and labels but for few patients', so that both updates would tell "
        "of these; the same ones, or of 3 patients others (least_patients)"
    )
    assert read(tmp_path, ten, ten) == read(tmp_path, ten, ten) == ""
    assert read(tmp_path, ten, [*range(1, 10), 77]) == words == read(tmp_path, range(20, 31), range(11), data="alias")
    assert read(tmp_path, range(20, 29), range(9), data="alias") == words  # nine of the ten
    assert listed(f"policy: {words}", set()) == f"policy: {words}"
    assert read(tmp_path, ten, range(100, 110)) == ""  # all of them: at another size
    assert read(tmp_path, range(20, 30), range(200, 210), data="alias") == ""
    assert read(tmp_path, ten, [*range(100, 109), 7]) == words


def test_a_patient_who_is_read_otherwise_counts_once(tmp_path):
    """Who is, has another hash in each of both readings: the difference of two of them would be that of four."""
    ten = range(10)
    assert read(tmp_path, ten, ten) == ""
    for few in (1, 2):
        assert "but for few patients'" in read(tmp_path, ten, [*range(few, 10), *range(100, 100 + few)])
    assert read(tmp_path, ten, [*range(3, 10), 100, 101, 102]) == ""


def test_another_division_of_data_that_are_read_alike_is_of_all_patients_that_differ(tmp_path):
    """Two went and two came; but where the data are read in another way nobody knows whether those are others."""

    def run(numbers, images, how):
        found = frozenset(f"image {n}".encode() for n in images)
        of = TrainingSets(tmp_path, Seal(KEY, "training sets"), lambda: people(*numbers), lambda: found)
        return of.tell_of_few("ct", 3, keep=True, how=how)

    alike = {"size": 32}
    assert run(range(10), range(10), alike) == ""
    assert run(range(2, 12), range(2, 12), alike) == ""
    assert "but for few patients'" in run(range(2, 12), range(2, 12), {"size": 64, "patient": "^(.)"})


def test_many_readings_of_the_same_patients_would_be_solved_for_each(tmp_path):
    """Of 12 patients and 3 at least: those that differ in some of them; at another size of all there may be any."""
    words = (
        "the images have been read in {} ways that differ for some patients alone, and of one more, updates together "
        "would tell of few; read as in an earlier run (least_patients)"
    )
    rng, found = np.random.default_rng(0), []
    for number in range(12):
        otherwise = rng.permutation(12) < 5
        found.append(read(tmp_path, range(12), [n + 50 * (number + 1) * bool(o) for n, o in enumerate(otherwise)]))
    many = [said for said in found if "ways that differ" in said]
    assert many and found.count("") == 12 // 3
    assert many[-1] == words.format(found.count(""))
    assert listed(f"policy: {many[-1]}", set()) == f"policy: {many[-1]}"
    for size in range(1, 9):
        assert read(tmp_path, range(12), range(1000 * size, 1000 * size + 12)) == ""


def test_how_many_readings_there_may_be_rests_on_the_largest_of_them(tmp_path):
    """Of 12 patients and 3 at least four, the fourth of them of half of the patients."""
    assert read(tmp_path, range(12), range(12)) == ""
    assert read(tmp_path, range(12), [*range(100, 105), *range(5, 12)]) == ""
    assert read(tmp_path, range(12), [*range(5), *range(105, 109), *range(9, 12)]) == ""
    assert read(tmp_path, range(6), range(6)) == ""


def test_a_site_lets_its_data_grow_by_few_where_it_says_so(tmp_path):
    def by_few(*numbers, data="ct"):
        return by_few_of(sets(tmp_path, people(*numbers)), data)

    assert sets(tmp_path / "new", None).forget("ct") == 0
    assert not (tmp_path / "new").exists()
    by_few(*range(10)), by_few(*range(20)), by_few(*range(5), data="mr")
    kept = sets(tmp_path, None)
    assert kept.sizes() == {"ct": [10, 20], "mr": [5]}
    assert by_few(*range(21))
    assert kept.forget("CT") == 2
    assert kept.sizes() == {"mr": [5]}
    assert not by_few(*range(21))
    assert by_few(*range(6), data="mr")


@given(st.lists(st.sets(st.integers(0, 12), min_size=1), min_size=2, max_size=8), st.integers(1, 6))
def test_no_two_runs_that_went_on_differ_by_few(tmp_path_factory, drawn, least):
    folder = tmp_path_factory.mktemp("site")
    taken = [chosen for chosen in drawn if not sets(folder, people(*chosen)).tell_of_few("ct", least, keep=True)]
    assert taken[0] == drawn[0]
    for k, one in enumerate(taken):
        assert all(one == other or len(one ^ other) >= least for other in taken[:k])
        different = {frozenset(each) for each in taken[: k + 1]}
        assert len(different) <= max(2, len(frozenset().union(*different)) // least)


def test_many_sets_would_be_solved_for_their_patients(tmp_path):
    """Of 80 patients and 20 at least, three sets; the same ones again in any number of runs."""
    rng = np.random.default_rng(0)
    drawn = [sorted(rng.choice(80, 40, replace=False).tolist()) for _ in range(4)]
    found = [sets(tmp_path, people(*chosen)).tell_of_few("ct", 20, keep=True) for chosen in (*drawn, *drawn[:3])]
    words = (
        "the data have served 3 different sets of training patients, and of one more, updates together would tell of "
        "few; the same ones as an earlier run's (least_patients)"
    )
    assert found == ["", "", "", words, "", "", ""]
    assert listed(f"policy: {words}", set()) == f"policy: {words}"
    assert sets(tmp_path, people(*range(100, 150))).tell_of_few("ct", 20, keep=True) == ""  # of 50 others more


def test_the_record_names_nobody_and_is_the_sites_own(tmp_path):
    sets(tmp_path, people(1, 2, 3)).tell_of_few("ct", 2, keep=True)
    content = (tmp_path / FILE).read_text()
    assert not any(person in content for person in people(1, 2, 3))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    (tmp_path / FILE).write_text(content.replace('"ct"', '"mr"'))
    with pytest.raises(SealBroken, match=r"training-sets\.json is not as this site wrote it"):
        sets(tmp_path, people(1, 2)).tell_of_few("ct", 2, keep=True)


def test_a_site_says_why_and_nothing_leaves(tmp_path):
    policy = SitePolicy(least_patients=5)
    for name, numbers, taken in (("a", range(20), True), ("b", range(21), False), ("c", range(30), True)):
        site = Guarded(folder=tmp_path / name, key=KEY, policy=policy)
        site.site.sets = sets(tmp_path, people(*numbers))
        if taken:
            site.hello().train(1)
        else:
            assert site.refused("prepare") == (
                "policy: the training patients are an earlier run's but for few, so that both updates would tell of "
                "these; the same ones, or 5 others (least_patients)"
            )


def test_a_refused_run_binds_nobody(tmp_path):
    """Else whoever sends a hello that is refused decides what the site may train on ever after."""
    policy = SitePolicy(least_patients=5)
    refused = Guarded(folder=tmp_path / "a", key=KEY, policy=policy)
    refused.site.sets = sets(tmp_path, people(*range(21)))
    refused.ask_hello(split="another")
    honest = Guarded(folder=tmp_path / "b", key=KEY, policy=policy)
    honest.site.sets = sets(tmp_path, people(*range(20)))
    honest.hello().train(1)
    assert refused.refused("prepare").startswith("policy: the training patients are an earlier run's but for few")


def test_of_two_that_come_at_once_one_is_answered(tmp_path):
    """Nothing was noted of either when they were let in."""
    policy = SitePolicy(least_patients=5)
    slow, quick = (Guarded(folder=tmp_path / name, key=KEY, policy=policy) for name in "ab")
    for site, number in ((slow, 21), (quick, 20)):
        site.site.sets = sets(tmp_path, people(*range(number)))
        site.hello()
    handle = slow.site.party.handle

    def meanwhile(message, model):
        quick.train(1)
        return handle(message, model)

    slow.site.party.handle = meanwhile
    assert slow.refused("train", 1).startswith("policy: the training patients are an earlier run's but for few")
    quick.train(2)


def test_a_hello_binds_nobody_before_anything_is_trained(tmp_path):
    """Else two greetings, with fractions that nobody else uses, would keep all honest runs out."""
    policy = SitePolicy(least_patients=5)
    for name, number in (("a", 21), ("b", 20)):
        site = Guarded(folder=tmp_path / name, key=KEY, policy=policy)
        site.site.sets = sets(tmp_path, people(*range(number)))
        site.hello()
    site.train(1)


@pytest.mark.parametrize("least", [1, 2])
def test_one_patient_more_is_too_few_where_an_update_rests_on_two(tmp_path, least):
    replies = []
    for name, number in (("a", 20), ("b", 21)):
        site = Guarded(folder=tmp_path / name, key=KEY, policy=SitePolicy(least_patients=least))
        site.site.sets = sets(tmp_path, people(*range(number)))
        replies.append(site.ask("prepare"))
        if name == "a":
            site.train(1)
    assert [isinstance(reply, Failure) for reply in replies] == [False, least == 2]


def test_a_run_that_sends_nothing_of_its_training_binds_nobody(tmp_path):
    policy = SitePolicy(least_patients=5)
    for name, algorithm, number in (("a", "local", 21), ("b", "fedbn", 20)):
        site = Guarded(algorithm, folder=tmp_path / name, key=KEY, policy=policy)
        site.site.sets = sets(tmp_path, people(*range(number)))
        site.hello()


@pytest.mark.parametrize("fields", [{"holdout": 0.1}, {"data_args": {"train_counts": {"site-1": [3, 3]}}}])
def test_single_images_of_a_patient_are_not_left_out(tmp_path, fields):
    """Of two such jobs the patients are the same, and the difference of their updates is an image."""
    site = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(least_patients=5))
    site.site.sets = sets(tmp_path, people(*range(20)))
    config = site.site.contract.config.model_copy(update=fields)
    site.site.contract = Contract(config)
    assert site.refused("prepare").startswith("policy: single images of a patient are not left out here")


def test_a_damaged_record_lets_nothing_out(tmp_path):
    (tmp_path / FILE).write_text("{")
    site = Guarded(folder=tmp_path / "a", key=KEY, policy=SitePolicy(least_patients=5))
    site.site.sets = sets(tmp_path, people(1))
    assert "ledger is not as the site wrote it" in site.refused("prepare")


def test_a_sources_patients_are_those_that_it_trains_on(tmp_path):
    """Of one seed a larger share holds a smaller one: what makes the difference readable."""
    file = tmp_path / "own.npz"
    images, labels = np.zeros((100, 28, 28), np.uint8), np.arange(100, dtype=np.uint8)[:, None] % 2
    np.savez(
        file,
        **{
            f"{part}_{name}": a
            for part in ("train", "val", "test")
            for name, a in (("images", images), ("labels", labels))
        },
    )
    found = []
    for share in (0.5, 0.51):
        config = make_config(
            algorithm="fedavg", sites=2, names=("a", "b"), data="own", partition="natural", device="cpu",
            data_args={"classes": "x,y", "size": 28, "channels": "grey"}, fractions=(share, 0.1, 0.3),
        )  # fmt: skip
        source = open_source(config, file)
        found.append(training_patients(source, "a"))
        assert len(found[-1]) == source.site("a", torch.device("cpu")).samples("train")
    assert all(small < large for small, large in pairwise(found))


def test_a_division_of_a_sites_own_file_tells_whose_rows_it_takes():
    source = open_source(make_config(algorithm="fedavg", sites=2, data="organamnist-sample", partition="iid"))
    first, second = (training_patients(source, site) for site in ("site-1", "site-2"))
    assert len(first) == source.site("site-1", torch.device("cpu")).samples("train")
    assert not first & second


def test_a_function_of_ones_own_says_nobody():
    assert (
        training_patients(open_source(make_config(algorithm="fedavg", data="tiny:site_data", device="cpu")), "site-1")
        is None
    )
