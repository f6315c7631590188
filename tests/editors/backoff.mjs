// node backoff.mjs: when the server is started again after it died. VS Code and time are stand-ins.
import assert from 'node:assert/strict';
import { build } from 'esbuild';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import fs from 'node:fs';
import os from 'node:os';

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'torchwise-backoff-'));
const outfile = path.join(folder, 'backoff.mjs');
const stands = {
  'vscode': `export const window = { showErrorMessage: async (...said) => { globalThis.boxes.push(said); } };
    export const l10n = { t: (text) => text }; export const commands = {};`,
  'vscode-languageclient/node': `export const CloseAction = { DoNotRestart: 'stop', Restart: 'restart' };
    export const ErrorAction = { Continue: 'continue', Shutdown: 'shutdown' };`,
};
await build({
  entryPoints: [path.join(root, 'vscode-extension/src/backoff.ts')],
  bundle: true, format: 'esm', outfile, logLevel: 'error',
  plugins: [{
    name: 'stands',
    setup(made) {
      made.onResolve({ filter: /^vscode/ }, ({ path: name }) => ({ path: name, namespace: 'stand' }));
      made.onLoad({ filter: /.*/, namespace: 'stand' }, ({ path: name }) => ({ contents: stands[name] }));
    },
  }],
});

let now = 1_000_000;
const pauses = [];
globalThis.boxes = [];
globalThis.setTimeout = (done, ms) => { pauses.push(ms); now += ms; queueMicrotask(done); };
Date.now = () => now;
const { Backoff } = await import(pathToFileURL(outfile));
const log = { warn() {}, error() {} };

// six deaths, one after another: each pause is twice as long; the seventh is the end
const keepsDying = new Backoff(log);
for (let death = 0; death < 6; death++) {
  assert.equal((await keepsDying.closed()).action, 'restart');
}
assert.deepEqual(pauses, [500, 1000, 2000, 4000, 8000, 16000]);
assert.equal((await keepsDying.closed()).action, 'stop');
assert.equal(globalThis.boxes.length, 1);
assert.match(globalThis.boxes[0][0], /keeps dying/);

// one death now and then never ends it, and never waits long
pauses.length = 0;
const nowAndThen = new Backoff(log);
for (let death = 0; death < 20; death++) {
  now += 11 * 60_000;
  assert.equal((await nowAndThen.closed()).action, 'restart');
}
assert.deepEqual(new Set(pauses), new Set([500]));

// a broken pipe or two is no reason to give up
assert.equal(nowAndThen.error(new Error('pipe'), undefined, 1).action, 'continue');
assert.equal(nowAndThen.error(new Error('pipe'), undefined, 4).action, 'shutdown');
fs.rmSync(folder, { recursive: true });
console.log('backoff: ok');
