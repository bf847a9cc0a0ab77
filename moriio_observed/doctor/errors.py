"""What is wrong with what the doctor was given to look at."""


class InputError(Exception):
    """An input cannot be read; the message names it, its value and the right form."""
