"""Startup kits, rights, submission and review of jobs."""
