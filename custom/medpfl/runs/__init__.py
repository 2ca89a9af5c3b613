"""One experiment, a comparison, sites that join, a run at real sites: from a configuration to files."""
