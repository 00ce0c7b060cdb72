"""How many files and connections a process may have open."""

import resource

SPARE = 64  # descriptors for everything that is no connection


def raise_descriptors() -> int:
    """Raise the soft limit of open files, which most systems set to 1,024, to the hard one.

    Returns:
        Connections that may be open at once.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # some systems name a limit that they do not give
            pass
    return max(1, (soft if soft != resource.RLIM_INFINITY else 1 << 20) - SPARE)
