"""The round that a site selects by itself."""

from tiny import config, images

from medpfl.site.selecting import Selecting
from medpfl.site.store import MemoryStore


def test_of_rounds_that_are_as_good_it_is_the_first():
    """As at the server. Of five validation cases the loss decides."""
    store = MemoryStore()
    selecting = Selecting("site-1", config(), images(), store)
    losses = [None, 0.5, 0.5, 0.6, 0.4, None, 0.4]
    found = [selecting.best({"validation_loss": loss}, round_) for round_, loss in enumerate(losses, 1)]
    assert found == [0, 2, 2, 2, 5, 5, 5]
    assert Selecting("site-1", config(), images(), store).so_far() == (5, -0.4)
