-- The memory of a buffer as text: the peak, the cards, the step as a row of bars, what is alive, what would help.
local M = {}

local BARS = { '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█' }
local WIDTH = 60

---@param share number from 0 to 1
---@param width integer
local function bar(share, width)
  local full = math.min(width, math.max(0, math.floor(share * width + 0.5)))
  return ('█'):rep(full) .. ('░'):rep(width - full)
end

---@param moment { bytes: integer[] }
local function total(moment)
  local sum = 0
  for _, bytes in ipairs(moment.bytes) do sum = sum + bytes end
  return sum
end

--- One character a stretch of the step, each as high as the highest moment in it; below, the phases.
---@return string, string
local function timeline(moments)
  local count, highest = #moments, 1
  for _, moment in ipairs(moments) do highest = math.max(highest, total(moment)) end
  local columns = math.min(WIDTH, count)
  local bars, names, phase, room = {}, {}, nil, 0
  for column = 1, columns do
    local first = math.floor((column - 1) * count / columns) + 1
    local last = math.max(first, math.floor(column * count / columns))
    local top = 0
    for index = first, last do top = math.max(top, total(moments[index])) end
    bars[column] = BARS[math.max(1, math.ceil(top / highest * #BARS))]
    if moments[first].phase ~= phase and room <= 0 then
      phase = moments[first].phase
      table.insert(names, phase)
      room = #phase
    elseif room <= 0 then
      table.insert(names, ' ')
    end
    room = room - 1
  end
  return table.concat(bars), table.concat(names)
end

--- What applying a remedy does to the text: `line 15 to 2048`, or the lines that it edits.
local function edited(edits)
  local places, seen, is_number = {}, {}, true
  for _, edit in ipairs(edits) do
    is_number = is_number and edit.text:match('^%d+$') ~= nil
    local label = edit.place ~= vim.NIL and edit.place.label or ''
    if not seen[label] then table.insert(places, label) end
    seen[label] = true
  end
  local all = table.concat(places, ', ')
  return is_number and ('%s to %s'):format(all, edits[1].text) or ('edits %s'):format(all)
end

---@class torchwise.Drawn
---@field lines string[]
---@field places table<integer, table> by line
---@field remedies table<integer, integer[]> loop and remedy by line

---@return torchwise.Drawn
function M.draw(memory)
  local drawn = { lines = {}, places = {}, remedies = {} }
  local function add(text, place)
    table.insert(drawn.lines, text)
    if place and place ~= vim.NIL and place.uri ~= vim.NIL then
      drawn.places[#drawn.lines] = place
    end
  end
  local function named(place)
    return place and place ~= vim.NIL and ('  ' .. place.label) or ''
  end

  for _, loop in ipairs(memory.loops) do
    add(('# %s, %s'):format(loop.title, loop.place.label), loop.place)
    local about = { loop.range, loop.where }
    vim.list_extend(about, loop.facts)
    add(('%s at the peak, per GPU (%s)'):format(loop.peak, table.concat(about, ' · ')))
    if loop.launch ~= vim.NIL and loop.launch then
      add('started with ' .. loop.launch.words, loop.launch.place)
    end
    add('')
    local allocated = loop.peaks[1].bytes
    for _, gpu in ipairs(loop.gpus) do
      add(('%s  %s  %s, %.1f %% of %s'):format(
        bar(allocated / gpu.bytes, 20), gpu.title, gpu.words, 100 * allocated / gpu.bytes, gpu.size))
    end
    if #loop.timeline > 0 then
      local bars, names = timeline(loop.timeline)
      add('')
      add(bars)
      add(names)
    end
    add('')
    add('## At the peak')
    for _, purpose in ipairs(loop.purposes) do
      if purpose.bytes > 0 then
        add(('%9s  %-17s %s'):format(purpose.size, purpose.name, bar(purpose.bytes / allocated, 20)))
      end
    end
    add('')
    add('## Alive then')
    for _, group in ipairs(loop.alive) do
      local times = group.count > 1 and (' × ' .. group.count) or ''
      add(('%9s  %s%s%s'):format(group.size, group.what, times, named(group.place)), group.place)
    end
    if #loop.remedies > 0 then
      add('')
      add('## To lower it')
      for _, remedy in ipairs(loop.remedies) do
        local edit = remedy.edits[1]
        local hint = edit and (' [a: %s]'):format(edited(remedy.edits)) or ''
        add(('%9s  %s%s'):format('-' .. remedy.saves, remedy.change, hint), edit and edit.place)
        if edit then drawn.remedies[#drawn.lines] = { loop.number, remedy.number } end
      end
    end
    add('')
  end
  for _, entry in ipairs(memory.unanswered) do
    add(('not answered%s: %s'):format(named(entry.place), entry.message), entry.place)
  end
  if #drawn.lines == 0 then
    add('No training loop was found in this file.')
  end
  return drawn
end

--- Show `memory`, the answer of torchwise.memoryPanel, in a float.
---@param ask fun(command: string, arguments: any[], done: fun(answer: any))
---@return integer? window
function M.open(memory, ask)
  if not memory or memory == vim.NIL then
    vim.notify('torchwise: this buffer is not open in the server', vim.log.levels.WARN)
    return
  end
  local source = vim.api.nvim_get_current_win()
  local drawn = M.draw(memory)
  local width = 40
  for _, text in ipairs(drawn.lines) do width = math.max(width, vim.fn.strdisplaywidth(text)) end
  width = math.min(width + 1, vim.o.columns - 4)
  local height = math.min(#drawn.lines, math.max(5, vim.o.lines - 6))
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, drawn.lines)
  vim.bo[buffer].modifiable = false
  vim.bo[buffer].bufhidden = 'wipe'
  vim.bo[buffer].filetype = 'markdown'
  local window = vim.api.nvim_open_win(buffer, true, {
    relative = 'editor', style = 'minimal', border = 'rounded', width = width, height = height,
    row = math.floor((vim.o.lines - height) / 2) - 1, col = math.floor((vim.o.columns - width) / 2),
    title = ' Memory of ' .. memory.name .. ' ', footer = ' <CR> open · a apply · q close ',
  })
  vim.wo[window].wrap = false
  local function close()
    if vim.api.nvim_win_is_valid(window) then vim.api.nvim_win_close(window, true) end
    if vim.api.nvim_win_is_valid(source) then vim.api.nvim_set_current_win(source) end
  end
  local function here() return vim.api.nvim_win_get_cursor(window)[1] end
  local function map(key, act) vim.keymap.set('n', key, act, { buffer = buffer, nowait = true }) end
  map('q', close)
  map('<Esc>', close)
  map('<CR>', function()
    local place = drawn.places[here()]
    if place then
      close()
      vim.lsp.util.show_document({
        uri = place.uri,
        range = { start = { line = place.line, character = 0 }, ['end'] = { line = place.line, character = 0 } },
      }, 'utf-8', { focus = true })
    end
  end)
  map('a', function()
    local remedy = drawn.remedies[here()]
    if remedy then
      close()
      ask('applyRemedy', { memory.uri, memory.version, remedy[1], remedy[2] }, function(done)
        if done ~= true then vim.notify('torchwise: the code has changed; open the memory again') end
      end)
    end
  end)
  return window
end

return M
