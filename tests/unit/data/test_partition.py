import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from medpfl.config.run import make_config
from medpfl.core.errors import UserError
from medpfl.core.site_data import PARTS
from medpfl.data.kinds.npz.npz_file import load
from medpfl.data.kinds.npz.partitioned import PartitionedImages
from medpfl.data.partition.draw import draw, draw_like, draw_printed
from medpfl.data.partition.make import make_partition
from medpfl.data.partition.published_counts import COUNTS
from medpfl.data.partition.spec import PartitionSpec, parse_spec
from medpfl.data.split import official_parts, rows_to_pretrain_on, split_sites

DRAWN = ["dirichlet:0.1", "equal-dirichlet:0.1", "shards:2", "iid"]
ALPHAS = st.sampled_from([1e-320, 1e-300, 1e-9, 1e-3, 0.05, 0.5, 1.0, 7.0, 1e6, 1e300])


def everything(partition) -> np.ndarray:
    return np.concatenate([getattr(site, part) for site in partition.sites for part in PARTS])


@settings(max_examples=150)
@given(
    kind=st.sampled_from(["dirichlet", "equal-dirichlet", "iid"]),
    alpha=ALPHAS,
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    sites=st.integers(1, 20),
    seed=st.integers(0, 2**40),
)
def test_no_image_twice_and_none_lost(kind, alpha, labels, sites, seed):
    labels, sites = np.array(labels), min(sites, len(labels))
    spec = PartitionSpec(kind, alpha=alpha)
    parts = draw(spec, labels, sites, seed)
    assert len(parts) == sites
    joined = np.sort(np.concatenate(parts))
    if kind == "equal-dirichlet":
        assert {len(part) for part in parts} == {len(labels) // sites}
        assert len(np.unique(joined)) == len(joined)
    else:
        np.testing.assert_array_equal(joined, np.arange(len(labels)))
    for part, again in zip(parts, draw(spec, labels, sites, seed), strict=True):
        np.testing.assert_array_equal(part, again)


@pytest.mark.parametrize("spec", DRAWN)
def test_the_seed_and_nothing_else_decides(dataset, spec):
    first = make_partition(dataset, spec, 4, 1)
    assert everything(first).tolist() == everything(make_partition(dataset, spec, 4, 1)).tolist()
    assert everything(first).tolist() != everything(make_partition(dataset, spec, 4, 2)).tolist()


def test_alpha_rules_the_skew():
    labels = np.arange(6000) % 6

    def largest_share(spec: str) -> float:
        parts = draw(parse_spec(spec), labels, 6, 0)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts if len(part)]))

    for kind in ("dirichlet", "equal-dirichlet"):
        assert largest_share(f"{kind}:1e6") < 0.2
        assert largest_share(f"{kind}:0.01") > 0.8
    assert largest_share("equal-dirichlet:0.01") > largest_share("equal-dirichlet:1") > largest_share("iid")


def test_dirichlet_shares_have_the_right_moments():
    # Dir(a) over N sites: mean 1/N, variance (N-1) / (N^2 (N a + 1)). One class, so a site's size is its share.
    labels, sites, alpha = np.zeros(100_000, dtype=np.int64), 4, 0.5
    shares = np.array([[len(p) for p in draw(PartitionSpec("dirichlet", alpha), labels, sites, s)] for s in range(300)])
    shares = shares / 100_000
    assert shares.mean() == pytest.approx(1 / sites)
    assert shares.var() == pytest.approx((sites - 1) / (sites**2 * (sites * alpha + 1)), rel=0.1)


def test_equal_dirichlet_counts_have_the_right_moments():
    """The first site's n = 100 of 2,000: as long as no class is used up its counts are Dirichlet-multinomial.

    With A = C alpha, p = 1 / C and v = n (n + A) / (1 + A): mean n p, variance v p (1 - p), covariance -v p^2.
    """
    classes, alpha, n = 4, 0.5, 100
    labels, spec = np.arange(2_000) % classes, PartitionSpec("equal-dirichlet", alpha)
    draws = (draw(spec, labels, len(labels) // n, seed)[0] for seed in range(600))
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in draws])
    p, a = 1 / classes, classes * alpha
    factor = n * (n + a) / (1 + a)
    assert (counts.sum(1) == n).all()
    np.testing.assert_allclose(counts.mean(0), n * p, rtol=0.1)
    covariance = np.cov(counts.T)
    np.testing.assert_allclose(np.diag(covariance), factor * p * (1 - p), rtol=0.2)
    assert np.diag(covariance).mean() == pytest.approx(factor * p * (1 - p), rel=0.06)
    assert covariance[~np.eye(classes, dtype=bool)].mean() == pytest.approx(-factor * p**2, rel=0.06)


@pytest.mark.parametrize("spec", ["dirichlet:0.1", "equal-dirichlet:0.001", "equal-dirichlet:100", "shards:2", "iid"])
def test_fast(spec):
    labels = np.random.default_rng(0).integers(0, 11, 60_000)
    started = time.perf_counter()
    draw(parse_spec(spec), labels, 20, 0)
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    "text", ["", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "equal-dirichlet:inf",
             "dirichlet:a", "Iid", "iid:3", "file:", "fedimpres-0.1", "fedimpres-"],
)  # fmt: skip
def test_malformed_spec(text):
    with pytest.raises(UserError, match=r"positive number|use dirichlet:A, equal-dirichlet:A, shards:K, iid"):
        parse_spec(text)


def test_spec_is_canonical():
    assert str(parse_spec("dirichlet:.10")) == "dirichlet:0.1"
    assert str(parse_spec("shards:02")) == "shards:2"
    for text in ("equal-dirichlet:0.05", "iid", "natural", "fedimpres-0.005", "file:a.json"):
        assert str(parse_spec(text)) == text


def test_impossible_requests(dataset):
    with pytest.raises(UserError, match="--sites 0: at least one"):
        make_partition(dataset, "iid", 0)
    with pytest.raises(UserError, match="--sites 1001: there are only 1000 images"):
        make_partition(dataset, "iid", 1001)
    with pytest.raises(
        UserError, match=r"site-\d+ \(and \d+ more\) would have no training image: 1000 draws .*equal-dirichlet:0.001"
    ):
        make_partition(dataset, "dirichlet:0.001", 20)
    with pytest.raises(UserError, match=r"site-1 .*no training image: use fewer sites"):
        make_partition(dataset, "iid", 1000)
    with pytest.raises(UserError, match="partition shards:51 of 20 sites are 1020 shards of 1000 images"):
        make_partition(dataset, "shards:51", 20)
    with pytest.raises(UserError, match="needs a number of sites"):
        make_partition(dataset, "iid")
    for sites in (3, None):
        with pytest.raises(UserError, match="does not say which site"):
            make_partition(dataset, "natural", sites)
    with pytest.raises(UserError, match="holdout 1"):
        make_partition(dataset, "iid", 3, holdout=1)


def test_split_rounds_as_documented():
    (site,) = split_sites([np.arange(2941)], (0.5, 0, 0.5), 1.0, 0)
    assert [len(getattr(site, part)) for part in PARTS] == [1470, 0, 1471]
    (site,) = split_sites([np.arange(100)], (0.29, 0.29, 0), 1.0, 0)
    assert [len(getattr(site, part)) for part in PARTS] == [29, 29, 0]
    (site,) = split_sites([np.arange(10)], (1, 0, 0), 1.0, 0)
    assert len(site.train) == len(site) == 10


def test_each_site_and_seed_has_a_shuffling_of_its_own():
    """Of a file that is sorted by class the first images would be of one."""
    alike = [np.arange(100)] * 2
    one, two = split_sites(alike, (0.5, 0, 0.5), 1.0, 0)
    other_seed, _ = split_sites(alike, (0.5, 0, 0.5), 1.0, 1)
    assert set(one.train) not in (set(two.train), set(other_seed.train))
    few, fewer = (split_sites(alike, (0.5, 0, 0.5), share, 0)[0].train for share in (0.4, 0.2))
    assert len(few) == 20 and len(fewer) == 10 and set(fewer) < set(few) < set(one.train)
    assert few.tolist() != one.train[:20].tolist()
    kept = [official_parts("north", np.repeat([0, 1, 2], 100), 0.2, seed) for seed in (0, 1)]
    assert [len(site.train) for site in kept] == [20, 20] and set(kept[0].train) != set(kept[1].train)
    assert kept[0].train.max() < 100
    assert (kept[0].validation.tolist(), kept[0].test.tolist()) == ([*range(100, 200)], [*range(200, 300)])


def test_a_share_of_the_official_training_images_has_all_classes(dataset):
    """They are drawn class by class, and the first fifth of them would be of one."""
    for site in make_partition(dataset, "dirichlet:1000", 3, pooled=False, train_fraction=0.2).sites:
        assert len(site.train) in (39, 40, 41) and dataset.counts(site.train).min() > 0


def test_images_to_pretrain_on_are_the_seeds_and_at_least_one():
    one, two = (rows_to_pretrain_on(100, 0.2, seed).tolist() for seed in (0, 1))
    assert len(one) == len(set(one)) == 20 and set(one) != set(two)
    assert [len(rows_to_pretrain_on(total, share, 0)) for total, share in ((3, 0.0), (10, 0.26))] == [1, 3]


@given(
    n=st.integers(0, 300),
    weights=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    train_fraction=st.floats(0.01, 1),
)
def test_split_uses_every_image_once(n, weights, train_fraction):
    fractions = [w / sum(weights) for w in weights]
    (site,) = split_sites([np.arange(n)], fractions, 1.0, 0)
    joined = np.concatenate([getattr(site, part) for part in PARTS])
    assert sorted(joined.tolist()) == list(range(n))
    assert all(not len(getattr(site, part)) for part, f in zip(PARTS, fractions, strict=True) if not f)
    (few,) = split_sites([np.arange(n)], fractions, train_fraction, 0)
    assert len(few.train) == (max(1, int(train_fraction * len(site.train) + 1e-9)) if len(site.train) else 0)
    assert set(few.train) <= set(site.train)
    assert few.test.tolist() == site.test.tolist()


@pytest.mark.parametrize("fractions", [(0.5, 0.1, 0.5), (0, 0.5, 0.5), (1.1, -0.1, 0), (0.5, 0.5)])
def test_fractions_that_make_no_sense(fractions):
    with pytest.raises(UserError, match="fractions"):
        split_sites([np.arange(10)], fractions, 1.0, 0)


@pytest.mark.parametrize("train_fraction", [0, -1, 1.5])
def test_train_fraction_that_makes_no_sense(dataset, train_fraction):
    with pytest.raises(UserError, match="--train-fraction"):
        make_partition(dataset, "iid", 2, train_fraction=train_fraction)


@pytest.mark.parametrize("spec", DRAWN)
def test_official_parts_stay_apart_in_the_same_proportions(dataset, spec):
    partition = make_partition(dataset, spec, 3, 5, pooled=False)
    for site in partition.sites:
        for code, part in enumerate(PARTS):
            assert set(dataset.split[getattr(site, part)]) <= {code}
    assert sorted(everything(partition)) == list(range(1000))
    for site in partition.sites:
        # 600 training and 250 test images of the same classes; cuts are rounded to whole images.
        assert np.abs(dataset.counts(site.train) * 250 / 600 - dataset.counts(site.test)).max() <= 1


def test_draw_like_by_hand():
    counts = np.array([[3, 0, 0], [1, 8, 0]])
    labels = np.array([0] * 9 + [1] * 4 + [2] * 8)
    parts = draw_like(counts, labels, 0, "test")
    # Of class 0 site 1 would have 6.75. Class 2 has no count and follows the sites' totals, 3 to 9.
    assert [np.bincount(labels[part], minlength=3).tolist() for part in parts] == [[7, 0, 2], [2, 4, 6]]


def test_holdout_belongs_to_no_site(dataset):
    partition = make_partition(dataset, "equal-dirichlet:1", 3, holdout=0.1)
    assert len(partition.holdout) == 100
    assert not set(partition.holdout) & set(everything(partition))
    official = make_partition(dataset, "iid", 3, pooled=False, holdout=0.1)
    assert len(official.holdout) == 60
    assert set(dataset.split[official.holdout]) == {0}
    assert not set(official.holdout) & set(everything(official))
    others = make_partition(dataset, "iid", 3, 1, pooled=False, holdout=0.1)  # 60 other images of the 600
    assert len(set(official.holdout) & set(others.holdout)) < 30
    # 0.57 * 600 is 341.99999999999994 in floating point, and means 342.
    assert len(make_partition(dataset, "iid", 3, pooled=False, holdout=0.57).holdout) == 342


def test_what_no_site_has_is_no_part_of_the_draw(dataset):
    """By hand: the classes of what is left are drawn, in the order of what is left."""
    partition = make_partition(dataset, "dirichlet:0.1", 3, 5, holdout=0.3)
    left = np.setdiff1d(np.arange(1000), partition.holdout)
    for site, drawn in zip(partition.sites, draw(parse_spec("dirichlet:0.1"), dataset.labels[left], 3, 5), strict=True):
        assert sorted(np.concatenate([getattr(site, part) for part in PARTS])) == sorted(left[drawn])


def test_natural(write):
    change = {f"{p}_sites": np.array(["b", "a", "a"] * n) for p, n in (("train", 10), ("val", 3), ("test", 4))}
    dataset = load(write(change=change))
    for pooled in (True, False):
        partition = make_partition(dataset, "natural", pooled=pooled)
        assert [len(site) for site in partition.sites] == [34, 17]
        assert set(dataset.site_ids[partition.sites[1].train]) == {"b"}
    assert partition.sites[1].train.tolist() == list(range(0, 30, 3))
    aside = make_partition(dataset, "natural", holdout=0.2)
    assert len(aside.holdout) == 10
    for site, name in zip(aside.sites, "ab", strict=True):
        assert {*dataset.site_ids[np.concatenate([getattr(site, part) for part in PARTS])]} == {name}
    with pytest.raises(UserError, match="--sites 3: partition natural has 2 sites"):
        make_partition(dataset, "natural", 3)


@pytest.mark.parametrize(("partition", "told"), [("iid", True), ("natural", False)])
def test_a_files_own_sites_are_not_divided_otherwise_without_a_word(write, caplog, partition, told):
    change = {f"{p}_sites": np.array(["b", "a", "a"] * n) for p, n in (("train", 10), ("val", 3), ("test", 4))}
    data = str(write(change=change))
    PartitionedImages(make_config(algorithm="fedavg", data=data, sites=2, partition=partition)).prepare()
    assert ("has 2 sites of its own and is divided by iid over 2" in caplog.text) == told


PRINTED = """
| Client 1 | 5 | 0 | 0 | 0 | 22 | 577 | 185 | 58 | 11 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
| Client 2 | 0 | 386 | 67 | 2 | 73 | 304 | 3 | 0 | 0 | 0 | 533 | 0 | 0 | 0 | 0 | 0 |
| Client 3 | 0 | 0 | 0 | 0 | 0 | 0 | 1195 | 181 | 0 | 0 | 0 | 996 | 0 | 0 | 0 | 0 |
| Client 4 | 0 | 120 | 0 | 0 | 6 | 1 | 0 | 768 | 0 | 0 | 0 | 0 | 0 | 483 | 0 | 0 |
| Client 5 | 0 | 28 | 6 | 0 | 4 | 1 | 687 | 486 | 0 | 0 | 0 | 0 | 0 | 0 | 1207 | 0 |
| Client 6 | 0 | 1 | 705 | 0 | 661 | 0 | 0 | 0 | 407 | 0 | 0 | 0 432 | 0 | 0 | 0 | 0 |
| Client 7 | 760 | 1418 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 0 | 0 | 856 |
| Client 8 | 1 | 8 | 208 | 1836 | 0 | 0 | 1 | 0 | 0 | 1054 | 0 | 0 | 0 | 0 | 0 | 0 |
"""
"""FedImpres' supplement, both tables side by side, cell by cell as its text has them."""
OFFICIAL = np.array([852, 2181, 1085, 2026, 849, 993, 2330, 1643])
"""BloodMNIST's training images by class."""


def test_fedimpres_tables_are_the_printed_ones():
    moderate, severe = [], []
    for line in PRINTED.strip().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        moderate.append([int(cell) for cell in cells[:8]])
        # "0 432" is two numbers in one cell, the ninth of its row; the last 0 is the one too many.
        severe.append([int(number) for cell in cells[8:] for number in cell.split()][:8])
    assert {"0.01": moderate, "0.005": severe} == COUNTS


def test_fedimpres_tables():
    moderate, severe = (np.array(COUNTS[key]) for key in ("0.01", "0.005"))
    # Sums over what the paper prints, and their share of BloodMNIST's training part (90 % and half).
    assert moderate.sum(axis=0).tolist() == [766, 1961, 986, 1838, 766, 883, 2071, 1493]
    assert severe.sum(axis=0).tolist() == [418, 1054, 533, 996, 433, 483, 1207, 856]
    np.testing.assert_allclose(moderate.sum(axis=0) / OFFICIAL, 0.9, atol=0.02)
    np.testing.assert_allclose(severe.sum(axis=0) / OFFICIAL, 0.5, atol=0.03)
    labels = np.repeat(np.arange(8), OFFICIAL)
    for key, table in (("0.01", moderate), ("0.005", severe)):
        parts = draw_printed(key, labels, "abcdefgh", 0)
        assert [np.bincount(labels[p], minlength=8).tolist() for p in parts] == table.tolist()
        assert len(np.unique(np.concatenate(parts))) == table.sum()


def likeliest_alpha(tables):
    """The Dirichlet parameter under which counts (sites, classes) are likeliest, and the 95 % by likelihood ratio."""
    alphas = np.geomspace(1e-4, 1, 400)

    def log_likelihood(table, a):
        n, sites = table.sum(0), len(table)
        return (gammaln(sites * a) - gammaln(n + sites * a)).sum() + (gammaln(table + a) - gammaln(a)).sum()

    found = np.array([sum(log_likelihood(np.array(table), a) for table in tables) for a in alphas])
    kept = alphas[found > found.max() - 1.92]
    return alphas[found.argmax()], kept[0], kept[-1]


def test_which_alpha_the_printed_tables_fit():
    best, low, high = likeliest_alpha([COUNTS["0.01"]])
    assert best == pytest.approx(0.082, rel=0.03) and 0.05 < low < high < 0.12
    best, low, high = likeliest_alpha([COUNTS["0.005"]])
    assert best == pytest.approx(0.0051, rel=0.03) and low < 0.001 and 0.015 < high < 0.016


@pytest.mark.parametrize("alpha", [pytest.param(0.01, marks=pytest.mark.slow), 0.005])
def test_bloodmnist_can_be_drawn_for_every_seed(alpha):
    labels = np.repeat(np.arange(8), OFFICIAL)
    tables = []
    for seed in range(40):
        parts = draw(PartitionSpec("dirichlet", alpha), labels, 8, seed)
        tables.append([np.bincount(labels[part], minlength=8) for part in parts])
    assert np.array(tables).sum(axis=-1).min() >= 1
    # Leaving out draws with an empty site makes the others a little more even.
    assert alpha < likeliest_alpha(tables)[0] < 2 * alpha


def test_a_draw_without_an_empty_site_is_kept_and_others_are_drawn_again_as_a_whole(monkeypatch):
    labels, spec = np.arange(600) % 6, PartitionSpec("dirichlet", 0.1)
    drawn = {seed: draw(spec, labels, 6, seed, least=30) for seed in range(30)}
    monkeypatch.setattr("medpfl.data.partition.draw.REDRAWS", 0)
    first = {seed: draw(spec, labels, 6, seed, least=30) for seed in range(30)}
    small = {seed for seed, parts in first.items() if min(map(len, parts)) < 30}
    assert 0 < len(small) < 30
    for seed in range(30):
        assert min(map(len, drawn[seed])) >= 30
        assert (seed in small) == (list(map(len, drawn[seed])) != list(map(len, first[seed])))


def test_every_site_has_an_image_to_train_with(write):
    dataset = load(write(train=300, val=50, test=50, classes=5))
    for seed in range(20):
        sites = make_partition(dataset, "dirichlet:0.05", 5, seed, fractions=(0.05, 0.05, 0.9)).sites
        assert min(len(site.train) for site in sites) >= 1


def test_fedimpres_needs_bloodmnist(dataset, write):
    with pytest.raises(UserError, match="8 classes; this data set has 5"):
        make_partition(dataset, "fedimpres-0.01")
    with pytest.raises(UserError, match="needs 766 training images of class basophil, there are 4"):
        make_partition(load(write("bloodmnist.npz", classes=8)), "fedimpres-0.01")
    with pytest.raises(UserError, match=r"fedimpres-0\.01 has 8 sites"):
        make_partition(dataset, "fedimpres-0.01", 20)


def test_fedimpres_partition(write):
    dataset = load(write("bloodmnist.npz", train=8 * 2330, val=160, test=320, classes=8, shape=(2, 2)))
    partition = make_partition(dataset, "fedimpres-0.005", holdout=0.1, train_fraction=0.5)
    assert [len(site.train) for site in partition.sites] == [5, 266, 498, 241, 603, 419, 428, 527]
    assert len(partition.holdout) == 1864
    tests = {site.name: dataset.counts(site.test) for site in partition.sites}
    assert np.sum(list(tests.values()), axis=0).tolist() == [40] * 8
    assert tests["site-3"].tolist() == [0, 0, 0, 40, 0, 0, 0, 0]
