"""What FLARE runs: controllers at the server, executors and the filter at a site, and how messages travel."""
