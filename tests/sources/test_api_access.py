import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent import __version__
from agent.errors import KubernetesError
from agent.sources.api_access import load_client

from .api_server import Certificate, ScriptedApiServer, make_certificate, page
from .rig import FakeTime, Rig

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

MINUTE_S = 60.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("ca"))


def ask(client: "ApiClient") -> None:
    request = client.param_serialize(
        "GET", "/version", header_params={"Connection": "close"}, auth_settings=["BearerToken"]
    )
    client.call_api(*request, _request_timeout=(5, 5)).response.read()


def tokens(server: ScriptedApiServer) -> list[str]:
    return [request.token for request in server.requests]


def test_inside_a_cluster_the_service_account_opens_the_door(
    rig: Rig, certificate: Certificate, tmp_path: Path
) -> None:
    service_account = account(tmp_path, certificate)
    server = rig.start_server(page(), page(), tls=certificate)
    time = FakeTime()
    client = load_client(
        None,
        service_account=service_account,
        environ=environ(server),
        monotonic_s=time.monotonic_s,
    )

    ask(client)
    (service_account / "token").write_text("second\n")
    time.monotonic += MINUTE_S
    ask(client)

    assert tokens(server) == ["first", "second"]


def account(folder: Path, certificate: Certificate) -> Path:
    """Lay out a service account's folder, as the kubelet mounts it."""
    (folder / "token").write_text("first")
    (folder / "ca.crt").write_bytes(certificate.certificate.read_bytes())
    return folder


def environ(server: ScriptedApiServer) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
    }


def test_the_token_file_of_a_kubeconfig_is_followed(rig: Rig, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    rig.user = {"tokenFile": "token"}
    rig.start_server(*[page()] * 3)
    time = FakeTime()
    client = load_client(rig.kubeconfig(rig.server.url), monotonic_s=time.monotonic_s)

    ask(client)
    token.write_text("second\n")
    ask(client)
    time.monotonic += MINUTE_S
    ask(client)

    assert tokens(rig.server) == ["first", "first", "second"]


def test_a_token_written_into_the_kubeconfig_is_followed(rig: Rig) -> None:
    rig.user = {"token": "first"}
    rig.start_server(*[page()] * 2)
    time = FakeTime()
    client = load_client(rig.kubeconfig(rig.server.url), monotonic_s=time.monotonic_s)

    ask(client)
    rig.user = {"token": "second"}
    rig.kubeconfig(rig.server.url)
    time.monotonic += MINUTE_S
    ask(client)

    assert tokens(rig.server) == ["first", "second"]


def test_credentials_that_cannot_be_read_again_stay_in_use_and_are_named_in_the_log(
    rig: Rig, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    rig.user = {"tokenFile": "token"}
    rig.start_server(*[page()] * 3)
    time = FakeTime()
    client = load_client(rig.kubeconfig(rig.server.url), monotonic_s=time.monotonic_s)

    token.unlink()
    time.monotonic += MINUTE_S
    with capture_logs() as logs:
        ask(client)
        ask(client)
    token.write_text("second")
    time.monotonic += MINUTE_S
    ask(client)

    assert tokens(rig.server) == ["first", "first", "second"]
    (log,) = logs
    assert log["event"] == "credentials_not_read_again"
    assert "kubeconfig" in log["error"]


@pytest.mark.parametrize("end", ["\nSECOND", "\0", "\u2026", "\x7f"])
def test_what_can_be_no_token_is_refused_by_its_file_and_never_shown(rig: Rig, end: str) -> None:
    rig.user = {"token": f"SECRET{end}"}
    with pytest.raises(KubernetesError, match=r"kubeconfig .*the token has characters") as refused:
        load_client(rig.kubeconfig("http://127.0.0.1:1"))
    assert "SECRET" not in str(refused.value)


def test_a_token_that_spoils_leaves_the_old_one_in_use(
    rig: Rig, certificate: Certificate, tmp_path: Path
) -> None:
    service_account, time = account(tmp_path, certificate), FakeTime()
    server = rig.start_server(page(), tls=certificate)
    client = load_client(
        None,
        service_account=service_account,
        environ=environ(server),
        monotonic_s=time.monotonic_s,
    )
    (service_account / "token").write_text("SECRET\nSECOND")
    time.monotonic += MINUTE_S
    with capture_logs() as logs:
        ask(client)
    assert tokens(server) == ["first"]
    (log,) = logs
    assert str(service_account / "token") in log["error"]
    assert "SECRET" not in log["error"]


def test_a_user_without_a_token_sends_none(rig: Rig) -> None:
    rig.user = {}
    rig.start_server(page())

    ask(load_client(rig.kubeconfig(rig.server.url)))

    assert "authorization" not in rig.server.requests[0].headers


def test_the_client_names_itself(rig: Rig) -> None:
    rig.start_server(page())

    ask(load_client(rig.kubeconfig(rig.server.url)))

    assert rig.server.requests[0].headers["user-agent"] == f"numalet/{__version__}"


def test_a_kubeconfig_that_is_of_no_use_is_named(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("contexts: []")

    with pytest.raises(KubernetesError, match=rf"kubeconfig {kubeconfig}: .*current-context"):
        load_client(kubeconfig)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match=r"nowhere: .*No configuration found"):
        load_client(tmp_path / "nowhere")


def test_outside_of_a_cluster_a_kubeconfig_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="outside of a pod give a kubeconfig"):
        load_client(None, service_account=tmp_path, environ={})


def test_neither_the_watch_nor_its_client_loads_a_model_class(tmp_path: Path) -> None:
    kubeconfig = Rig(tmp_path).kubeconfig("http://127.0.0.1:1")
    program = f"""
import pathlib, sys
import agent.sources.api_access, agent.sources.kubernetes
print("kubernetes" in sys.modules)
agent.sources.api_access.load_client(pathlib.Path({str(kubeconfig)!r}))
print([name for name in sys.modules if name.startswith("kubernetes.client.models.")])
"""

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert done.stdout == "False\n[]\n"
