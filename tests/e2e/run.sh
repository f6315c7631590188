#!/usr/bin/env bash
# run.sh: VS Code, Neovim and Emacs with the product, as a person uses them. Everything that is not part of
# the repository lands in CACHE. Debian packages are installed where the machine lacks them (root only).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torchwise-editors}
mkdir -p "$cache"

missing=()
for package in chromium fonts-dejavu-core emacs-nox elpa-eglot; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

NVIM=$("$root/tests/editors/install_nvim.sh" "$cache/nvim")
installed=$("$root/tests/e2e/install_code_server.sh" "$cache/vscode")
CODE_SERVER=$(sed -n 's/^CODE_SERVER=//p' <<<"$installed")
export NVIM CODE_SERVER PYTHON=$root/.venv/bin/python SHOTS=${SHOTS:-$cache/shots}

cd "$root"
[ -d node_modules/playwright-core ] || npm ci --ignore-scripts --no-audit --no-fund
make --no-print-directory vsix  # with the server inside: what is tested is what is installed
export VSIX=$root/vscode-extension/torchwise.vsix

"$PYTHON" -m pytest -q -m editor tests/editors
node_bin=$(sed -n "s/^NODE_BIN=//p" <<<"$installed")
# a new profile without a network: the package brings all that it needs
alone() { "$@"; }
if unshare --net ip link set lo up 2>/dev/null; then
  alone() { unshare --net sh -c 'ip link set lo up; exec "$@"' alone "$@"; }
  echo "VS Code runs without a network"
fi
export PATH=$node_bin:$PATH
alone node tests/e2e/vscode_test.mjs
alone node tests/e2e/trust_test.mjs
