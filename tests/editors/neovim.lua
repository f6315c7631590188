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

-- as docs/editors.md says
vim.opt.runtimepath:prepend(vim.fs.joinpath(vim.fs.dirname(arg[0]), '../../editors/neovim'))
local torchwise = require('torchwise')
torchwise.setup({ cmd = command, settings = { gpus = { 'rtx-4090' } } })

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

local function float()
  for _, window in ipairs(vim.api.nvim_list_wins()) do
    if vim.api.nvim_win_get_config(window).relative ~= '' then return window end
  end
end

local function text_of(window)
  return vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, -1, false)
end

step('code lens opens the memory in a float', function()
  vim.api.nvim_win_set_cursor(0, { loop + 1, 0 })
  vim.lsp.codelens.run()
  until_(float)
  local lines = text_of(float())
  assert(lines[1] == '# Training loop, line 19', lines[1])
  assert(lines[2]:find('^1%.72 GiB at the peak, per GPU %(1%.70–1%.75 GiB · in the backward pass'), lines[2])
  local all = table.concat(lines, '\n')
  for _, wanted in ipairs({ 'RTX 4090  fits', '█', 'forward', 'optimizer states × 12', '%[a: line 15 to 2048%]' }) do
    assert(all:find(wanted), wanted .. ' is not in\n' .. all)
  end
  print(all)
end)

step('a line of the float leads to the source', function()
  local window = float()
  for number, line in ipairs(text_of(window)) do
    if line:find('line 23$') then
      vim.api.nvim_win_set_cursor(window, { number, 0 })
      break
    end
  end
  vim.api.nvim_feedkeys(vim.keycode('<CR>'), 'x', false)
  assert(not float() and vim.api.nvim_get_current_buf() == buf)
  assert(vim.api.nvim_win_get_cursor(0)[1] == 23)
end)

step('a remedy is applied from the float, and undone', function()
  vim.cmd.Torchwise('memory')
  until_(float)
  for number, line in ipairs(text_of(float())) do
    if line:find('%[a: ') then vim.api.nvim_win_set_cursor(float(), { number, 0 }) end
  end
  vim.api.nvim_feedkeys('a', 'x', false)
  until_(function() return vim.api.nvim_buf_get_lines(buf, 14, 15, false)[1]:find('batch_size=2048') end)
  vim.cmd.undo()
  assert(vim.api.nvim_buf_get_lines(buf, 14, 15, false)[1]:find('batch_size=4096'))
end)

step('commands show what the server knows', function()
  vim.api.nvim_win_set_cursor(0, { target + 1, 20 })
  for name, wanted in pairs({
    evidence = '^# retained%-graph at ', findings = '^# Findings in train.py', analysis = '^# Analysis of train.py',
  }) do
    vim.cmd.Torchwise(name)
    until_(function() return float() and text_of(float())[1]:find(wanted) end)
    vim.api.nvim_win_close(float(), true)
  end
  vim.cmd('Torchwise rule retained-graph')
  until_(function() return float() and text_of(float())[1]:find('^# retained%-graph') end)
  vim.api.nvim_win_close(float(), true)
  vim.cmd('Torchwise gpus t4')
  until_(function()
    vim.lsp.codelens.refresh({ bufnr = buf })
    local lens = vim.lsp.codelens.get(buf)[1]
    return lens and lens.command and lens.command.title:find('fits Tesla T4')
  end)
  assert(vim.fn.getcompletion('Torchwise a', 'cmdline')[1] == 'analysis')
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
