"""Lines and rows that cannot be used: a reason class and a message."""


class Reject(Exception):
    """A row that cannot be used: a reason class and a message."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message


class Bad(Exception):
    """A line or row that cannot be used: a reason class and a message."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason
        self.message = message
