// What happens when the server dies: it is started again, later each time, and given up when it keeps dying.
import * as vscode from 'vscode';
import { CloseAction, CloseHandlerResult, ErrorAction, ErrorHandler, ErrorHandlerResult, Message } from 'vscode-languageclient/node';

const FIRST_MS = 500;
const MOST_MS = 30_000;
const WINDOW_MS = 10 * 60_000;
const TRIES = 6;

export class Backoff implements ErrorHandler {
  private readonly deaths: number[] = [];

  constructor(private readonly log: vscode.LogOutputChannel) {}

  error(error: Error, _message: Message | undefined, count: number | undefined): ErrorHandlerResult {
    this.log.warn(`connection: ${error.message}`);
    return { action: (count ?? 0) <= 3 ? ErrorAction.Continue : ErrorAction.Shutdown, handled: true };
  }

  async closed(): Promise<CloseHandlerResult> {
    const now = Date.now();
    while (this.deaths[0] !== undefined && this.deaths[0] < now - WINDOW_MS) {
      this.deaths.shift();
    }
    this.deaths.push(now);
    if (this.deaths.length > TRIES) {
      this.log.error(`the server died ${this.deaths.length} times in ten minutes; it is not started again`);
      void this.giveUp();
      return { action: CloseAction.DoNotRestart, handled: true };
    }
    const pause = Math.min(MOST_MS, FIRST_MS * 2 ** (this.deaths.length - 1));
    this.log.warn(`the server died; it is started again in ${pause / 1000} s`);
    await new Promise((resolve) => setTimeout(resolve, pause));
    return { action: CloseAction.Restart, handled: true };
  }

  private async giveUp(): Promise<void> {
    const restart = vscode.l10n.t('Restart');
    const output = vscode.l10n.t('Show Output');
    const text = vscode.l10n.t('The torchwise server keeps dying and was not started again.');
    const chosen = await vscode.window.showErrorMessage(text, restart, output);
    if (chosen === restart) {
      await vscode.commands.executeCommand('torchwise.restart');
    } else if (chosen === output) {
      this.log.show();
    }
  }
}
