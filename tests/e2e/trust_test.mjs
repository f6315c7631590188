// node trust_test.mjs: a workspace that nobody trusts yet, whose settings name a program of its own as Python;
// and the Python extension's choice of an environment. CODE_SERVER, VSIX as in vscode_test.mjs.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { start } from './vscode.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const shots = process.env.SHOTS ?? 'shots';
fs.mkdirSync(shots, { recursive: true });
let passed = 0;
let failed = 0;

// leaves a trace when it is run, and is a Python otherwise
const SPY = '#!/bin/sh\necho ran >>"$(dirname "$0")/ran-$(basename "$0")"\nexec python3 "$@"\n';
// what is used of the Python extension's interface: the selected environment, and that it changes
const PYTHON_EXTENSION = {
  'package.json': JSON.stringify({
    name: 'python', publisher: 'ms-python', version: '2026.1.0', main: './main.js', activationEvents: ['*'],
    engines: { vscode: '^1.91.0' }, capabilities: { untrustedWorkspaces: { supported: true } },
    contributes: { commands: [{ command: 'stub.select', title: 'Stub: Select The Other Environment' }] },
  }),
  'main.js': `
    const vscode = require('vscode');
    exports.activate = (context) => {
      const changed = new vscode.EventEmitter();
      const at = (name) => require('node:path').join(vscode.workspace.workspaceFolders[0].uri.fsPath, name);
      let selected = 'env-one';
      context.subscriptions.push(vscode.commands.registerCommand('stub.select', () => {
        selected = 'env-two';
        changed.fire({ path: at(selected) });
      }));
      return { environments: {
        getActiveEnvironmentPath: () => ({ path: at(selected) }),
        resolveEnvironment: async (chosen) => ({ executable: { uri: vscode.Uri.file(chosen.path) } }),
        onDidChangeActiveEnvironmentPath: changed.event,
      } };
    };`,
};

async function inEditor(name, options, body) {
  const from = Date.now();
  const code = await start({
    code: process.env.CODE_SERVER,
    vsix: process.env.VSIX,
    workspace: path.join(here, '../editors/workspace'),
    keep: Boolean(process.env.KEEP),
    settings: { 'torchwise.gpus': ['rtx-4090'] },
    ...options,
  });
  try {
    await code.open('train.py');
    await body(code);
    passed++;
    console.log(`ok   ${name} (${Date.now() - from} ms)`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${String(error).split('\n')[0]}`);
    await code.page.screenshot({ path: path.join(shots, `FAIL-${name.replace(/\W+/g, '-')}.png`) }).catch(() => {});
  } finally {
    await code.stop();
  }
}

function expect(isTrue, what) {
  if (!isTrue) {
    throw new Error(`unexpected: ${what}`);
  }
}

async function until(what, ms = 30_000) {
  for (const end = Date.now() + ms; !what(); ) {
    expect(Date.now() < end, 'condition not met in time');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const squiggle = (page) => page.waitForSelector('.editor-instance .squiggly-warning', { timeout: 60_000 });
const lens = (page) => page.locator('.codelens-decoration', { hasText: /fits\sRTX\s4090/ }).waitFor();

async function palette(page, command) {
  const input = page.locator('.quick-input-widget input').first();
  for (let attempt = 0; attempt < 8 && !(await input.isVisible()); attempt++) {
    await page.keyboard.press('F1');
    await page.waitForTimeout(700);
  }
  await input.fill(`>${command}`);
  await page.locator('.quick-input-list-entry', { hasText: command.split(': ').at(-1) }).first().waitFor();
  await page.keyboard.press('Enter');
}

const files = {
  'spy': SPY,
  '.vscode/settings.json': JSON.stringify({ 'torchwise.interpreter': './spy', 'torchwise.importStrategy': 'useBundled' }),
};

await inEditor('restricted: everything works and nothing of the workspace runs', { restricted: true, files }, async (code) => {
  const { page } = code;
  await squiggle(page);
  await lens(page);
  await page.locator('.statusbar-item', { hasText: 'Restricted Mode' }).waitFor();
  await page.screenshot({ path: path.join(shots, 'restricted.png') });
  expect(!code.read('ran-spy'), 'the program of the workspace ran');
  // trusted, its settings count: the same program is what runs the server
  await palette(page, 'Workspaces: Manage Workspace Trust');
  await page.getByRole('button', { name: /^Trust/ }).first().click();
  await until(() => code.read('ran-spy'));
});

const python = { 'ms-python.python-2026.1.0': PYTHON_EXTENSION };
const environments = { 'env-one': SPY, 'env-two': SPY };

await inEditor('restricted: not even the selected environment is started', { restricted: true, extensions: python, files: environments }, async (code) => {
  await squiggle(code.page);
  expect(!code.read('ran-env-one'), 'the environment was started');
});

await inEditor('trusted: the selected environment runs the server, and another one when it is selected', { extensions: python, files: environments }, async (code) => {
  await squiggle(code.page);
  expect(code.read('ran-env-one') && !code.read('ran-env-two'), 'another Python runs the server');
  await palette(code.page, 'Stub: Select The Other Environment');
  await until(() => code.read('ran-env-two'));
  await lens(code.page);
});

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
