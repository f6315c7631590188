// Two items in the language status menu of Python files: is it running, on what, and the way to its log; and
// the cards that estimates are compared with, and the way to choose others.
import * as vscode from 'vscode';

export class Status implements vscode.Disposable {
  private readonly server = vscode.languages.createLanguageStatusItem('torchwise', { language: 'python' });
  private readonly gpus = vscode.languages.createLanguageStatusItem('torchwise.gpus', { language: 'python' });

  constructor() {
    this.server.name = 'torchwise';
    this.server.command = { command: 'torchwise.showOutput', title: 'Output' };
    this.gpus.name = 'torchwise GPUs';
    this.gpus.command = { command: 'torchwise.chooseGpus', title: 'Choose GPUs', arguments: [] };
    this.starting();
    this.cards();
  }

  starting(): void {
    this.set('torchwise: starting', '', vscode.LanguageStatusSeverity.Information, true);
  }

  running(version: string, detail: string): void {
    this.set(`torchwise ${version}`, detail, vscode.LanguageStatusSeverity.Information, false);
  }

  failed(detail: string): void {
    this.set('torchwise: not running', detail, vscode.LanguageStatusSeverity.Error, false);
  }

  /** The settings may have changed. */
  cards(): void {
    const chosen = vscode.workspace.getConfiguration('torchwise').get<string[] | null>('gpus');
    this.gpus.text = chosen?.length ? `GPUs: ${chosen.join(', ')}` : 'GPUs: as in pyproject.toml';
  }

  dispose(): void {
    this.server.dispose();
    this.gpus.dispose();
  }

  private set(text: string, detail: string, severity: vscode.LanguageStatusSeverity, busy: boolean): void {
    this.server.text = text;
    this.server.detail = detail;
    this.server.severity = severity;
    this.server.busy = busy;
  }
}
