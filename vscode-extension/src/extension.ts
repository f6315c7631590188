// Starts the torchwise language server and shows what it answers. All analysis is in the server.
import * as vscode from 'vscode';
import { LanguageClient, LanguageClientOptions, ServerOptions, State } from 'vscode-languageclient/node';
import { findInterpreter } from './interpreter';
import { Reports } from './reports';
import { Status } from './status';

const INSTALL = 'Copy Install Command';
const SETTINGS = 'Choose Python';
const OUTPUT = 'Show Output';

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel('torchwise', { log: true });
  const reports = new Reports();
  const status = new Status();
  const launcher = context.asAbsolutePath('launcher/launch.py');

  // one start at a time: settings may change while the server is starting
  let turn: Promise<void> = Promise.resolve();
  const restart = () => (turn = turn.then(() => start(launcher, output, reports, status)));

  context.subscriptions.push(
    output,
    reports,
    status,
    vscode.commands.registerCommand('torchwise.restart', restart),
    vscode.commands.registerCommand('torchwise.showOutput', () => output.show()),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration('torchwise.interpreter')) {
        await restart();
      }
    }),
  );
  await restart();
}

export async function deactivate(): Promise<void> {
  await client?.dispose();
}

async function start(
  launcher: string,
  output: vscode.LogOutputChannel,
  reports: Reports,
  status: Status,
): Promise<void> {
  status.starting();
  await client?.dispose();
  client = undefined;
  const interpreter = await findInterpreter(launcher, (line) => output.warn(line));
  if (!interpreter) {
    status.failed('no Python with torchwise was found');
    void askForInstallation(output);
    return;
  }
  output.info(`starting ${interpreter.python} (${interpreter.source})`);
  client = new LanguageClient('torchwise', 'torchwise', server(interpreter.python, launcher), {
    ...options(reports),
    outputChannel: output,
  });
  client.onDidChangeState(({ newState }) => {
    if (newState === State.Running) {
      const version = client?.initializeResult?.serverInfo?.version ?? '';
      status.running(version, `${interpreter.python} (${interpreter.source})`);
    } else if (newState === State.Stopped) {
      status.failed('the server stopped');
    }
  });
  try {
    await client.start();
  } catch (error) {
    status.failed(String(error));
    if ((await vscode.window.showErrorMessage('torchwise could not start.', OUTPUT)) === OUTPUT) {
      output.show();
    }
  }
}

function server(python: string, launcher: string): ServerOptions {
  // -I: neither PYTHONPATH nor the workspace can put a module in the server's way
  return { command: python, args: ['-I', launcher, '--stdio'] };
}

function options(reports: Reports): LanguageClientOptions {
  return {
    documentSelector: [
      { scheme: 'file', language: 'python' },
      { scheme: 'untitled', language: 'python' },
      // cells: the notebook sync feature takes them over from plain text sync
      { notebook: 'jupyter-notebook', language: 'python' },
    ],
    initializationOptions: { clientShowsReports: true },
    middleware: {
      executeCommand: async (command, args, next) => {
        const asked = await withArguments(command, args);
        if (!asked) {
          return;
        }
        const answer: unknown = await next(command, asked);
        if (typeof answer === 'string' && answer) {
          await reports.show(title(command, asked), withoutLinks(answer));
        }
        return answer;
      },
    },
  };
}

/** Commands from the palette come without arguments. */
async function withArguments(command: string, args: unknown[]): Promise<unknown[] | undefined> {
  if (command === 'torchwise.showMemoryReport' && typeof args[0] !== 'string') {
    const uri = vscode.window.activeTextEditor?.document.uri;
    return uri ? [uri.toString()] : undefined;
  }
  if (command === 'torchwise.explainRule' && typeof args[0] !== 'string') {
    const rule = await vscode.window.showInputBox({
      title: 'torchwise: explain a rule',
      placeHolder: 'retained-graph or TW101',
    });
    return rule ? [rule.trim()] : undefined;
  }
  return command === 'torchwise.showMemoryReport' || command === 'torchwise.explainRule' ? [args[0]] : [];
}

function title(command: string, args: unknown[]): string {
  const subject = String(args[0] ?? '').split('/').at(-1);
  switch (command) {
    case 'torchwise.showMemoryReport':
      return `Memory of ${decodeURIComponent(subject ?? '')}`;
    case 'torchwise.explainRule':
      return `Rule ${subject}`;
    default:
      return 'torchwise statistics';
  }
}

/** The Markdown preview refuses links to files; their texts name the place already. */
function withoutLinks(markdown: string): string {
  return markdown.replace(/\[([^\]]+)\]\((?:file|vscode-notebook-cell|untitled):[^)]*\)/g, '$1');
}

async function askForInstallation(output: vscode.LogOutputChannel): Promise<void> {
  const chosen = await vscode.window.showWarningMessage(
    'torchwise needs a Python 3.10 or newer that has it: run "pip install torchwise", or choose one that does.',
    INSTALL,
    SETTINGS,
    OUTPUT,
  );
  if (chosen === INSTALL) {
    await vscode.env.clipboard.writeText('pip install torchwise');
  } else if (chosen === SETTINGS) {
    await vscode.commands.executeCommand('workbench.action.openSettings', 'torchwise.interpreter');
  } else if (chosen === OUTPUT) {
    output.show();
  }
}
