"""Attacks of a malicious server on one site, run at the site against its own code, data and policy."""
