"""Before training: what regime sites' numbers are, and what our benchmarks found in regimes like it."""
