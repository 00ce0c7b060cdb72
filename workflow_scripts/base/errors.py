"""What ends a program with a message in place of a traceback."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and the remedy."""
