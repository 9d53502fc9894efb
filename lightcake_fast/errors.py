"""The error that the command line shows as one line."""


class InputError(ValueError):
    """Something the user gave is wrong: a file, a flag, a checkpoint.

    The message is one line that says what was got and what was wanted. Command-line modules print it
    and exit with code 2.
    """
