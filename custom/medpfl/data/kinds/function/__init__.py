"""A function of the user's own that returns one site's data."""
