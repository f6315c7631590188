// Markdown that the server wrote, shown as a preview.
import * as vscode from 'vscode';
import { Ask } from './commands';

const SCHEME = 'torchwise-report';
const RULES = '/rules/';

/** The page of a rule, which the server is asked for when it is opened. */
export function ruleUri(name: string): vscode.Uri {
  return vscode.Uri.from({ scheme: SCHEME, path: `${RULES}${name}.md` });
}

export class Reports implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);
  readonly onDidChange = this.changed.event;

  constructor(private readonly ask: Ask) {}

  async provideTextDocumentContent(uri: vscode.Uri): Promise<string> {
    if (uri.path.startsWith(RULES)) {
      const page = await this.ask('torchwise.explainRule', uri.path.slice(RULES.length).replace(/\.md$/, ''));
      return typeof page === 'string' ? withoutLinks(page) : '';
    }
    return this.texts.get(uri.toString()) ?? '';
  }

  /** Opens the report beside the code, or brings it up to date where it is open. */
  async show(name: string, text: string): Promise<void> {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${name}.md` });
    this.texts.set(uri.toString(), withoutLinks(text));
    this.changed.fire(uri);
    await vscode.commands.executeCommand('markdown.showPreviewToSide', uri);
  }

  dispose(): void {
    this.registration.dispose();
    this.changed.dispose();
  }
}

/** The Markdown preview refuses links to files; their texts name the place already. */
function withoutLinks(markdown: string): string {
  return markdown.replace(/\[([^\]]+)\]\((?:file|vscode-notebook-cell|untitled):[^)]*\)/g, '$1');
}
