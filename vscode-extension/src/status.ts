// One item in the language status menu of Python files: is it running, on what, and the way to its log.
import * as vscode from 'vscode';

export class Status implements vscode.Disposable {
  private readonly item = vscode.languages.createLanguageStatusItem('torchwise', { language: 'python' });

  constructor() {
    this.item.name = 'torchwise';
    this.item.command = { command: 'torchwise.showOutput', title: 'Output' };
    this.starting();
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

  dispose(): void {
    this.item.dispose();
  }

  private set(text: string, detail: string, severity: vscode.LanguageStatusSeverity, busy: boolean): void {
    this.item.text = text;
    this.item.detail = detail;
    this.item.severity = severity;
    this.item.busy = busy;
  }
}
