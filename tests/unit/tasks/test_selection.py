"""By which measure the round is selected: worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from medpfl.core.own_loaders import LabelOutside
from medpfl.core.site_data import ImageTensors, SiteLoaders
from medpfl.tasks import TASKS
from medpfl.tasks.selection import AUTO, in_words, seen, selection

PLAIN = TASKS["classification"]


def told(*sites):
    return [{"cases": cases, "majority": majority} for cases, majority in sites]


def data(labels, patients=None):
    labels = torch.tensor(labels)
    parts = ("train", "validation", "test")
    owned = {} if patients is None else {part: torch.tensor(patients) for part in parts}
    images = dict.fromkeys(parts, torch.zeros(len(labels), 1, 2, 2))
    return ImageTensors(images=images, labels=dict.fromkeys(parts, labels), patients=owned)


@pytest.mark.parametrize(
    ("labels", "majority"),
    [
        ([1] * 9 + [0], 1),  # nine of ten
        ([1] * 8 + [0, 2], None),  # exactly 80 % is not more
        ([0, 1, 2], None),
        ([2], 2),
    ],
)
def test_a_site_tells_its_cases_and_its_large_class(labels, majority):
    assert seen(PLAIN, data(labels)) == {"cases": len(labels), "majority": majority}


def test_patients_are_counted_and_not_their_images():
    # Three patients, one of them with eight images: of six images of class 1 two patients are not many.
    found = seen(PLAIN, data([1] * 8 + [0, 1], patients=[0] * 8 + [1, 2]))
    assert found == {"cases": 3, "majority": None}


def test_other_labels_than_classes_have_no_large_class():
    assert seen(TASKS["multi-label"], data([1] * 10)) == {"cases": 10, "majority": None}


def test_a_loader_is_read_without_moving_the_random_numbers_of_training():
    drawing = [(torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 0, 0]))]

    class Loader:
        def __iter__(self):
            torch.rand(3)
            return iter(drawing)

    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert seen(PLAIN, SiteLoaders(train=drawing, validation=Loader())) == {"cases": 4, "majority": 0}
    # SiteLoaders counts samples by reading, which is the loader's own affair; labels are read beside it.
    torch.manual_seed(7)
    from medpfl.core.site_data import labels_of

    labels_of(SiteLoaders(train=drawing, validation=Loader()), "validation")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("sites", "measure", "lead"),
    [
        (((30, None), (30, None)), "accuracy", None),
        (((30, 1), (30, 1), (30, None)), "balanced_accuracy", "balanced_accuracy"),
        (((30, 1), (30, None)), "accuracy", None),  # half of the sites are not most
        (((30, 1), (30, 2), (30, 3)), "accuracy", None),  # another class at each: a model must tell them apart
        (((10, None), (9, None)), "loss", None),
        (((10, None), (10, None)), "accuracy", None),  # 20 in all
        (((5, 1), (5, 1)), "loss", "balanced_accuracy"),
        ((), "accuracy", None),  # nobody tells anything
        (((0, None), (0, None)), "accuracy", None),
        (((30, 1), (0, None), (0, None)), "balanced_accuracy", "balanced_accuracy"),  # who has no cases has no say
    ],
)
def test_the_measure_that_fits(sites, measure, lead):
    found = selection(PLAIN, AUTO, told(*sites))
    assert (found["measure"], found["lead"]) == (measure, lead)
    assert bool(in_words(PLAIN, found)) == (measure != "accuracy")


def test_what_the_user_names_selects_whatever_there_is():
    found = selection(PLAIN, "accuracy", told((5, 1), (5, 1)))
    assert (found["measure"], found["asked"], found["lead"]) == ("accuracy", True, "balanced_accuracy")
    words = " ".join(in_words(PLAIN, found, ["healthy", "ill"]))
    assert "Class ill has more than 80% of the validation cases at 2 of 2 sites" in words
    assert "accuracy selects the round" in words and "on 10 validation cases in all, fewer than 20" in words
    assert "selected on 1 validation case in all" in " ".join(in_words(PLAIN, selection(PLAIN, AUTO, told((1, 1)))))


@pytest.mark.parametrize(("task", "few"), [("segmentation", "dice"), ("ordinal", "loss"), ("multi-label", "loss")])
def test_other_tasks(task, few):
    assert selection(TASKS[task], AUTO, told((5, None)))["measure"] == few
    assert selection(TASKS[task], AUTO, told((50, 1)))["measure"] == TASKS[task].selecting[0]


def test_the_loss_is_told_where_it_selects_and_nowhere_else():
    class Says(nn.Module):
        def forward(self, x):
            return torch.tensor([0.0, 1.0]).log().clamp(min=-2).expand(len(x), 2)

    some = data([1, 1, 0])
    assert PLAIN.validated(Says(), some, "accuracy").keys() == {"validation"}
    found = PLAIN.validated(Says(), some, "loss")
    # Class 1 has the probability 1 / (1 + e^-2) = 0.8808: losses 0.1269, 0.1269 and 2.1269.
    assert found["validation_loss"] == pytest.approx(2.3808 / 3, abs=1e-4)
    assert PLAIN.score(found, "loss") == -found["validation_loss"]
    assert PLAIN.score(found, "accuracy") == pytest.approx(2 / 3)
    assert PLAIN.score({"validation": None}, "loss") is None


@pytest.mark.parametrize("other", [-100, 2**40])
def test_labels_without_a_class_are_no_error_where_they_are_counted(other):
    """The loss leaves out those below 0; whatever is too large is refused where the network is there."""
    labels = torch.tensor([1] * 9 + [other])
    data = SiteLoaders((), [(torch.zeros(10, 1, 4, 4), labels)])
    assert seen(TASKS["classification"], data) == {"cases": 9 if other < 0 else 10, "majority": 1}


def test_training_samples_that_the_loss_leaves_out_are_not_among_the_predictions():
    """A model is also judged by what it was trained on, where it is fine-tuned."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    batch = (torch.rand(5, 1, 4, 4), torch.tensor([0, -100, 1, -100, 1]))
    data = SiteLoaders([batch], [batch])
    probabilities, labels = TASKS["classification"].predict(model, data, "train")
    assert labels.tolist() == [0, 1, 1]
    with torch.no_grad():
        expected = model.eval()(batch[0]).softmax(1)[[0, 2, 4]]
    assert probabilities == pytest.approx(expected.numpy())
    with pytest.raises(LabelOutside):
        TASKS["classification"].predict(model, data, "validation")


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 3.0])])
def test_of_a_batch_that_is_left_out_as_a_whole_nothing_is_learned(weight):
    model = nn.Linear(4, 2)
    loss = TASKS["classification"].loss(model(torch.rand(3, 4)), torch.full((3,), -100), weight)
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in model.parameters())
    output, labels = model(torch.rand(3, 4)), torch.tensor([0, -100, 1])
    some = TASKS["classification"].loss(output, labels, weight)
    assert some.item() == cross_entropy(output[[0, 2]], labels[[0, 2]], weight).item()
