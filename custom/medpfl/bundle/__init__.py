"""A site's model as a MONAI bundle: what describes it, and what runs when it is used."""
