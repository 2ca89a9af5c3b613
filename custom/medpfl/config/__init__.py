"""Everything that defines a run, and where its fields come from."""
