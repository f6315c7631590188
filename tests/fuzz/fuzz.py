"""Coverage-guided fuzzing with atheris: python tests/fuzz/fuzz.py TARGET [libFuzzer options] [CORPUS ...].

    python tests/fuzz/fuzz.py program -runs=100000 -max_len=120 work/ tests/fuzz/corpus/program

atheris is no development dependency: `pip install atheris`. Keep what `-merge=1` leaves of the work folder.
"""

# atheris is not installed where the types are checked.
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["torchwise_analysis", "torchwise_memory", "torchwise_server"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        raise SystemExit(f"{__doc__}\ntargets: {', '.join(TARGETS)}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
