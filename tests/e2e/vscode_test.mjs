// node vscode_test.mjs: the product in VS Code as a person uses it; exit code 0 if every step passed.
// CODE_SERVER, VSIX: what is tested. SHOTS: folder for the pictures. KEEP=1 leaves the profile.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { start } from './vscode.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const shots = process.env.SHOTS ?? 'shots';
fs.mkdirSync(shots, { recursive: true });

const began = Date.now();
const code = await start({
  code: need('CODE_SERVER'),
  vsix: need('VSIX'),
  workspace: path.join(here, '../editors/workspace'),
  // no interpreter is chosen: the package brings its server, any Python on PATH runs it
  settings: { 'torchwise.gpus': ['rtx-4090'] },
  keep: Boolean(process.env.KEEP),
});
const { page } = code;
let passed = 0;
let failed = 0;

function need(name) {
  return process.env[name] ?? (console.error(`set ${name}`), process.exit(2));
}

async function step(name, body) {
  const from = Date.now();
  try {
    await body();
    passed++;
    console.log(`ok   ${name} (${Date.now() - from} ms)`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${String(error).split('\n')[0]}`);
    await page.screenshot({ path: path.join(shots, `FAIL-${name.replace(/\W+/g, '-')}.png`) }).catch(() => {});
  }
}

// the editor without the side bar
const CLIP = { x: 340, y: 36, width: 840, height: 690 };
const shot = (name) => page.screenshot({ path: path.join(shots, name), clip: CLIP });

async function until(what, ms = 15_000) {
  const end = Date.now() + ms;
  while (!what()) {
    if (Date.now() > end) {
      throw new Error('condition not met in time');
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// VS Code draws blanks as U+00A0: compare with \s
const line = (text) => page.locator('.editor-instance .view-line', { hasText: text });
const token = (text, word) => line(text).locator('span span', { hasText: word }).first();
const SQUIGGLE = (where) => `${where} .squiggly-warning, ${where} .squiggly-error`;
const LENS = /Peak\s[\d.]+\s[MG]iB.*per\sGPU.*fits\sRTX\s4090/;

// a key pressed before the clicked editor has the focus is lost: try again
async function pressUntil(key, locator) {
  for (let attempt = 0; attempt < 8; attempt++) {
    await page.keyboard.press(key);
    if (await locator.waitFor({ timeout: 2500 }).then(() => true, () => false)) {
      return;
    }
  }
  throw new Error(`${key} showed nothing`);
}

const VIEWPORT = page.viewportSize();
const THEMES = [
  ['Default Dark Modern', 'dark'],
  ['Default High Contrast', 'high-contrast'],
];
const panel = () => page.frameLocator('iframe.webview.ready').last().frameLocator('iframe#active-frame');

function expect(isTrue, what) {
  if (!isTrue) {
    throw new Error(`unexpected: ${what}`);
  }
}

/** Language servers of this run: those whose Python was started with the launcher of its package. */
function servers() {
  const mine = path.join(code.root, 'ext');
  return fs
    .readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const words = fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return words.includes('--stdio') && words.some((word) => word.startsWith(mine) && word.endsWith('launch.py'));
      } catch {
        return false; // it ended meanwhile
      }
    })
    .map(Number);
}

const tab = (name) => page.locator('.tab', { hasText: name });

async function palette(command) {
  const input = page.locator('.quick-input-widget input').first();
  await pressUntil('F1', input);
  await input.fill(`>${command}`);
  await page.locator('.quick-input-list-entry', { hasText: command.replace('torchwise: ', '') }).first().waitFor();
  await page.keyboard.press('Enter');
}

/** Changes the settings as a person does: nobody watches the file itself here. */
async function userSettings(more) {
  await palette('Preferences: Open User Settings (JSON)');
  await tab(/settings\.json/).waitFor();
  await page.mouse.move(5, 5);
  await page.locator('.editor-group-container.active .monaco-editor.focused').waitFor();
  await page.keyboard.press('Control+a');
  await page.keyboard.insertText(JSON.stringify({ ...code.settings, ...more }));
  await page.keyboard.press('Control+s');
  await page.locator('.tab.dirty').waitFor({ state: 'detached' });
  await close(/settings\.json/);
}

async function close(name) {
  for (let attempt = 0; attempt < 5; attempt++) {
    await tab(name).click({ timeout: 2000 }).catch(() => {});
    await page.keyboard.press('Control+w');
    if (await tab(name).waitFor({ state: 'detached', timeout: 3000 }).then(() => true, () => false)) {
      return;
    }
  }
  throw new Error(`${name} stays open`);
}

const menuItem = (title) => page.locator('.action-widget', { hasText: title });
const FIX = /detach/;

async function closeHover() {
  await page.mouse.move(5, 5);
  await page.keyboard.press('Escape');
}

try {
  await step('workbench opens', () => code.open('train.py'));
  // the first start compiles the server
  await step('squiggle', () => page.waitForSelector(SQUIGGLE('.editor-instance'), { timeout: 60_000 }));
  await step('code lens with the peak', async () => {
    await page.locator('.codelens-decoration', { hasText: LENS }).waitFor();
    await shot('1-squiggle-and-lens.png');
  });
  await step('hover explains the finding', async () => {
    await token(/history\.append\(loss\)/, 'loss').hover();
    await page.locator('.monaco-hover', { hasText: 'retained-graph' }).first().waitFor();
    await page.waitForTimeout(500);
    await shot('2-finding.png');
    await page.screenshot({ path: path.join(shots, 'walk-finding.png'), clip: { x: 346, y: 300, width: 834, height: 310 } });
    await closeHover();
  });
  await step('the code of a finding opens the page of its rule', async () => {
    await token(/history\.append\(loss\)/, 'loss').hover();
    await page.locator('.monaco-hover a', { hasText: 'retained-graph' }).first().click();
    await tab(/retained-graph\.md/).waitFor();
    await closeHover();
    await close(/retained-graph\.md/);
  });
  await step('related information', async () => {
    await token(/history\.append\(loss\)/, 'loss').click();
    const link = page.getByText(/this\sforward\smakes\sthe\sgraph/).first();
    await pressUntil('F8', link);
    await page.waitForTimeout(300);
    await shot('3-related.png');
    await page.keyboard.press('Escape');
    await link.waitFor({ state: 'hidden' });
  });
  await step('hover on the loop tells what is alive', async () => {
    await token(/for\sinputs,\stargets\sin/, 'inputs').hover();
    await page.locator('.monaco-hover', { hasText: 'alive at the peak' }).first().waitFor();
    await page.waitForTimeout(300);
    await shot('4-estimate.png');
    await closeHover();
  });
  await step('memory panel: figures, cards, timeline, remedies', async () => {
    await page.locator('.codelens-decoration a', { hasText: LENS }).click();
    await tab(/Memory\sof\strain\.py/).waitFor();
    await panel().locator('.peak strong', { hasText: /GiB/ }).waitFor();
    await panel().locator('.verdict', { hasText: 'fits' }).waitFor();
    const paths = await panel().locator('svg.timeline path.area').count();
    expect(paths >= 5, `only ${paths} purposes are drawn`);
    await page.setViewportSize({ width: 1480, height: 980 });
    await page.waitForTimeout(600);
    await page.screenshot({ path: path.join(shots, 'panel.png'), clip: { x: 340, y: 36, width: 1140, height: 910 } });
    await page.screenshot({ path: path.join(shots, 'walk-memory.png'), clip: { x: 913, y: 70, width: 560, height: 640 } });
  });
  await step('memory panel: keyboard and words for screen readers', async () => {
    const slider = panel().locator('svg.timeline');
    await slider.focus();
    const peak = await slider.getAttribute('aria-valuetext');
    expect(/\(the peak\)\. Weights/.test(peak), peak);
    await page.keyboard.press('Home');
    const start = await slider.getAttribute('aria-valuetext');
    expect(/^forward, line \d+: /.test(start) && (await slider.getAttribute('aria-valuenow')) === '1', start);
    const labels = await panel().locator('[role=img]').first().getAttribute('aria-label');
    expect(/RTX 4090: fits/.test(labels), labels);
  });
  await step('memory panel: a link opens the source', async () => {
    await panel().locator('#alive ~ table button.link', { hasText: 'line 23' }).first().click();
    await page.locator('.statusbar-item', { hasText: /Ln\s23/ }).waitFor();
  });
  await step('memory panel: a remedy is applied, and undone', async () => {
    await panel().locator('.remedies button', { hasText: 'Change line 15 to 2048' }).click();
    await line(/batch_size=2048/).waitFor();
    await panel().locator('.peak strong', { hasText: '1.54 GiB' }).waitFor();
    await line(/batch_size=2048/).click();
    await page.keyboard.press('Control+z');
    await line(/batch_size=4096/).waitFor();
    await panel().locator('.peak strong', { hasText: '1.72 GiB' }).waitFor();
  });
  await step('memory panel: the page runs nothing but its script', async () => {
    const policy = await panel().locator('meta[http-equiv]').getAttribute('content');
    expect(/default-src 'none'.*script-src 'nonce-[\w+/=]+';$/s.test(policy) && !/unsafe/.test(policy), policy);
  });
  for (const [theme, name] of THEMES) {
    await step(`memory panel: ${name}`, async () => {
      await userSettings({ 'workbench.colorTheme': theme });
      await tab(/Memory\sof\strain\.py/).click();
      await panel().locator('svg.timeline').waitFor();
      await page.waitForTimeout(800);
      await page.screenshot({ path: path.join(shots, `panel-${name}.png`), clip: { x: 340, y: 36, width: 1140, height: 910 } });
    });
  }
  await step('memory panel closes', async () => {
    await userSettings({});
    await close(/Memory\sof\strain\.py/);
    await page.setViewportSize(VIEWPORT);
  });
  await step('evidence of the finding', async () => {
    await token(/history\.append\(loss\)/, 'loss').click();
    await palette('torchwise: Show the Evidence of the Finding Here');
    await tab(/Evidence\sin\strain\.py/).waitFor();
    await page.waitForTimeout(2500);
    await shot('evidence.png');
    await close(/Evidence\sin\strain\.py/);
  });
  await step('all findings', async () => {
    await line(/history\.append\(loss\)/).click();
    await palette('torchwise: Show All Findings, Also Uncertain Ones');
    await tab(/Findings\sin\strain\.py/).waitFor();
    await close(/Findings\sin\strain\.py/);
  });
  await step('a rule is picked and explained', async () => {
    await line(/history\.append\(loss\)/).click();
    await palette('torchwise: Explain a Rule');
    await page.locator('.quick-input-list-entry', { hasText: /retained-graph/ }).first().waitFor();
    await shot('rules.png');
    await page.keyboard.type('stuck-eval');
    await page.keyboard.press('Enter');
    await tab(/Rule\sstuck-eval-mode/).waitFor();
    await close(/Rule\sstuck-eval-mode/);
  });
  await step('report copied', async () => {
    await line(/history\.append\(loss\)/).click();
    await palette('torchwise: Copy Report as Markdown');
    await page.locator('.statusbar-item', { hasText: /report\scopied/ }).waitFor();
  });
  await step('inlay hints, switched on', async () => {
    await userSettings({ 'torchwise.inlayHints': true });
    await line(/at\sthe\speak/).first().waitFor();
    await page.waitForTimeout(300);
    await shot('hints.png');
    await userSettings({});
    await line(/at\sthe\speak/).first().waitFor({ state: 'detached' });
  });
  await step('another GPU is chosen', async () => {
    await line(/history\.append\(loss\)/).click();
    await palette('torchwise: Choose GPUs');
    await page.locator('.quick-input-list-entry', { hasText: /rtx-4090/ }).first().waitFor();
    await page.waitForTimeout(600); // it fades in
    await page.screenshot({ path: path.join(shots, 'gpus.png'), clip: { x: 250, y: 0, width: 700, height: 330 } });
    await page.keyboard.type('t4');
    const row = page.locator('.quick-input-list-entry', { hasText: /^t4/ }).first();
    await row.locator('.label-name').first().click();
    await page.locator('.quick-input-widget .count-badge, .quick-input-count', { hasText: /2/ }).first().waitFor();
    await page.keyboard.press('Enter');
    await until(() => code.read('.vscode/settings.json').includes('t4'));
  });
  await step('broken code keeps the finding and the lens', async () => {
    await line(/^import\storch$/).click();
    await page.keyboard.press('End');
    await page.keyboard.press('Enter');
    await page.keyboard.type('def def broken(');
    await page.waitForTimeout(1500); // long enough for an answer to the broken text
    expect((await page.locator(SQUIGGLE('.editor-instance')).count()) > 0, 'the squiggle went');
    expect((await page.locator('.codelens-decoration', { hasText: LENS }).count()) === 1, 'the lens went');
    await shot('broken.png');
    for (let attempt = 0; attempt < 30 && (await line(/^def/).count()); attempt++) {
      await page.keyboard.press('Control+z');
    }
  });
  await step('status bar tells the peak and offers the commands', async () => {
    const item = page.locator('.statusbar-item a', { hasText: /1\.72\sGiB\s·\sfits\sRTX\s4090/ });
    await item.click();
    await page.locator('.quick-input-list-entry', { hasText: 'Restart server' }).waitFor();
    await page.waitForTimeout(600);
    await shot('menu.png');
    await page.keyboard.press('Escape');
  });
  await step('server killed: it comes back by itself', async () => {
    const before = servers();
    expect(before.length === 1, `${before.length} servers run`);
    process.kill(before[0], 'SIGKILL');
    await until(() => servers().some((pid) => !before.includes(pid)), 30_000);
    await page.waitForSelector(SQUIGGLE('.editor-instance'));
    await page.locator('.codelens-decoration', { hasText: LENS }).waitFor();
    await token(/history\.append\(loss\)/, 'loss').click();
    await page.keyboard.press('End');
    await page.keyboard.type('  # kept');
    await line(/history\.append\(loss\)\s\s#\skept/).waitFor();
    await page.waitForSelector(SQUIGGLE('.editor-instance'));
    await page.locator('.codelens-decoration', { hasText: LENS }).waitFor();
  });
  await step('server restarted by command', async () => {
    const before = servers();
    await palette('torchwise: Restart Server');
    await until(() => servers().length === 1 && !before.includes(servers()[0]), 30_000);
    await page.locator('.statusbar-item a', { hasText: /1\.72\sGiB/ }).waitFor();
    expect((await page.locator('.notification-toast').count()) === 0, 'a box popped up');
    await page.waitForSelector(SQUIGGLE('.editor-instance'));
  });
  await step('fix all, then undone', async () => {
    await token(/history\.append\(loss\)/, 'loss').click();
    await palette('Fix All');
    await line(/history\.append\(loss\.detach\(\)\)/).waitFor();
    await page.waitForSelector(SQUIGGLE('.editor-instance'), { state: 'detached' });
    await page.keyboard.press('Control+z');
    await page.waitForSelector(SQUIGGLE('.editor-instance'));
  });
  await step('lightbulb offers the fix', async () => {
    await token(/history\.append\(loss\)/, 'loss').click();
    await pressUntil('Control+.', menuItem(FIX));
    await page.waitForTimeout(300);
    await shot('6-quick-fix.png');
  });
  await step('fix applied and saved', async () => {
    await page.keyboard.press('Enter');
    await line(/history\.append\(loss\.detach\(\)\)/).waitFor();
    await page.waitForSelector(SQUIGGLE('.editor-instance'), { state: 'detached' });
    await page.keyboard.press('Control+s');
    await until(() => code.read('train.py').includes('history.append(loss.detach())  # kept\n'));
    await shot('7-fixed.png');
  });
  await step('rules are completed in a comment and in the settings', async () => {
    await line(/history\.append\(loss\.detach\(\)\)/).click();
    await page.keyboard.press('End');
    await page.keyboard.type('  # torchwise: ignore[reta');
    const suggestion = page.locator('.suggest-widget .monaco-list-row', { hasText: /retained-graph/ });
    await pressUntil('Control+Space', suggestion.first());
    await page.waitForTimeout(500);
    await shot('completion.png');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+z');
  });
  await step('walkthrough', async () => {
    await palette('Welcome: Open Walkthrough...');
    await page.keyboard.type('torchwise');
    await page.keyboard.press('Enter');
    await page.locator('.getting-started-step', { hasText: 'See where the memory goes' }).click();
    await page.waitForTimeout(800);
    await page.screenshot({ path: path.join(shots, 'walkthrough.png') });
  });
  await step('notebook cell: squiggle and lens', async () => {
    await code.open('book.ipynb');
    await page.waitForSelector(SQUIGGLE('.notebookOverlay'), { timeout: 60_000 }); // the window starts anew
    await page.locator('.notebookOverlay .codelens-decoration', { hasText: LENS }).waitFor();
    await shot('8-notebook.png');
  });
  await step('notebook cell: fix saved', async () => {
    const row = page.locator('.notebookOverlay .view-line', { hasText: /history\.append\(loss\)/ });
    await row.locator('span span', { hasText: 'loss' }).first().click();
    await pressUntil('Control+.', menuItem(FIX));
    await page.keyboard.press('Enter');
    await page.waitForSelector(SQUIGGLE('.notebookOverlay'), { state: 'detached' });
    await page.keyboard.press('Control+s');
    await until(() => code.read('book.ipynb').includes('history.append(loss.detach())'));
    await shot('9-notebook-fixed.png');
  });
} finally {
  await code.stop();
}
console.log(`total ${((Date.now() - began) / 1000).toFixed(1)} s`);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
