-- Found by vim.lsp.enable('torchwise') when this folder is on the runtime path (Neovim 0.11).
return {
  cmd = { 'torchwise', 'server' },
  filetypes = { 'python' },
  root_markers = { 'pyproject.toml', 'setup.py', '.git' },
  init_options = { clientShowsReports = true },
}
