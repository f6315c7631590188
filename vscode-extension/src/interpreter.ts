// Which Python runs the server. The project's own environment is not needed for the analysis, so any
// Python 3.10 with torchwise will do; nothing of an untrusted workspace is ever started.
import { execFile } from 'node:child_process';
import * as path from 'node:path';
import { promisify } from 'node:util';
import * as vscode from 'vscode';

const run = promisify(execFile);

export interface Interpreter {
  readonly python: string;
  /** Where the choice came from, for the log and the status item. */
  readonly source: string;
}

/** What is used of the Python extension's interface; all of it may be missing. */
interface PythonExtension {
  environments?: {
    getActiveEnvironmentPath?(resource?: vscode.Uri): { path: string };
    resolveEnvironment?(environment: unknown): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath?: vscode.Event<unknown>;
  };
}

export interface Search {
  /** The first candidate that can start the server. */
  readonly interpreter?: Interpreter;
  /** What is wrong with those before it. */
  readonly problems: readonly string[];
}

export async function findInterpreter(launcher: string): Promise<Search> {
  const problems: string[] = [];
  for (const interpreter of await candidates()) {
    const problem = await cannotServe(interpreter.python, launcher);
    if (problem === undefined) {
      return { interpreter, problems };
    }
    problems.push(`${problem} (${interpreter.source})`);
  }
  return { problems };
}

/** Whether the torchwise that came with the extension is to run. */
function isBundled(): boolean {
  return vscode.workspace.getConfiguration('torchwise').get('importStrategy') !== 'fromEnvironment';
}

/** What follows the name of the Python. -I: neither PYTHONPATH nor the workspace can put a module in the way. */
export function launch(launcher: string): string[] {
  return ['-I', launcher, ...(isBundled() ? [] : ['--from-environment'])];
}

async function candidates(): Promise<Interpreter[]> {
  const chosen = vscode.workspace.getConfiguration('torchwise').get<string>('interpreter', '').trim();
  if (chosen) {
    return [{ python: resolve(chosen), source: vscode.l10n.t('setting torchwise.interpreter') }];
  }
  const found: Interpreter[] = [];
  // the selected environment may lie in the workspace: not before it is trusted
  const selected = vscode.workspace.isTrusted ? await selectedEnvironment() : undefined;
  if (selected) {
    found.push({ python: selected, source: vscode.l10n.t('selected Python environment') });
  }
  for (const name of process.platform === 'win32' ? ['python', 'py'] : ['python3', 'python']) {
    found.push({ python: name, source: 'PATH' });
  }
  return found;
}

/** What the Python extension has selected; it is optional. */
async function selectedEnvironment(): Promise<string | undefined> {
  try {
    const environments = (await pythonExtension())?.environments;
    const chosen = environments?.getActiveEnvironmentPath?.(vscode.workspace.workspaceFolders?.[0]?.uri);
    // the path may be that of the environment's folder
    const resolved = chosen && (await environments?.resolveEnvironment?.(chosen));
    return resolved?.executable.uri?.fsPath ?? chosen?.path;
  } catch {
    return undefined;
  }
}

async function pythonExtension(): Promise<PythonExtension | undefined> {
  const extension = vscode.extensions.getExtension<PythonExtension>('ms-python.python');
  return extension?.isActive ? extension.exports : await extension?.activate();
}

/** Calls back when another environment is selected, if that decides which Python runs the server. */
export function onDidSelectInterpreter(act: () => void): vscode.Disposable {
  const listeners: vscode.Disposable[] = [];
  void pythonExtension().then(
    (python) => {
      const changed = python?.environments?.onDidChangeActiveEnvironmentPath;
      if (changed) {
        listeners.push(
          changed(() => {
            const isChosen = vscode.workspace.getConfiguration('torchwise').get<string>('interpreter', '').trim();
            if (!isChosen && vscode.workspace.isTrusted) {
              act();
            }
          }),
        );
      }
    },
    () => undefined, // a Python extension that cannot start is as good as none
  );
  return { dispose: () => listeners.forEach((listener) => listener.dispose()) };
}

function resolve(python: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const expanded = folder ? python.replaceAll('${workspaceFolder}', folder) : python;
  return expanded.includes(path.sep) && folder ? path.resolve(folder, expanded) : expanded;
}

async function cannotServe(python: string, launcher: string): Promise<string | undefined> {
  try {
    // in the launcher's folder, so that a relative `python` of the workspace is never meant
    await run(python, [...launch(launcher), '--help'], { timeout: 20_000, cwd: path.dirname(launcher) });
    return undefined;
  } catch (error) {
    const { stderr, message } = error as { stderr?: string; message: string };
    return (stderr?.trim() || message).split('\n').at(-1);
  }
}
