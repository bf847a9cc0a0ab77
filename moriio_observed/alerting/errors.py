"""What rendering or checking rules cannot go on after."""


class AlertsError(Exception):
    """The rules or values cannot be used; the message says why and what to do."""


class ValuesError(AlertsError):
    """A value is not one of ours, or not of the right form; the message does not name the file."""
