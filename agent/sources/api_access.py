"""The way to the API server: its address, our credentials, and the one `ApiClient`.

The client library is imported inside functions, since the modes without Kubernetes have no use for
it, and without what its packages import on top: 2 MiB instead of 10.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent import __version__
from agent.errors import KubernetesError
from agent.lean_import import without_init

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FRESH_S = 60.0  # as long as client-go trusts what it read of a token file (token_source.go)

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3

Load = Callable[["Configuration"], None]


def load_client(
    kubeconfig: Path | None,
    *,
    service_account: Path = SERVICE_ACCOUNT,
    environ: Mapping[str, str] = os.environ,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> "ApiClient":
    """Return a client for the cluster of ``kubeconfig``, or for the one that we run in.

    It reads its credentials again before a request when they are a minute old, so a rotated token
    is used without a restart.  A peer that has gone is noticed after 30 seconds, by TCP keepalive.
    Nothing is retried inside the client.  Raises `KubernetesError` when the files are of no use.
    """
    with without_init("kubernetes", "kubernetes.utils"):
        from kubernetes.client.api_client import ApiClient  # noqa: PLC0415 - see the module
        from kubernetes.client.configuration import Configuration  # noqa: PLC0415
        from kubernetes.utils.keepalive import tcp_keepalive_socket_options  # noqa: PLC0415

    configuration = Configuration()
    # urllib3's own default would send a request again, up to three times, and sleep through a
    # Retry-After where nobody can wake it.
    configuration.retries = False
    configuration.socket_options = tcp_keepalive_socket_options(
        KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT
    )
    load = _kubeconfig(kubeconfig) if kubeconfig else _in_cluster(service_account, environ)
    where = f"kubeconfig {kubeconfig}" if kubeconfig else f"{service_account / 'token'}"
    _Credentials(load, where, monotonic_s).read(configuration)
    client = ApiClient(configuration)
    client.user_agent = f"numalet/{__version__}"
    return client


def _kubeconfig(path: Path) -> Load:
    def load(configuration: "Configuration") -> None:
        with without_init("kubernetes", "kubernetes.config"):
            from kubernetes.config.kube_config import load_kube_config  # noqa: PLC0415

        try:
            load_kube_config(  # type: ignore[no-untyped-call]  # the library types only its models
                config_file=str(path), client_configuration=configuration, persist_config=False
            )
        except Exception as error:
            raise KubernetesError(
                f"kubeconfig {path}: {error}; does `kubectl` work with it?"
            ) from error

    return load


def _in_cluster(folder: Path, environ: Mapping[str, str]) -> Load:
    def load(configuration: "Configuration") -> None:
        with without_init("kubernetes", "kubernetes.config"):
            from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

        try:
            InClusterConfigLoader(  # type: ignore[no-untyped-call]  # as above
                token_filename=str(folder / "token"),
                cert_filename=str(folder / "ca.crt"),
                try_refresh_token=False,
                environ=environ,
            ).load_and_set(configuration)
        except Exception as error:
            raise KubernetesError(
                f"no cluster around us ({folder}: {error}); outside of a pod give a kubeconfig"
            ) from error

    return load


class _Credentials:
    """The hook by which the client library asks for fresh credentials before each request.

    The library's own hooks follow neither the token file of a kubeconfig nor, when the wall clock
    is set back, that of a service account.
    """

    def __init__(self, load: Load, where: str, monotonic_s: Callable[[], float]) -> None:
        self._load = load
        self._where = where
        self._monotonic_s = monotonic_s
        self._read_s = monotonic_s()

    def read(self, configuration: "Configuration") -> None:
        """Read the credentials, and be the hook from now on; raises `KubernetesError`."""
        self._read_s, former = self._monotonic_s(), dict(configuration.api_key)
        self._load(configuration)
        if token := configuration.api_key.get("BearerToken"):
            # A file ends with a newline, a header must not have one (client-go trims it too).
            token = configuration.api_key["BearerToken"] = token.strip()
            if not (token.isascii() and token.isprintable()):
                configuration.api_key = former
                raise KubernetesError(
                    f"{self._where}: the token has characters that no token has: control characters,"
                    " line ends or letters beyond ASCII; have it written again"
                )
        configuration.refresh_api_key_hook = self  # type: ignore[assignment]  # typed as None

    def __call__(self, configuration: "Configuration") -> None:
        """Read them again when they are old; what cannot be read leaves the old ones in use."""
        if self._monotonic_s() - self._read_s < FRESH_S:
            return
        try:
            self.read(configuration)
        except KubernetesError as error:
            # They may be good still, and are asked for again in a minute.
            log = structlog.get_logger(component="api_access")
            log.warning("credentials_not_read_again", error=str(error))
