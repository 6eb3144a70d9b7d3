"""What is told of an exception that came instead of an answer."""

from agent.errors import KubernetesError

_LIBRARIES = ("urllib3.", "kubernetes.")


def what_failed(error: Exception) -> str:
    """Return it in words that hold nothing of the request's headers, which have our token.

    ``http.client`` quotes a header that it does not like, and so do codecs.  So words are told of
    errors of the network and of the client libraries only, and of all others the type.
    """
    if isinstance(error, KubernetesError):
        return str(error)
    kind = type(error)
    is_known = isinstance(error, OSError) or kind.__module__.startswith(_LIBRARIES)
    return f"{kind.__name__}: {error}" if is_known else kind.__name__
