"""A method and a network for medpfl."""
