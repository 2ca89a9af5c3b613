"""What the command line adds to FLARE's simulator and POC."""

from medpfl.flare.launch.simulator import beside_the_run


def test_rounds_of_before_a_resume_took_nothing_of_this_time():
    """Ten minutes of training came before; of these 30 seconds the server worked on the run for 12, after 2."""
    seconds = {"total": 14.0, "start": 2.0, "training": 600.0}
    assert beside_the_run(30.0, {"seconds": seconds}) == 18.0
