// Commands of the server that the palette offers: what they need is asked here, what they answer is shown here.
import * as vscode from 'vscode';
import { ExecuteCommandRequest, LanguageClient, Middleware, vsdiag } from 'vscode-languageclient/node';
import { MemoryPanel } from './panel';
import { Reports, ruleUri } from './reports';
import { activeUri } from './status';

interface Card {
  readonly name: string;
  readonly title: string;
  readonly summary: string;
}

interface Rule {
  readonly name: string;
  readonly code: string;
  readonly claim: string;
}

export type Ask = (command: string, ...args: unknown[]) => Promise<unknown>;

/** Completes commands that come without arguments, and shows the Markdown that comes back. */
export function middleware(
  reports: Reports,
  panel: MemoryPanel,
  current: () => LanguageClient | undefined,
): Middleware {
  const ask = asking(current);
  return {
    provideDiagnostics: async (document, previousResultId, token, next) => {
      const report = await next(document, previousResultId, token);
      if (report?.kind === vsdiag.DocumentDiagnosticReportKind.full) {
        report.items.forEach(explainHere);
      }
      return report;
    },
    workspace: {
      // between two servers nobody needs to be told: the next one reads everything
      didChangeWatchedFile: async (event, next) => {
        if (current()?.isRunning()) {
          await next(event);
        }
      },
    },
    executeCommand: async (command, args, next) => {
      if (command === 'torchwise.chooseGpus' && args.length === 0) {
        await chooseGpus(ask);
        return;
      }
      const complete = await withArguments(command, args, ask);
      if (!complete) {
        return;
      }
      if (command === 'torchwise.showMemoryReport') {
        await panel.show(String(complete[0]));
        return;
      }
      const answer: unknown = await next(command, complete);
      const title = typeof answer === 'string' && answer ? titleOf(command, complete) : undefined;
      if (title) {
        await reports.show(title, answer as string);
      }
      return answer;
    },
  };
}

/**
 * The page of a rule lies on the server's machine and may not be reachable from the window: the link asks the server
 * for it instead.
 */
function explainHere(diagnostic: vscode.Diagnostic): void {
  const code = diagnostic.code;
  if (typeof code === 'object' && code.target.scheme === 'file') {
    diagnostic.code = { value: code.value, target: ruleUri(String(code.value)) };
  }
}

/** Findings and memory of the active file, for an issue or a pull request. */
export async function copyReport(current: () => LanguageClient | undefined): Promise<void> {
  const uri = activeUri();
  const report = uri ? await asking(current)('torchwise.reportAsMarkdown', uri) : undefined;
  if (typeof report === 'string' && report) {
    await vscode.env.clipboard.writeText(report);
    vscode.window.setStatusBarMessage(vscode.l10n.t('$(clippy) torchwise: report copied'), 4000);
  }
}

/** Asks the server that runs at the moment. */
export function asking(current: () => LanguageClient | undefined): Ask {
  return async (command, ...args) =>
    current()?.sendRequest(ExecuteCommandRequest.type, { command, arguments: args });
}

/** Commands from the palette come without arguments; undefined: the user thought better of it. */
async function withArguments(command: string, args: unknown[], ask: Ask): Promise<unknown[] | undefined> {
  const editor = vscode.window.activeTextEditor;
  switch (command) {
    case 'torchwise.showMemoryReport':
    case 'torchwise.showAnalysis':
    case 'torchwise.showAllFindings': {
      const uri = typeof args[0] === 'string' ? args[0] : activeUri();
      return uri ? [uri] : undefined;
    }
    case 'torchwise.showEvidence': {
      if (typeof args[0] === 'string') {
        return args;
      }
      const place = editor?.selection.active;
      return editor && place ? [editor.document.uri.toString(), place.line, place.character] : undefined;
    }
    case 'torchwise.explainRule': {
      const rule = typeof args[0] === 'string' ? args[0] : await pickRule(ask);
      return rule ? [rule] : undefined;
    }
    case 'torchwise.chooseGpus':
    case 'torchwise.reportAsMarkdown':
      return args;
    default:
      return [];
  }
}

async function pickRule(ask: Ask): Promise<string | undefined> {
  const rules = (await ask('torchwise.listRules')) as Rule[] | undefined;
  const items = (rules ?? []).map((rule) => ({ label: rule.name, description: rule.code, detail: rule.claim }));
  const options = { title: vscode.l10n.t('torchwise: explain a rule'), matchOnDescription: true, matchOnDetail: true };
  return (await vscode.window.showQuickPick(items, options))?.label;
}

/** The choice goes to the settings of the workspace, where everybody looks for it. */
async function chooseGpus(ask: Ask): Promise<void> {
  const cards = (await ask('torchwise.listGpus')) as Card[] | undefined;
  const settings = vscode.workspace.getConfiguration('torchwise');
  const chosen = new Set(settings.get<string[] | null>('gpus') ?? []);
  const items = (cards ?? [])
    .map((card) => ({ label: card.name, description: card.summary, picked: chosen.has(card.name) }))
    .sort((one, other) => Number(other.picked) - Number(one.picked));
  const picked = await vscode.window.showQuickPick(items, {
    title: vscode.l10n.t('torchwise: GPUs that estimates are compared with'),
    placeHolder: vscode.l10n.t('Nothing chosen: as in pyproject.toml'),
    canPickMany: true,
    matchOnDescription: true,
  });
  if (picked) {
    const names = picked.map((item) => item.label);
    const { Workspace, Global } = vscode.ConfigurationTarget;
    const target = vscode.workspace.workspaceFolders ? Workspace : Global;
    await settings.update('gpus', names.length > 0 ? names : undefined, target);
  }
}

/** The name of the report; undefined for commands whose answer is none. */
function titleOf(command: string, args: unknown[]): string | undefined {
  const subject = decodeURIComponent(String(args[0] ?? '').split('/').at(-1)?.split('#')[0] ?? '');
  switch (command) {
    case 'torchwise.showAllFindings':
      return vscode.l10n.t('Findings in {0}', subject);
    case 'torchwise.showAnalysis':
      return vscode.l10n.t('Analysis of {0}', subject);
    case 'torchwise.showEvidence':
      return vscode.l10n.t('Evidence in {0}', subject);
    case 'torchwise.explainRule':
      return vscode.l10n.t('Rule {0}', subject);
    case 'torchwise.showStatistics':
      return vscode.l10n.t('torchwise statistics');
    default:
      return undefined;
  }
}
