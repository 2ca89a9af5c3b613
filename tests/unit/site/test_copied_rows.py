"""Of which layers a site says that their rows copy each other; how rows are compared is in test_guard.py."""

import torch

from medpfl.site.copied_rows import copying_layer


def rows(copies):
    found = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    found[:copies] = found[0]
    return {"fc1.weight": found}


def test_a_layer_that_began_with_copies_may_have_twice_as_many():
    assert copying_layer(rows(8), rows(0), 0.2) == "fc1.weight"
    assert copying_layer(rows(16), rows(8), 0.2) is None
    assert copying_layer(rows(17), rows(8), 0.2) == "fc1.weight"
