"""What the demo cannot go on after."""


class DemoError(Exception):
    """The demo or one of its processes failed; the message is all a user needs."""
