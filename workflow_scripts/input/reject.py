"""What cannot be used: a reason class and a message."""


class Reject(Exception):
    """A line or a row that cannot be used. Readers of tables and arrays yield one in its place."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message
