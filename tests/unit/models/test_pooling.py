import pytest
import torch
from torch import nn

from medpfl.models.pooling import MaxPool2x2


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 2)])
def test_same_bits_with_and_without_gradient(size):
    x = torch.randn(3, 4, *size)
    expected = nn.MaxPool2d(2)(x)
    assert MaxPool2x2()(x).equal(expected)
    with torch.no_grad():
        assert MaxPool2x2()(x).equal(expected)


def test_gradient_is_that_of_torch():
    x = torch.randn(2, 3, 6, 6).relu().requires_grad_()
    ours, theirs = (torch.autograd.grad(pool(x).square().sum(), x)[0] for pool in (MaxPool2x2(), nn.MaxPool2d(2)))
    assert ours.equal(theirs)
