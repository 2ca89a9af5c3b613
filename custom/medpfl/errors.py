"""Two exceptions: "the user can put this right", and "the user wants no more of it"."""


class UserError(Exception):
    """Wrong input or configuration; the message says what is wrong, where, and what would be right.

    The command line prints it as it is and exits with code 2. Every other exception is a defect of ours.
    """


class Stopped(Exception):
    """A run was ended from outside in the middle of a step; the step's result is not used."""
