// The memory panel: a web view without a framework. It gets plain values and draws them; what it may ask for in
// return is listed in `FromPanel` and checked here.
import { randomBytes } from 'node:crypto';
import * as vscode from 'vscode';
import { Ask } from './commands';
import type { FromPanel, Memory, ToPanel, Words } from './memory';
import { reveal } from './places';

const KIND = 'torchwise.memory';

export class MemoryPanel implements vscode.WebviewPanelSerializer, vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;
  private uri: string | undefined;
  private memory: Memory | undefined;
  private asked = 0;
  private readonly registration = vscode.window.registerWebviewPanelSerializer(KIND, this);

  constructor(
    private readonly root: vscode.Uri,
    private readonly ask: Ask,
  ) {}

  /** Opens the panel beside the code, or turns the open one to another document. */
  async show(uri: string): Promise<void> {
    this.uri = uri;
    if (this.panel) {
      this.panel.reveal(undefined, true);
    } else {
      const where = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
      this.adopt(vscode.window.createWebviewPanel(KIND, vscode.l10n.t('Memory'), where));
    }
    await this.refresh();
  }

  /** After a reload of the window. */
  async deserializeWebviewPanel(panel: vscode.WebviewPanel, state: unknown): Promise<void> {
    const uri = (state as { uri?: unknown } | undefined)?.uri;
    if (typeof uri !== 'string') {
      panel.dispose();
      return;
    }
    this.uri = uri;
    this.adopt(panel);
    await this.refresh();
  }

  /** The estimates of a document changed. */
  changed(uri: string): void {
    if (uri === this.uri && this.panel) {
      void this.refresh();
    }
  }

  /** The server is another one. */
  async refresh(): Promise<void> {
    if (!this.panel || this.uri === undefined) {
      return;
    }
    const number = ++this.asked;
    const answer = (await this.ask('torchwise.memoryPanel', this.uri).catch(() => undefined)) as Memory | null | undefined;
    if (number !== this.asked || !this.panel) {
      return; // a newer answer is on its way, or nobody looks any more
    }
    this.memory = answer ?? undefined;
    if (this.memory) {
      this.panel.title = vscode.l10n.t('Memory of {0}', this.memory.name);
    }
    this.send();
  }

  dispose(): void {
    this.registration.dispose();
    this.panel?.dispose();
  }

  private adopt(panel: vscode.WebviewPanel): void {
    this.panel = panel;
    panel.iconPath = vscode.Uri.joinPath(this.root, 'media', 'icon.png');
    panel.webview.options = {
      enableScripts: true,
      localResourceRoots: [vscode.Uri.joinPath(this.root, 'dist'), vscode.Uri.joinPath(this.root, 'media')],
    };
    panel.webview.onDidReceiveMessage((message: FromPanel) => void this.received(message));
    panel.onDidDispose(() => {
      this.panel = undefined;
    });
    panel.webview.html = this.page(panel.webview);
  }

  private send(): void {
    const message: ToPanel = this.memory
      ? { kind: 'show', memory: this.memory, words: words() }
      : { kind: 'none', text: vscode.l10n.t('Open the document to see its memory.') };
    void this.panel?.webview.postMessage(message);
  }

  private async received(message: FromPanel): Promise<void> {
    switch (message.kind) {
      case 'ready':
        this.send();
        break;
      case 'open':
        if (this.isNamed(message.uri)) {
          await reveal(message.uri, Number(message.line));
        }
        break;
      case 'apply': {
        const { version, loop, remedy } = message;
        const isDone = await this.ask('torchwise.applyRemedy', this.uri, Number(version), Number(loop), Number(remedy));
        if (isDone !== true) {
          void vscode.window.showInformationMessage(
            vscode.l10n.t('The code has changed since this was computed. The panel follows in a moment; try again then.'),
          );
        }
        break;
      }
      case 'copy':
        await vscode.env.clipboard.writeText(String(message.text));
        vscode.window.setStatusBarMessage(vscode.l10n.t('$(clippy) copied'), 3000);
        break;
      case 'chooseGpus':
        await vscode.commands.executeCommand('torchwise.chooseGpus');
        break;
    }
  }

  /** Only what the server named may be opened. */
  private isNamed(uri: unknown): uri is string {
    return typeof uri === 'string' && JSON.stringify(this.memory ?? {}).includes(JSON.stringify(uri));
  }

  private page(webview: vscode.Webview): string {
    const nonce = randomBytes(16).toString('base64');
    const at = (...parts: string[]) => webview.asWebviewUri(vscode.Uri.joinPath(this.root, ...parts)).toString();
    return `<!DOCTYPE html>
<html lang="${vscode.env.language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src ${webview.cspSource}; script-src 'nonce-${nonce}';">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="${at('media', 'memory.css')}">
<title>torchwise</title>
</head>
<body>
<main><p class="quiet">${vscode.l10n.t('Estimating…')}</p></main>
<script nonce="${nonce}" src="${at('dist', 'memory.js')}"></script>
</body>
</html>`;
  }
}

/** Every word of the panel that does not come from the server. */
function words(): Words {
  const t = vscode.l10n.t;
  return {
    memoryOf: t('Memory of {0}'),
    startedWith: t('Started with'),
    kept: t('The code is incomplete. These figures are those of the last complete text.'),
    perGpu: t('at the peak, per GPU'),
    loops: t('Loops'),
    fitsTitle: t('Does it fit?'),
    noGpus: t('No GPU is chosen; the bar is what the allocator reserves.'),
    chooseGpus: t('Choose GPUs'),
    of: t('{0} of {1}, {2}'),
    apart: t('{0}; this card runs other kernels'),
    free: t('{0} left beside what is reserved'),
    over: t('{0} more is reserved than there is'),
    stepTitle: t('One step, operation by operation'),
    stepHelp: t('Point at it, or use the arrow keys; Enter or a click opens the line. The marked moment is the peak.'),
    cursor: t('Moment of the step'),
    peakLabel: t('the peak'),
    purpose: t('purpose'),
    atPeak: t('at the peak'),
    here: t('at the cursor'),
    remediesTitle: t('What would lower it'),
    saves: t('saves {0}'),
    leaves: t('peak {0}'),
    cost: t('Costs: {0}'),
    apply: t('Change {0} to {1}'),
    edit: t('Edit {0}'),
    editOnly: t('Of the batch only the number is changed: accumulating is left to you.'),
    copy: t('Copy'),
    aliveTitle: t('Alive at the peak'),
    size: t('size'),
    what: t('what'),
    madeAt: t('made at'),
    layersTitle: t('Layers that hold most'),
    layer: t('layer'),
    parameters: t('parameters'),
    weights: t('weights'),
    activations: t('made in forward, alive at the peak'),
    peaksTitle: t('Three ways to count it'),
    peakRow: t('peak'),
    interval: t('90 % interval'),
    measuredBy: t('as measured by'),
    planTitle: t('What was read from the code'),
    assumptionsTitle: t('Assumptions'),
    unansweredTitle: t('Not answered'),
    nothing: t('No training loop was found in this file.'),
    openPlace: t('Open {0}'),
  };
}
