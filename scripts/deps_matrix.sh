#!/usr/bin/env bash
# The oldest and the newest releases of the dependencies that pyproject.toml allows, each in an environment of its
# own below build/deps, with the tests that touch every one of them.
set -euo pipefail
cd "$(dirname "$0")/.."

# one test file for each dependency: libcst, pygls and lsprotocol, jedi, rich; and the command line as a whole
TESTS=(
	tests/shared_analysis/source
	tests/server/lsp/test_protocol.py
	tests/shared_analysis/names
	tests/server/cli/test_check.py
	tests/server/cli/test_fix.py
)
# the lower bounds of pyproject.toml, exactly
OLDEST=$(python3 - <<-'PY'
	import re
	from pathlib import Path
	text = Path("pyproject.toml").read_text()
	listed = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.S | re.M)[1]
	print(*(f"{name}=={low}" for name, low in re.findall(r'"([\w-]+)>=([\d.]+)', listed)))
PY
)

for which in ${1:-oldest newest}; do
	folder=build/deps/$which
	python3 -m venv "$folder"
	"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	if [ "$which" = oldest ]; then
		# shellcheck disable=SC2086
		printf '%s\n' $OLDEST >"$folder/constraints.txt"
	else
		: >"$folder/constraints.txt"
	fi
	"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--constraint "$folder/constraints.txt" --editable . pytest hypothesis jsonschema pytest-asyncio pytest-lsp pyyaml
	"$folder/bin/python" -m pip list --format=freeze | grep -iE '^(libcst|pygls|lsprotocol|jedi|rich)=='
	"$folder/bin/python" -m pytest -q -x "${TESTS[@]}"
done
