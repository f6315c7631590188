// Opens a place in the source where its document already is, else in the first group.
import * as vscode from 'vscode';

export async function reveal(address: string, line: number): Promise<void> {
  const uri = vscode.Uri.parse(address, true);
  const range = new vscode.Range(line, 0, line, 0);
  const notebook = vscode.workspace.notebookDocuments.find((book) =>
    book.getCells().some((cell) => cell.document.uri.toString() === uri.toString()),
  );
  if (notebook) {
    const cell = notebook.getCells().findIndex((one) => one.document.uri.toString() === uri.toString());
    const editor = await vscode.window.showNotebookDocument(notebook, { viewColumn: columnOf(notebook.uri) });
    editor.selection = new vscode.NotebookRange(cell, cell + 1);
    editor.revealRange(editor.selection, vscode.NotebookEditorRevealType.InCenterIfOutsideViewport);
    return;
  }
  const editor = await vscode.window.showTextDocument(uri, { viewColumn: columnOf(uri), selection: range });
  editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
}

function columnOf(uri: vscode.Uri): vscode.ViewColumn {
  const group = vscode.window.tabGroups.all.find((one) =>
    one.tabs.some((tab) => {
      const input = tab.input as { uri?: vscode.Uri } | undefined;
      return input?.uri?.toString() === uri.toString();
    }),
  );
  return group?.viewColumn ?? vscode.ViewColumn.One;
}
