# ruff: noqa
# Any Python must be able to read this file, to say that it is too old.
"""Starts the torchwise server: `python -I launch.py [--from-environment] --stdio`.

Run with `-I`, this file's Python ignores PYTHONPATH, the current folder and everything else of the
workspace, so that a `json.py` or `typing.py` there is never imported. The libraries come from
`bundled/libs` where the package brings them for this Python, else, or with `--from-environment`, from the
chosen Python's own installation.
"""

import os
import site
import sys

_MISSING = 3
_FROM_ENVIRONMENT = "--from-environment"
_LIBS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bundled", "libs")


def main():
    if sys.version_info < (3, 10):
        sys.exit(
            "torchwise needs Python 3.10 or newer; %s is %d.%d" % ((sys.executable,) + sys.version_info[:2])
        )
    from_environment = _FROM_ENVIRONMENT in sys.argv
    if from_environment:
        sys.argv.remove(_FROM_ENVIRONMENT)
    if not from_environment and _is_bundled_for_this_python():
        sys.path.insert(0, _LIBS)
    elif site.ENABLE_USER_SITE is not None or sys.prefix == sys.base_prefix:
        # -I leaves out the user's own packages, which `pip install --user` uses
        user = site.getusersitepackages()
        if os.path.isdir(user):
            sys.path.append(user)
    try:
        from torchwise_server.lsp.main import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchwise_server":
            raise
        print("torchwise is not installed for %s" % sys.executable, file=sys.stderr)
        return _MISSING
    return serve()


def _is_bundled_for_this_python():
    """LibCST has native code: its module must have been built for this version, system and processor."""
    from importlib.machinery import EXTENSION_SUFFIXES

    native = os.path.join(_LIBS, "libcst", "native")
    return any(os.path.isfile(native + suffix) for suffix in EXTENSION_SUFFIXES)


if __name__ == "__main__":
    sys.exit(main())
