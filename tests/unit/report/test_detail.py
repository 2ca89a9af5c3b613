"""Pictures of cases and reliability on the page, of runs that have them."""

import re

import pytest

from medpfl.report.detail import _pooled, detail_parts
from medpfl.report.page import write_report

BLACK = "data:image/png;base64,iVBORw0KGgo="


def seen(*dice):
    return [
        {"which": which, "case": k + 1, "dice": d, "picture": BLACK}
        for k, (which, d) in enumerate(zip(("best", "median", "worst"), dice, strict=True))
    ]


def test_bins_of_all_sites_are_pooled_by_their_cases():
    """3 cases at 0.91, all right, and 1 at 0.95, wrong: 4 at 0.92, three quarters right."""
    bins = [
        {"n": 3, "confidence": 0.91, "accuracy": 1.0},
        {"n": 2, "confidence": 0.45, "accuracy": 0.5},
        {"n": 1, "confidence": 0.95, "accuracy": 0.0},
    ]
    low, high = _pooled(bins)
    assert low == (0.45, 0.5, 2)
    assert high == pytest.approx((0.92, 0.75, 4))


def test_a_page_shows_cases_and_reliability(five, tmp_path):
    five["detail"] = {
        "site-1": {"pictures": seen(0.9, 0.7, 0.1), "cases": []},
        "site-2": {"reliability": [{"n": 4, "confidence": 0.8, "accuracy": 0.75}]},
    }
    page = write_report([five], tmp_path / "page.html").read_text()
    assert page.count(BLACK) == 3
    assert re.search(r"site-1[^<]*, worst \(case 3\): 0.100", page)
    one_box = r'<div style="flex:0 1 240px">\s*<p><img [^>]*></p>\s*<p class="note">[^<]*</p>\s*</div>'
    assert len(re.findall(one_box, page)) == 3  # a note of its own would stand below another's picture
    assert "Can the confidence be trusted?" in page and "4 cases: confidence 0.80, right 0.75" in page


def test_of_many_sites_those_with_the_worst_cases_are_shown(five):
    five["detail"] = {f"site-{k}": {"pictures": seen(0.9, 0.8, k / 100)} for k in range(1, 15)}
    [part] = detail_parts(five)
    names = [each.picture.name for each in part.beside if each.picture]
    assert len(names) == 30
    assert not any("site-14" in name for name in names)


def test_runs_without_it_have_no_such_part(five):
    assert list(detail_parts(five)) == []
