from tests.cli.conftest import numalet

__all__ = ["numalet"]
