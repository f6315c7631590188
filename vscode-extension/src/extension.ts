// Starts the torchwise language server and shows what it answers. All analysis is in the server.
import * as vscode from 'vscode';
import { LanguageClient, LanguageClientOptions, ServerOptions, State } from 'vscode-languageclient/node';
import { copyReport, middleware } from './commands';
import { findInterpreter, launch } from './interpreter';
import { Reports } from './reports';
import { Status } from './status';

const INSTALL = 'Copy Install Command';
const SETTINGS = 'Choose Python';
const OUTPUT = 'Show Output';
const RESTARTING = ['torchwise.interpreter', 'torchwise.importStrategy'];

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
    vscode.commands.registerCommand('torchwise.copyReport', () => copyReport(() => client)),
    vscode.commands.registerCommand('torchwise.showOutput', () => output.show()),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      status.cards();
      if (RESTARTING.some((setting) => event.affectsConfiguration(setting))) {
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
  const { interpreter, problems } = await findInterpreter(launcher);
  problems.forEach((problem) => output.warn(problem));
  if (!interpreter) {
    status.failed(problems.at(0) ?? 'no Python was found');
    void askForInstallation(output, problems);
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
  return { command: python, args: [...launch(launcher), '--stdio'] };
}

function options(reports: Reports): LanguageClientOptions {
  return {
    documentSelector: [
      { scheme: 'file', language: 'python' },
      { scheme: 'untitled', language: 'python' },
      // cells: the notebook sync feature takes them over from plain text sync
      { notebook: 'jupyter-notebook', language: 'python' },
      // completion and help in [tool.torchwise], whatever language its editor calls it
      { scheme: 'file', pattern: '**/pyproject.toml' },
    ],
    initializationOptions: { clientShowsReports: true },
    middleware: middleware(reports, () => client),
  };
}

async function askForInstallation(output: vscode.LogOutputChannel, problems: readonly string[]): Promise<void> {
  const isMissing = problems.some((problem) => problem.includes('not installed'));
  const chosen = await vscode.window.showWarningMessage(
    `torchwise is not running: ${problems.at(0) ?? 'no Python was found'}. ` +
      (isMissing
        ? 'Run "pip install torchwise" there, or choose a Python that has it.'
        : 'Choose a Python 3.10 or newer.'),
    ...(isMissing ? [INSTALL] : []),
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
