-- torchwise for Neovim 0.11: the code lens, the commands of the server, and the memory of a step in a float.
--
--   require('torchwise').setup({ settings = { gpus = { 'rtx-4090' } } })
--
-- Everything is optional: `vim.lsp.enable('torchwise')` alone gives diagnostics, hover and quick fixes.
local memory = require('torchwise.memory')
local M = {}

---@param bufnr integer?
---@return vim.lsp.Client?
local function client_of(bufnr)
  return vim.lsp.get_clients({ name = 'torchwise', bufnr = bufnr or 0 })[1]
end

--- Run a command of the server; `done` gets its answer.
---@param command string
---@param arguments any[]
---@param done fun(answer: any)
function M.ask(command, arguments, done)
  local client = client_of()
  if not client then
    vim.notify('torchwise is not attached to this buffer', vim.log.levels.WARN)
    return
  end
  client:request('workspace/executeCommand', { command = 'torchwise.' .. command, arguments = arguments },
    function(err, answer)
      if err then
        vim.notify('torchwise: ' .. err.message, vim.log.levels.ERROR)
      else
        done(answer)
      end
    end, 0)
end

---@param text string?
local function show_markdown(text)
  if text and text ~= '' then
    vim.lsp.util.open_floating_preview(vim.split(text, '\n'), 'markdown', {
      border = 'rounded', max_width = 110, focus_id = 'torchwise',
    })
  end
end

local function uri()
  return vim.uri_from_bufnr(0)
end

--- The memory of the buffer in a float: <CR> jumps to the line, `a` applies a remedy, `q` closes.
function M.memory()
  M.ask('memoryPanel', { uri() }, function(answer)
    memory.open(answer, M.ask)
  end)
end

function M.findings()
  M.ask('showAllFindings', { uri() }, show_markdown)
end

function M.analysis()
  M.ask('showAnalysis', { uri() }, show_markdown)
end

--- What proves the finding under the cursor.
function M.evidence()
  local line, column = unpack(vim.api.nvim_win_get_cursor(0))
  M.ask('showEvidence', { uri(), line - 1, column }, show_markdown)
end

--- Findings and memory as Markdown in the clipboard register.
function M.report()
  M.ask('reportAsMarkdown', { uri() }, function(text)
    vim.fn.setreg('+', text)
    vim.notify('torchwise: report copied')
  end)
end

---@param name string?
function M.rule(name)
  if name then
    M.ask('explainRule', { name }, show_markdown)
    return
  end
  M.ask('listRules', {}, function(rules)
    vim.ui.select(rules, {
      prompt = 'torchwise: explain a rule',
      format_item = function(rule) return rule.name .. '  ' .. rule.claim end,
    }, function(rule)
      if rule then M.rule(rule.name) end
    end)
  end)
end

--- Compare estimates with these cards; without names, ask for one.
---@param ... string
function M.gpus(...)
  local names = { ... }
  if #names > 0 then
    M.ask('chooseGpus', names, function(told) vim.notify('torchwise: ' .. told) end)
    return
  end
  M.ask('listGpus', {}, function(gpus)
    vim.ui.select(gpus, {
      prompt = 'torchwise: compare estimates with',
      format_item = function(gpu) return gpu.name .. '  ' .. gpu.summary end,
    }, function(gpu)
      if gpu then M.gpus(gpu.name) end
    end)
  end)
end

function M.restart()
  M.ask('restartAnalysis', {}, function() end)
end

local SUBCOMMANDS = { 'memory', 'findings', 'analysis', 'evidence', 'report', 'rule', 'gpus', 'restart' }

---@class torchwise.Options
---@field cmd string[]? how the server is started
---@field settings table? the table `torchwise` of the settings
---@field lens boolean? false: no code lens

--- Configure and enable the server, `:Torchwise`, and the code lens.
---@param options torchwise.Options?
function M.setup(options)
  options = options or {}
  vim.lsp.config('torchwise', {
    cmd = options.cmd or { 'torchwise', 'server' },
    filetypes = { 'python' },
    root_markers = { 'pyproject.toml', 'setup.py', '.git' },
    settings = { torchwise = options.settings or vim.empty_dict() },
    init_options = { clientShowsReports = true },
    -- a notification of the server's own, for clients that draw; floats are drawn when they are opened
    handlers = { ['torchwise/estimated'] = function() end },
  })
  vim.lsp.commands['torchwise.showMemoryReport'] = M.memory
  vim.api.nvim_create_user_command('Torchwise', function(call)
    local name = table.remove(call.fargs, 1)
    if not vim.list_contains(SUBCOMMANDS, name) then
      vim.notify('torchwise: no command ' .. name, vim.log.levels.ERROR)
      return
    end
    M[name](unpack(call.fargs))
  end, {
    nargs = '+',
    desc = 'torchwise: findings and memory of training code',
    complete = function(lead)
      return vim.tbl_filter(function(name) return vim.startswith(name, lead) end, SUBCOMMANDS)
    end,
  })
  if options.lens ~= false then
    local group = vim.api.nvim_create_augroup('torchwise', {})
    vim.api.nvim_create_autocmd({ 'LspAttach', 'BufEnter', 'InsertLeave', 'BufWritePost' }, {
      group = group,
      callback = function(event)
        if client_of(event.buf) then
          vim.lsp.codelens.refresh({ bufnr = event.buf })
        end
      end,
    })
  end
  vim.lsp.enable('torchwise')
end

return M
