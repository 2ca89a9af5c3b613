"""The server's side: rounds, weighing, mixing, checkpoint. Knows nothing of FLARE."""
