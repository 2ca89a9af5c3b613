"""The server's side: mixing, similarity, rounds, checkpoint. Knows nothing of FLARE."""
