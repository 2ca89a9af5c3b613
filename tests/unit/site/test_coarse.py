"""What a hospital's measures say of single cases, for tasks with several labels or structures."""

import numpy as np
import pytest

from medpfl.site.coarse import coarsened
from medpfl.site.policy import HOSPITAL, OPEN
from medpfl.tasks import TASKS

MULTI_LABEL = TASKS["multi-label"]


def told(scores, positive, policy):
    """Of 30 cases with two labels; the second, rare one is of the cases given, under scores of the server's choice."""
    labels = np.stack([np.arange(30) % 2, np.isin(np.arange(30), positive)], 1)
    measured = MULTI_LABEL.pooled([(np.stack([np.full(30, 0.5), scores], 1), labels)])
    return coarsened({"validation": measured}, policy)["validation"]


def test_a_rare_label_tells_nothing_of_its_one_case():
    """Its AUC is the place of that case among the others, which names it where the server has made the scores."""
    scores = np.linspace(0, 1, 30)
    first, second = (told(scores, [case], OPEN)["auroc_by_label"][1] for case in (3, 4))
    assert (round(29 * first), round(29 * second)) == (3, 4)
    for positive in ([3], [4], []):
        assert told(scores, positive, HOSPITAL)["auroc_by_label"] == [None, None]


@pytest.mark.parametrize("name", ["dice_by_class", "auroc_by_label"])
def test_each_structure_and_label_stays(name):
    measured = {"n": 40, "dice": 0.8123, name: [0.9123, None, 0.5]}
    found = coarsened({"test": {"selected": measured, "last": None}}, HOSPITAL)["test"]["selected"]
    assert found == {"n": 40, "dice": 0.81, name: [None, None, None]}
