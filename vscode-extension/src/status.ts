// The status bar item: the peak of the active document and whether it fits, else whether the server runs; and
// the language status item of Python files, with the version and the Python that runs it.
import * as vscode from 'vscode';

/** What the server says when an estimate is there. */
export interface Estimated {
  readonly uri: string;
  /** `1.72 GiB · fits RTX 4090`; empty without a loop. */
  readonly brief: string;
  /** The lines that stand above the loops. */
  readonly titles: readonly string[];
  readonly verdict: string | null;
}

const ICONS: Record<string, string> = {
  'fits': '$(pass)',
  'probably-fits': '$(pass)',
  'borderline': '$(warning)',
  'probably-oom': '$(error)',
  'oom': '$(error)',
};

type State = 'starting' | 'running' | 'failed';

export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem('torchwise', vscode.StatusBarAlignment.Right, 90);
  private readonly language = vscode.languages.createLanguageStatusItem('torchwise', { language: 'python' });
  private readonly estimates = new Map<string, Estimated>();
  private readonly listeners: vscode.Disposable[];
  private state: State = 'starting';
  private version = '';
  private detail = '';

  constructor() {
    this.item.name = 'torchwise';
    this.item.command = 'torchwise.menu';
    this.language.name = 'torchwise';
    this.language.command = { command: 'torchwise.showOutput', title: vscode.l10n.t('Output') };
    this.listeners = [
      vscode.window.onDidChangeActiveTextEditor(() => this.draw()),
      vscode.window.onDidChangeActiveNotebookEditor(() => this.draw()),
      vscode.workspace.onDidCloseTextDocument((document) => this.estimates.delete(document.uri.toString())),
      vscode.workspace.onDidCloseNotebookDocument((book) => this.estimates.delete(book.uri.toString())),
    ];
    this.draw();
  }

  starting(): void {
    this.set('starting', '', '');
  }

  running(version: string, detail: string): void {
    this.set('running', version, detail);
  }

  failed(detail: string): void {
    this.estimates.clear();
    this.set('failed', this.version, detail);
  }

  estimated(answer: Estimated): void {
    this.estimates.set(answer.uri, answer);
    this.draw();
  }

  /** The settings may have changed. */
  draw(): void {
    const active = activeUri();
    const answer = active === undefined ? undefined : this.estimates.get(active);
    const isBad = this.state === 'failed';
    this.item.text = isBad
      ? vscode.l10n.t('$(error) torchwise is not running')
      : this.state === 'starting'
        ? '$(loading~spin) torchwise'
        : answer?.brief
          ? `${ICONS[answer.verdict ?? ''] ?? '$(pulse)'} ${answer.brief}`
          : '$(pulse) torchwise';
    this.item.accessibilityInformation = { label: `torchwise: ${answer?.brief || this.word()}`, role: 'button' };
    this.item.backgroundColor = isBad ? new vscode.ThemeColor('statusBarItem.errorBackground') : undefined;
    this.item.tooltip = this.tooltip(answer);
    if (active === undefined && !isBad) {
      this.item.hide();
    } else {
      this.item.show();
    }
    this.language.text = this.version ? `torchwise ${this.version}` : 'torchwise';
    this.language.detail = this.detail || this.word();
    this.language.busy = this.state === 'starting';
    this.language.severity = isBad
      ? vscode.LanguageStatusSeverity.Error
      : vscode.LanguageStatusSeverity.Information;
  }

  dispose(): void {
    this.item.dispose();
    this.language.dispose();
    this.listeners.forEach((listener) => listener.dispose());
  }

  private set(state: State, version: string, detail: string): void {
    this.state = state;
    this.version = version;
    this.detail = detail;
    this.draw();
  }

  private word(): string {
    switch (this.state) {
      case 'starting':
        return vscode.l10n.t('starting');
      case 'running':
        return vscode.l10n.t('running');
      case 'failed':
        return vscode.l10n.t('not running');
    }
  }

  private tooltip(answer: Estimated | undefined): vscode.MarkdownString {
    const text = new vscode.MarkdownString('', true);
    text.isTrusted = { enabledCommands: COMMANDS.map(([command]) => command) };
    for (const title of answer?.titles ?? []) {
      text.appendText(title);
      text.appendMarkdown('\n\n');
    }
    text.appendText(`torchwise ${this.version} · ${this.word()}`);
    if (this.detail) {
      text.appendMarkdown('\n\n');
      text.appendText(this.detail);
    }
    text.appendMarkdown('\n\n---\n\n');
    text.appendMarkdown(COMMANDS.map(([command, title]) => `[${title()}](command:${command})`).join(' · '));
    return text;
  }
}

const COMMANDS: readonly (readonly [string, () => string])[] = [
  ['torchwise.showMemoryReport', () => vscode.l10n.t('Show memory')],
  ['torchwise.chooseGpus', () => vscode.l10n.t('Choose GPUs')],
  ['torchwise.showAllFindings', () => vscode.l10n.t('All findings')],
  ['torchwise.restart', () => vscode.l10n.t('Restart server')],
  ['torchwise.showOutput', () => vscode.l10n.t('Output')],
];

/** What a click on the item offers. */
export async function menu(): Promise<void> {
  const items = COMMANDS.map(([command, title]) => ({ label: title(), command }));
  const chosen = await vscode.window.showQuickPick(items, { title: 'torchwise' });
  if (chosen) {
    await vscode.commands.executeCommand(chosen.command);
  }
}

/** The active Python document or notebook. */
export function activeUri(): string | undefined {
  const notebook = vscode.window.activeNotebookEditor?.notebook;
  if (notebook) {
    return notebook.uri.toString();
  }
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === 'python' ? document.uri.toString() : undefined;
}
