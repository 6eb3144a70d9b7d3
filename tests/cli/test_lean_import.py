"""The daemon imports only what it uses: the rest would stay in its memory for ever."""

import subprocess
import sys

import pytest


def printed(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_one_socket_of_pyroute2_does_not_bring_the_rest_of_it() -> None:
    said = printed(
        "import sys, agent.node.hotplug as hotplug; hotplug.open_uevents().close();"
        "print([name for name in ('pyroute2', 'pyroute2.ndb', 'pyroute2.iproute')"
        " if name in sys.modules])"
    )
    assert said == "[]"


def test_a_package_that_is_imported_afterwards_is_whole() -> None:
    said = printed(
        "from agent.lean_import import without_init\n"
        "with without_init('pyroute2'):\n"
        "    from pyroute2.netlink.uevent import UeventSocket\n"
        "import pyroute2\n"
        "print(pyroute2.UeventSocket is UeventSocket, hasattr(pyroute2, 'IPRoute'))"
    )
    assert said == "True True"


def test_a_package_that_was_imported_before_stays_as_it_is() -> None:
    said = printed(
        "import json, sys\n"
        "from agent.lean_import import hidden, without_init\n"
        "with without_init('json'), hidden('json'):\n"
        "    import json as same\n"
        "print(sys.modules['json'] is json is same)"
    )
    assert said == "True"


def test_what_is_hidden_is_there_again_afterwards() -> None:
    said = printed(
        "from agent.lean_import import hidden\n"
        "with hidden('rich'):\n"
        "    try: import rich\n"
        "    except ImportError: print('hidden')\n"
        "import rich; print(rich.__name__)"
    )
    assert said.split() == ["hidden", "rich"]


@pytest.mark.parametrize("package", ["no_such_package", "json.no_such_module"])
def test_a_package_that_is_not_there_is_missing_as_ever(package: str) -> None:
    said = printed(
        "import json\n"
        "from agent.lean_import import without_init\n"
        "try:\n"
        f"    with without_init({package!r}): pass\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert said == f"No module named {package!r}"


def test_the_daemon_has_neither_rich_nor_the_simulation_in_memory() -> None:
    said = printed(
        "import sys, agent.cli\n"
        "sys.argv = ['numalet', '--version']\n"
        "try: agent.cli.main()\n"
        "except SystemExit: pass\n"
        "import agent.app\n"  # what the daemon imports in addition
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'grpc', 'kubernetes', 'pygments', 'pyroute2', 'rich'}),"
        " [name for name in sys.modules if name.startswith('agent.simulation')])"
    )
    assert said.splitlines()[-1] == "[] []"


def test_only_the_daemon_has_the_daemon_in_memory() -> None:
    said = printed(
        "import sys, agent.commands\n"
        "print(sorted({'agent.app', 'agent.reconciler', 'prometheus_client'} & set(sys.modules)))"
    )
    assert said == "[]"


def test_nobody_looks_for_garbage_among_what_stays_and_afterwards_as_ever() -> None:
    said = printed(
        "import gc\n"
        "from agent.lean_import import uncollected\n"
        "with uncollected():\n"
        "    print(gc.isenabled())\n"
        "    import decimal\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    assert said.splitlines() == ["False", "True True"]
