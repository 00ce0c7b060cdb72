"""What can be wrong with a server that was started."""


class StartFailed(Exception):
    """A server did not become ready; another start may."""


class CanaryFailed(Exception):
    """A server answers, but wrongly; nothing it says can be trusted."""
