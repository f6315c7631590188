// Starts code-server (VS Code) with a throw-away profile and a headless Chromium in front of it.
// Everything it writes lies in one temporary folder.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { chromium } from 'playwright-core';

const CHROMIUM_FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

// Keeps pop-ups, side bars and the network out of the pictures.
const QUIET = {
  '[jsonc]': { 'editor.autoClosingBrackets': 'never' }, // settings are typed as a whole
  'chat.disableAIFeatures': true,
  'editor.minimap.enabled': false,
  'editor.scrollBeyondLastLine': false,
  'editor.stickyScroll.enabled': false,
  'extensions.autoCheckUpdates': false,
  'extensions.autoUpdate': 'off', // false would be migrated while the test edits the settings
  'extensions.ignoreRecommendations': true,
  'security.workspace.trust.enabled': false,
  'telemetry.telemetryLevel': 'off',
  'workbench.editor.useModal': 'off',
  'workbench.secondarySideBar.defaultVisibility': 'hidden',
  'workbench.startupEditor': 'none',
  'workbench.tips.enabled': false,
};

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = net.createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

function isHealthy(port) {
  return new Promise((resolve) => {
    http
      .get({ host: '127.0.0.1', port, path: '/healthz' }, (answer) => {
        answer.resume();
        resolve(answer.statusCode === 200);
      })
      .on('error', () => resolve(false));
  });
}

function run(command, args, env) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    child.stdout.on('data', (data) => (text += data));
    child.stderr.on('data', (data) => (text += data));
    child.on('exit', (code) => (code === 0 ? resolve(text) : reject(new Error(text))));
  });
}

/**
 * code: path of code-server; vsix: the package to install; settings: of the user; workspace: folder that is
 * copied; files: more files in it, by name; restricted: the workspace is not trusted; extensions: more
 * extensions, as a map from folder name to files; keep: leave the profile behind.
 */
export async function start({
  code, vsix, settings, workspace, files = {}, restricted = false, extensions = {}, keep = false,
}) {
  const quiet = restricted
    ? { ...QUIET, 'security.workspace.trust.enabled': true, 'security.workspace.trust.startupPrompt': 'never' }
    : QUIET;
  const root = fs.mkdtempSync(path.join(os.tmpdir(), 'torchwise-e2e-'));
  const at = (...parts) => path.join(root, ...parts);
  for (const folder of ['user/User', 'user/Machine', 'ext', 'home', 'chrome']) {
    fs.mkdirSync(at(folder), { recursive: true });
  }
  // settings of machine scope count only in Machine/
  fs.writeFileSync(at('user/User/settings.json'), JSON.stringify({ ...quiet, ...settings }, null, 2));
  fs.writeFileSync(at('user/Machine/settings.json'), JSON.stringify(settings, null, 2));
  const folder = at('project');
  fs.cpSync(workspace, folder, { recursive: true });
  const write = (base, name, text) => {
    fs.mkdirSync(path.dirname(path.join(base, name)), { recursive: true });
    fs.writeFileSync(path.join(base, name), text, { mode: text.startsWith('#!') ? 0o755 : 0o644 });
  };
  Object.entries(files).forEach(([name, text]) => write(folder, name, text));
  for (const [extension, contents] of Object.entries(extensions)) {
    Object.entries(contents).forEach(([name, text]) => write(at('ext', extension), name, text));
  }

  const env = { ...process.env, HOME: at('home') };
  const dirs = ['--user-data-dir', at('user'), '--extensions-dir', at('ext'), '--config', at('config.yaml')];
  await run(code, [...dirs, '--install-extension', vsix], env);

  const port = await freePort();
  const log = fs.openSync(at('code-server.log'), 'a');
  const server = spawn(
    code,
    [...dirs, '--auth', 'none', '--bind-addr', `127.0.0.1:${port}`, '--disable-telemetry',
      '--disable-update-check', ...(restricted ? [] : ['--disable-workspace-trust']), folder],
    { env, stdio: ['ignore', log, log], detached: true },
  );
  const deadline = Date.now() + 60_000;
  while (!(await isHealthy(port))) {
    if (Date.now() > deadline) {
      throw new Error(`code-server did not start: ${fs.readFileSync(at('code-server.log'))}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }

  const context = await chromium.launchPersistentContext(at('chrome'), {
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    headless: true,
    viewport: { width: 1180, height: 760 },
    args: CHROMIUM_FLAGS,
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.setDefaultTimeout(20_000);

  return {
    page,
    root,
    async open(name) {
      const payload = [['openFile', `vscode-remote://127.0.0.1:${port}${path.join(folder, name)}`]];
      const query = new URLSearchParams({ folder, payload: JSON.stringify(payload) });
      await page.goto(`http://127.0.0.1:${port}/?${query}`);
      await page.waitForSelector('.monaco-workbench .part.editor', { timeout: 60_000 });
    },
    settings: { ...quiet, ...settings },
    folder,
    read(name) {
      const file = path.join(folder, name);
      return fs.existsSync(file) ? fs.readFileSync(file, 'utf8') : '';
    },
    async stop() {
      await context.close().catch(() => {});
      try {
        process.kill(-server.pid, 'SIGTERM'); // its own process group, with the language server in it
      } catch {
        // it is gone already
      }
      await new Promise((resolve) =>
        server.exitCode !== null || server.signalCode ? resolve() : server.once('exit', resolve),
      );
      if (!keep) {
        fs.rmSync(root, { recursive: true, force: true, maxRetries: 5 });
      }
    },
  };
}
