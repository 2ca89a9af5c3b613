"""Jobs in FLARE's simulator and in a proof of concept on this machine, and what watches their processes."""
