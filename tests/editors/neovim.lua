-- nvim --headless --clean -l neovim.lua FILE COMMAND...     (exit code 0 or 1)
-- Uses the server as a user's configuration does, on a copy of workspace/train.py.
local file = arg[1]
local command = vim.list_slice(arg, 2)
local passed, failed = 0, 0

local function step(name, body)
  local ok, err = xpcall(body, debug.traceback)
  passed = passed + (ok and 1 or 0)
  failed = failed + (ok and 0 or 1)
  print((ok and 'ok   ' or 'FAIL ') .. name .. (ok and '' or ': ' .. tostring(err)))
end

local function until_(what, ms)
  assert(vim.wait(ms or 30000, what, 20), 'not in time')
end

-- the configuration of docs/editors.md
vim.lsp.config('torchwise', {
  cmd = command,
  filetypes = { 'python' },
  root_markers = { 'pyproject.toml', '.git' },
  settings = { torchwise = { gpus = { 'rtx-4090' } } },
  init_options = { clientShowsReports = true },
})
vim.lsp.commands['torchwise.showMemoryReport'] = function(lens, context)
  local client = assert(vim.lsp.get_client_by_id(context.client_id))
  client:request('workspace/executeCommand', lens, function(_, report)
    vim.lsp.util.open_floating_preview(vim.split(report or '', '\n'), 'markdown', { border = 'single' })
  end, context.bufnr)
end
vim.lsp.enable('torchwise')

vim.cmd.filetype('on')
vim.cmd.edit(file)
local buf = vim.api.nvim_get_current_buf()
local target = vim.fn.search('history.append(loss)', 'n') - 1
local loop = vim.fn.search('for inputs', 'n') - 1
local client

step('client attaches and speaks UTF-8', function()
  until_(function()
    client = vim.lsp.get_clients({ bufnr = buf, name = 'torchwise' })[1]
    return client and client.initialized
  end)
  assert(client.offset_encoding == 'utf-8', client.offset_encoding)
end)

step('diagnostic', function()
  until_(function() return #vim.diagnostic.get(buf) == 1 end)
  local found = vim.diagnostic.get(buf)[1]
  assert(found.code == 'retained-graph' and found.source == 'torchwise', vim.inspect(found))
  assert(found.lnum == target and found.col == 19 and found.end_col == 23, vim.inspect(found))
end)

step('code lens with the peak', function()
  vim.lsp.codelens.refresh({ bufnr = buf })
  until_(function()
    local lens = vim.lsp.codelens.get(buf)[1]
    return lens and lens.command and lens.command.title:find('^Peak %d') and lens.range.start.line == loop
  end)
  print('     ' .. vim.lsp.codelens.get(buf)[1].command.title)
end)

step('hover on the loop', function()
  local answer = client:request_sync('textDocument/hover', {
    textDocument = { uri = vim.uri_from_bufnr(buf) },
    position = { line = loop, character = 8 },
  }, 10000, buf)
  assert(answer and answer.result and answer.result.contents.value:find('Peak %d'), vim.inspect(answer))
end)

step('memory report in a float', function()
  vim.api.nvim_win_set_cursor(0, { loop + 1, 0 })
  vim.lsp.codelens.run()
  until_(function()
    for _, window in ipairs(vim.api.nvim_list_wins()) do
      local text = vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, 1, false)[1]
      if text and text:find('^# Memory of ') then
        vim.api.nvim_win_close(window, true)
        return true
      end
    end
  end)
end)

step('quick fix', function()
  vim.api.nvim_win_set_cursor(0, { target + 1, 24 })
  vim.lsp.buf.code_action({
    apply = true, -- takes the only action without asking
    filter = function(action) return action.isPreferred end,
  })
  until_(function()
    local line = vim.api.nvim_buf_get_lines(buf, target, target + 1, false)[1]
    return line == '    history.append(loss.detach())'
  end)
  until_(function() return #vim.diagnostic.get(buf) == 0 end)
end)

step('saved', function()
  vim.cmd.write()
  assert(vim.fn.readfile(file)[target + 1] == '    history.append(loss.detach())')
end)

step('server stops', function()
  client:stop()
  until_(function() return client:is_stopped() end)
end)

io.write(('%d passed, %d failed\n'):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
