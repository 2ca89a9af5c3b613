"""What everything stands on: messages, parameters, declarations, seeding, files of state, errors. No FLARE."""
