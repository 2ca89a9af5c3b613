"""A site's side: training, objectives, statistics, evaluation, personal state. Knows nothing of FLARE."""
