// Starts the torchwise language server and shows what it answers. All analysis is in the server.
import * as vscode from 'vscode';
import { LanguageClient, LanguageClientOptions, ServerOptions, State } from 'vscode-languageclient/node';
import { Backoff } from './backoff';
import { asking, copyReport, middleware } from './commands';
import { findInterpreter, launch, onDidSelectInterpreter } from './interpreter';
import { MemoryPanel } from './panel';
import { Reports } from './reports';
import { Estimated, menu, Status } from './status';

const RESTARTING = ['torchwise.interpreter', 'torchwise.importStrategy'];

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const server = new Server(context);
  context.subscriptions.push(server);
  await server.restart();
}

export async function deactivate(): Promise<void> {
  await client?.dispose();
}

/** Failures go to the log, and to the status item where they last: a box for each helps nobody. */
class Client extends LanguageClient {
  override error(message: string, data?: unknown, showNotification?: boolean | 'force'): void {
    super.error(message, data, showNotification === 'force' ? 'force' : false);
  }
}

class Server implements vscode.Disposable {
  private readonly output = vscode.window.createOutputChannel('torchwise', { log: true });
  private readonly reports = new Reports(asking(() => client));
  private readonly status = new Status();
  private readonly panel: MemoryPanel;
  private readonly launcher: string;
  private readonly registrations: vscode.Disposable[];
  // one start at a time: settings may change while the server is starting
  private turn: Promise<void> = Promise.resolve();

  constructor(context: vscode.ExtensionContext) {
    this.launcher = context.asAbsolutePath('launcher/launch.py');
    this.panel = new MemoryPanel(context.extensionUri, asking(() => client));
    this.registrations = [
      vscode.commands.registerCommand('torchwise.restart', () => this.restart()),
      vscode.commands.registerCommand('torchwise.copyReport', () => copyReport(() => client)),
      vscode.commands.registerCommand('torchwise.showOutput', () => this.output.show()),
      vscode.commands.registerCommand('torchwise.menu', menu),
      vscode.workspace.onDidGrantWorkspaceTrust(() => this.restart()),
      onDidSelectInterpreter(() => this.restart()),
      vscode.workspace.onDidChangeConfiguration(async (event) => {
        if (RESTARTING.some((setting) => event.affectsConfiguration(setting))) {
          await this.restart();
        }
      }),
    ];
  }

  restart(): Promise<void> {
    this.turn = this.turn.then(() => this.start());
    return this.turn;
  }

  dispose(): void {
    const owned: vscode.Disposable[] = [...this.registrations, this.panel, this.status, this.reports, this.output];
    owned.forEach((item) => item.dispose());
  }

  private async start(): Promise<void> {
    this.status.starting();
    await client?.dispose();
    client = undefined;
    const { interpreter, problems } = await findInterpreter(this.launcher);
    problems.forEach((problem) => this.output.warn(problem));
    if (!interpreter) {
      this.status.failed(problems.at(0) ?? vscode.l10n.t('no Python was found'));
      void askForPython(this.output, problems);
      return;
    }
    this.output.info(`starting ${interpreter.python} (${interpreter.source})`);
    const made = new Client('torchwise', 'torchwise', command(interpreter.python, this.launcher), this.options());
    client = made;
    made.onDidChangeState(({ newState }) => {
      if (newState === State.Running) {
        const version = made.initializeResult?.serverInfo?.version ?? '';
        this.status.running(version, `${interpreter.python} (${interpreter.source})`);
        void this.panel.refresh();
      } else if (newState === State.Stopped && client === made) {
        this.status.failed(vscode.l10n.t('the server stopped'));
      }
    });
    made.onNotification('torchwise/estimated', (answer: Estimated) => {
      this.status.estimated(answer);
      this.panel.changed(answer.uri);
    });
    try {
      await made.start();
    } catch (error) {
      this.status.failed(String(error));
      const output = vscode.l10n.t('Show Output');
      if ((await vscode.window.showErrorMessage(vscode.l10n.t('torchwise could not start.'), output)) === output) {
        this.output.show();
      }
    }
  }

  private options(): LanguageClientOptions {
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
      middleware: middleware(this.reports, this.panel, () => client),
      outputChannel: this.output,
      errorHandler: new Backoff(this.output),
    };
  }
}

function command(python: string, launcher: string): ServerOptions {
  return { command: python, args: [...launch(launcher), '--stdio'] };
}

async function askForPython(output: vscode.LogOutputChannel, problems: readonly string[]): Promise<void> {
  const install = vscode.l10n.t('Copy Install Command');
  const choose = vscode.l10n.t('Choose Python');
  const show = vscode.l10n.t('Show Output');
  const isMissing = problems.some((problem) => problem.includes('not installed'));
  const what = problems.at(0) ?? vscode.l10n.t('no Python was found');
  const text = isMissing
    ? vscode.l10n.t('torchwise is not running: {0}. Run "pip install torchwise" there, or choose a Python that has it.', what)
    : vscode.l10n.t('torchwise is not running: {0}. Choose a Python 3.10 or newer.', what);
  const chosen = await vscode.window.showWarningMessage(text, ...(isMissing ? [install] : []), choose, show);
  if (chosen === install) {
    await vscode.env.clipboard.writeText('pip install torchwise');
  } else if (chosen === choose) {
    await vscode.commands.executeCommand('workbench.action.openSettings', 'torchwise.interpreter');
  } else if (chosen === show) {
    output.show();
  }
}
