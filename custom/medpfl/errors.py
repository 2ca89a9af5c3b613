"""The one exception that means "the user can put this right"."""


class UserError(Exception):
    """Wrong input or configuration; the message says what is wrong, where, and what would be right.

    The command line prints it as it is and exits with code 2. Every other exception is a defect of ours.
    """
