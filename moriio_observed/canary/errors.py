"""What goes wrong between the canary, its files and the servers."""


class CanaryError(Exception):
    """The canary cannot go on; the message names what, its value and the right form."""


class NoAnswerError(Exception):
    """A probe got no answer that can be read; the message says why."""


class BusyError(NoAnswerError):
    """The server refused a probe because it has enough to do."""


class WrongModelError(NoAnswerError):
    """The server does not serve the model that was asked for."""
