"""A run as a FLARE job: recipes, exported folders, the classes that a job is made of."""
